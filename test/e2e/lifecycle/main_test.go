// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

func TestMain(m *testing.M) {
	if asNetnsExec() {
		return
	}
	e2etest.Main(m)
}
