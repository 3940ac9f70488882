// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"context"
	"errors"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/netfilter"
)

// Netfilter is what the plugin needs of *netfilter.Node.
type Netfilter interface {
	FirewallDefault() string
	Select(ctx context.Context, name string) (netfilter.Tables, netfilter.Choice, error)
	All() []netfilter.Tables
	Firewalld() *netfilter.Firewalld
	// Advice says now and then what an administrator has to do for admitted
	// packets to pass.
	Advice(ctx context.Context) []string
}

// Words of the key backend.
const (
	backendAuto = "auto"
	backendEBPF = "ebpf"
)

// backends are all there may be, in the order of preference.
func (p *plugin) backends(a *cniskel.Args) []Backend {
	out := []Backend{ebpf{p.Deps}}
	if p.Netfilter == nil {
		return out
	}
	node, err := p.Netfilter(a)
	if err != nil {
		a.Log.Warn("using the defaults for what exists", log.Error(err))
	}
	for _, t := range node.All() {
		out = append(out, tables{t, p.Deps})
	}
	return append(out, firewalld{node.Firewalld(), p.Deps})
}

// choose returns the back end for a new attachment: the one that the
// configuration names, else the node's. With auto that is eBPF.
func (p *plugin) choose(ctx context.Context, a *cniskel.Args, w want) (Backend, error) {
	name := w.conf.Backend
	if name == "" && p.Netfilter != nil {
		node, err := p.Netfilter(a)
		if err != nil {
			return nil, err
		}
		name = node.FirewallDefault()
	}
	if name != "" && name != backendAuto && name != backendEBPF {
		return p.other(ctx, a, w.conf, name)
	}
	return ebpf{p.Deps}, nil
}

// other returns a back end that is not eBPF. With auto it is firewalld where
// that runs, as in the reference.
func (p *plugin) other(ctx context.Context, a *cniskel.Args, conf *Conf, name string) (Backend, error) {
	if p.Netfilter == nil {
		return nil, cnierr.Unsupported("backend", name, "only ebpf is built in")
	}
	if conf.policy.Restricts() { // never parsed and ignored
		return nil, cnierr.Unsupported("rules", string(conf.Rules), "only the ebpf back end has rules, and "+name+" was chosen")
	}
	node, err := p.Netfilter(a)
	if err != nil {
		return nil, err
	}
	if name == netfilter.NameFirewalld || name == backendAuto {
		fwd := node.Firewalld()
		switch err := fwd.Usable(ctx); {
		case err == nil:
			return firewalld{fwd, p.Deps}, nil
		case name == netfilter.NameFirewalld:
			return nil, netfilter.CNIError(err, cnierr.CodeNoDatapath, "the firewalld back end cannot run on this node")
		}
	}
	t, _, err := node.Select(ctx, name)
	if err != nil {
		return nil, netfilter.CNIError(err, cnierr.CodeNoDatapath, "the %s back end cannot run on this node", name)
	}
	return tables{t, p.Deps}, nil
}

// instead returns the back end for what eBPF turned out to be unable to do,
// unless it was asked for by name.
func (p *plugin) instead(ctx context.Context, a *cniskel.Args, conf *Conf, why error) (Backend, error) {
	if conf.Backend == backendEBPF || p.Netfilter == nil || !errors.Is(why, loader.ErrUnavailable) {
		return nil, why
	}
	if node, err := p.Netfilter(a); err != nil || conf.Backend == "" && node.FirewallDefault() == backendEBPF {
		return nil, errors.Join(why, err)
	}
	a.Log.Info("eBPF cannot run here: using netfilter", log.NamedError(log.KeyReason, why))
	b, err := p.other(ctx, a, conf, backendAuto)
	if err != nil {
		return nil, cnierr.Wrap(cnierr.CodeNoDatapath, errors.Join(why, err), "no back end can run on this node")
	}
	return b, nil
}
