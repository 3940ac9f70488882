// SPDX-License-Identifier: Apache-2.0

package masquerade

import (
	"context"
	"net/netip"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rollback"
)

// Backend carries out masquerading.
type Backend interface {
	// Name is the back end's word in configurations and records.
	Name() string
	// Prepare opens what the job needs and finds what rules it out, before the
	// pod has an address: errors are CNI errors. It has no effect on the pod.
	Prepare(ctx context.Context, a *cniskel.Args) (Job, error)
	// Remove stops masquerading an attachment: the addresses, or with nil all
	// that can be found and is not in spare. Missing is success.
	Remove(ctx context.Context, a *cniskel.Args, ref attachments.Ref, addrs, spare []netip.Prefix) error
	// Check compares what is there with what Do would make. What differs has
	// code 102.
	Check(ctx context.Context, a *cniskel.Args, ep loader.Endpoint) error
	// Sweep removes what belongs to the network and to no attachment in keep.
	Sweep(ctx context.Context, network string, keep []attachments.Ref) error
	// Status says why Prepare would fail now.
	Status(ctx context.Context, a *cniskel.Args) error
}

// Job is a prepared ADD. The caller must Close it.
type Job interface {
	// Do masquerades what the pod sends, and pushes what takes each effect back
	// before the effect.
	Do(ctx context.Context, ep loader.Endpoint, undos *rollback.Stack) error
	Close() error
}

// holders returns the back ends that may hold an attachment whose record names
// this one: all when it names none that is known.
func (n Node) holders(a *cniskel.Args, recorded string) []Backend {
	all := n.backends(a)
	for _, b := range all {
		if b.Name() == recorded {
			return []Backend{b}
		}
	}
	return all
}
