// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"os"
	"testing"

	"github.com/sluice-cni/sluice/test/cluster/machine"
)

// The test binary is also the program of a machine that is started again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == machine.Role {
		if err := machine.Main(os.Args[2:]); err != nil {
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}
