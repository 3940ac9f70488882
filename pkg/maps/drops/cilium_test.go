// SPDX-License-Identifier: Apache-2.0

package drops_test

import (
	"testing"

	"github.com/cilium/cilium/api/v1/flow"

	"github.com/sluice-cni/sluice/pkg/hubbleflow"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
)

// Each reason has one of Cilium's in pkg/hubbleflow: Hubble shows a drop without one as unknown.
func TestEveryReasonHasOneOfCilium(t *testing.T) {
	t.Parallel()
	for r := drops.Reason(1); r < drops.Max; r++ {
		if hubbleflow.Reason(r.Name()) == flow.DropReason_DROP_REASON_UNKNOWN {
			t.Errorf("%s: none of Cilium's reasons", r.Name())
		}
	}
}
