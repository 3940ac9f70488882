// SPDX-License-Identifier: Apache-2.0

package masquerade

import (
	"context"
	"net/netip"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
)

// Netfilter is what is needed of *choice.Node.
type Netfilter = backend.Netfilter

// Backend masquerades pods.
type Backend interface {
	backend.Base
	// Prepare does its work before the pod has an address.
	Prepare(ctx context.Context, a *cniskel.Args) (Job, error)
	Remove(ctx context.Context, a *cniskel.Args, ref attachments.ID, h held) error
	Check(ctx context.Context, a *cniskel.Args, ep loader.Endpoint) error
}

// Job is a prepared ADD. The caller must Close it.
type Job interface {
	// CheckFree returns an error of code 103 if another attachment holds one of
	// addrs. It changes nothing.
	CheckFree(ctx context.Context, ref attachments.ID, addrs []netip.Prefix) error
	// Apply masquerades what the pod sends. It pushes what takes each effect back
	// before the effect.
	Apply(ctx context.Context, ep loader.Endpoint, rb *rollback.Stack) error
	Close() error
}

// held is what an attachment's record says of its masquerading.
type held struct {
	// addrs are the pod's. Nil: all that can be found and is not in spare.
	addrs []netip.Prefix
	// spare are the addresses of the container's other attachments.
	spare []netip.Prefix
}

// inDatapath is what the datapath holds.
func (h held) inDatapath() loader.Held {
	if h.addrs == nil {
		return loader.Held{}
	}
	return loader.HeldBy(h.addrs)
}

func (n Node) chooser() backend.Chooser[Backend] {
	return backend.Chooser[Backend]{
		Key: "ipMasqBackend", Prefix: prefix, EBPF: ebpf{n}, Netfilter: n.Netfilter,
		Tables: func(t netfilter.Tables) Backend { return tables{t, n} },
	}
}

// NodeBackend returns the backend that the node's configuration names, else backend.Auto. What ipMasqBackend says has no part in it.
func (n Node) NodeBackend(a *cniskel.Args) (string, error) { return n.chooser().Wanted(a, "") }

// choose returns the backend that is wanted: eBPF for auto.
func (n Node) choose(ctx context.Context, a *cniskel.Args, conf Conf) (Backend, error) {
	c := n.chooser()
	wanted, err := c.Wanted(a, conf.backend())
	if err != nil {
		return nil, err
	}
	if backend.TriesEBPF(wanted) {
		return c.EBPF, nil
	}
	return c.Select(ctx, a, wanted)
}

// fallback returns the backend that takes over when eBPF cannot run.
func (n Node) fallback(ctx context.Context, a *cniskel.Args, conf Conf, why error) (Backend, error) {
	return n.chooser().Fallback(ctx, a, conf.backend(), why, nil)
}
