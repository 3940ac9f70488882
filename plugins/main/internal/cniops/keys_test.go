// SPDX-License-Identifier: Apache-2.0

package cniops

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/jsonobj"
	"github.com/sluice-cni/sluice/pkg/test/jsonobjtest"
)

// The keys are the tags of the fields.
func TestKeys(t *testing.T) {
	jsonobjtest.Same(t, func() jsonobj.Object { return new(DelConf) })
}
