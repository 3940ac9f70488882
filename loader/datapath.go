// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"net/netip"

	"github.com/sluice-cni/sluice/loader/internal/denylist"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/internal/programs"
	"github.com/sluice-cni/sluice/loader/loadapi"
)

// HasFQ reports whether the kernel has the qdisc that honours departure times (sch_fq); if not, why. A yes holds until the next boot. A no
// is asked again after five minutes, or when the module is loaded.
func (d *Datapath) HasFQ() (bool, string) {
	return programs.New(d.tree).HasFQ()
}

// DenyAdd adds networks to the denylist, and attaches its program to the uplinks if the list was empty. One that is there is no
// error. An uplink with another owner's XDP program is left as it is: the error wraps ErrConflict, the list is in force on the
// others.
func (d *Datapath) DenyAdd(ctx context.Context, networks []netip.Prefix) error {
	return denylist.New(d.tree).Add(ctx, networks, d.syncLocked)
}

// DenyDelete takes networks out of the list, and its program from the uplinks with the last. One that is not there is
// an error that wraps ErrNotDenied; the others go.
func (d *Datapath) DenyDelete(ctx context.Context, networks []netip.Prefix) error {
	return denylist.New(d.tree).Delete(ctx, networks, d.syncLocked)
}

// Deny returns the denylist and how it is in force on each uplink.
func (d *Datapath) Deny(ctx context.Context) (*DenyStatus, error) {
	return denylist.New(d.tree).Deny(ctx)
}

// LoadRequest returns by what the programs in force were made, for a copy of them and of their maps (ebpfload.NewCopy). The error says
// what to do where this build, or the configuration that there is now, is not theirs.
func (d *Datapath) LoadRequest(_ context.Context) (loadapi.LoadRequest, error) {
	return programs.New(d.tree).InForce()
}

// InPrivateMountNS reports whether the calling thread is in a mount namespace apart from the machine's, as far as can be seen.
func InPrivateMountNS() bool {
	return pintree.InPrivateMountNS()
}
