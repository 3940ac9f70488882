// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/internal/programs"
	"github.com/sluice-cni/sluice/loader/loadapi"
)

// HasFQ reports whether the kernel has the qdisc that honours departure times (sch_fq); if not, why. A yes holds until the next boot. A no
// is asked again after five minutes, or when the module is loaded.
func (d *Datapath) HasFQ() (bool, string) {
	return programs.HasFQ(d.tree)
}

// LoadRequest returns by what the programs in force were made, for a copy of them and of their maps (ebpfload.NewCopy). The error says
// what to do where this build, or the configuration that there is now, is not theirs.
func (d *Datapath) LoadRequest(_ context.Context) (loadapi.LoadRequest, error) {
	return programs.LoadRequest(d.tree)
}

// InPrivateMountNS reports whether the calling thread is in a mount namespace apart from the machine's, as far as can be seen.
func InPrivateMountNS() bool {
	return pintree.InPrivateMountNS()
}
