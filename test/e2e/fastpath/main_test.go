// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

func TestMain(m *testing.M) { e2etest.Main(m) }
