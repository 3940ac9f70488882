// SPDX-License-Identifier: Apache-2.0

package masquerade

import (
	"context"
	"errors"
	"net/netip"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/rollback"
)

// Netfilter is what is needed of *netfilter.Node.
type Netfilter interface {
	Default() string
	Select(ctx context.Context, name string) (netfilter.Tables, netfilter.Choice, error)
	All() []netfilter.Tables
}

// Words of the key ipMasqBackend.
const (
	backendAuto = "auto"
	backendEBPF = "ebpf"
)

// backends are all there may be, in the order of preference.
func (n Node) backends(a *cniskel.Args) []Backend {
	out := []Backend{ebpf{n}}
	if n.Netfilter == nil {
		return out
	}
	node, err := n.Netfilter(a)
	if err != nil {
		a.Log.Warn("using the defaults for what exists", log.Error(err))
	}
	for _, t := range node.All() {
		out = append(out, tables{t})
	}
	return out
}

// choose returns the back end for a new attachment, and whether another may take
// its place when it cannot run.
func (n Node) choose(ctx context.Context, a *cniskel.Args, c Conf) (b Backend, auto bool, err error) {
	name := backendAuto
	if n.Netfilter != nil {
		node, err := n.Netfilter(a)
		if err != nil {
			return nil, false, err
		}
		name = node.Default()
	}
	if c.IPMasqBackend != nil && *c.IPMasqBackend != "" {
		name = *c.IPMasqBackend
	}
	if name == backendAuto || name == backendEBPF {
		return ebpf{n}, name == backendAuto && n.Netfilter != nil, nil
	}
	b, err = n.other(ctx, a, name)
	return b, false, err
}

// other returns the tables that name asks for.
func (n Node) other(ctx context.Context, a *cniskel.Args, name string) (Backend, error) {
	if n.Netfilter == nil {
		return nil, cnierr.Unsupported("ipMasqBackend", name, `this build masquerades by eBPF only; use "ebpf" or "auto"`)
	}
	node, err := n.Netfilter(a)
	if err != nil {
		return nil, err
	}
	t, _, err := node.Select(ctx, name)
	if err != nil {
		return nil, netfilter.CNIError(err, cnierr.CodeNoDatapath, "ipMasq: the %s back end cannot run on this node", name)
	}
	return tables{t}, nil
}

// instead returns the back end for when eBPF turned out to be unable to run.
func (n Node) instead(ctx context.Context, a *cniskel.Args, auto bool, why error) (Backend, error) {
	if !auto || !errors.Is(why, loader.ErrUnavailable) {
		return nil, why
	}
	a.Log.Info("eBPF cannot run here: masquerading by netfilter", log.NamedError(log.KeyReason, why))
	b, err := n.other(ctx, a, backendAuto)
	if err != nil {
		return nil, cnierr.Wrap(cnierr.CodeNoDatapath, errors.Join(why, err), "ipMasq: no back end can run on this node")
	}
	return b, nil
}

// tables is the back end that writes netfilter rules.
type tables struct{ netfilter.Tables }

var _ Backend = tables{}

// Prepare has nothing to do: the tables have been found usable when they were
// chosen.
func (b tables) Prepare(context.Context, *cniskel.Args) (Job, error) { return tablesJob{b}, nil }

type tablesJob struct{ tables }

func (tablesJob) Close() error { return nil }

// Do writes the rules.
func (j tablesJob) Do(ctx context.Context, ep loader.Endpoint, undos *rollback.Stack) error {
	undos.Push("masquerading", func(ctx context.Context) error { return j.DelMasq(ctx, ep.Ref, ep.Addrs, nil) })
	return netfilter.CNIError(j.AddMasq(ctx, ep.Ref, ep.Addrs), cnierr.CodeNoDatapath, "masquerade the pod")
}

// Remove takes the rules out; it needs neither the pod nor its device.
func (b tables) Remove(ctx context.Context, a *cniskel.Args, ref attachments.Ref, addrs, spare []netip.Prefix) error {
	err := b.DelMasq(ctx, ref, addrs, spare)
	if addrs == nil && errors.Is(err, netfilter.ErrUnusable) {
		a.Log.Warn("tables that may hold something cannot be looked at", log.String("backend", b.Name()), log.Error(err))
		return nil
	}
	return netfilter.CNIError(err, cnierr.CodeNoDatapath, "stop masquerading the pod")
}

// Check compares the rules, the shared ones too.
func (b tables) Check(ctx context.Context, _ *cniskel.Args, ep loader.Endpoint) error {
	return netfilter.CNIError(b.CheckMasq(ctx, ep.Ref, ep.Addrs), cnierr.CodeNoDatapath, "masquerading differs")
}

// Sweep removes the rules of attachments of the network that keep does not list.
func (b tables) Sweep(ctx context.Context, network string, keep []attachments.Ref) error {
	err := b.SweepMasq(ctx, network, keep)
	if errors.Is(err, netfilter.ErrUnusable) {
		return nil
	}
	return netfilter.CNIError(err, cnierr.CodeNoDatapath, "sweep masquerading")
}

// Status has nothing to add: tables that were chosen can be used.
func (tables) Status(context.Context, *cniskel.Args) error { return nil }
