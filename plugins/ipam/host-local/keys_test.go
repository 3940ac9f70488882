// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/jsonobj"
	"github.com/sluice-cni/sluice/pkg/test/keystest"
)

// The keys are the tags of the fields.
func TestKeys(t *testing.T) {
	keystest.Same(t, func() jsonobj.Object { return new(netConf) })
	keystest.Same(t, func() jsonobj.Object { return new(ipamConf) })
	keystest.Same(t, func() jsonobj.Object { return new(rangeConf) })
	keystest.Same(t, func() jsonobj.Object { return new(runtimeConf) })
}
