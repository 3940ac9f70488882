// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"context"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
)

// Netfilter is the node's netfilter side.
type Netfilter = backend.Netfilter

func (p *plugin) chooser() backend.Chooser[Backend] {
	return backend.Chooser[Backend]{
		Key: "backend", EBPF: ebpf{p.Deps}, Netfilter: p.Netfilter, Default: Netfilter.FirewallDefault,
		Tables: func(t netfilter.Tables) Backend { return tables{t, p.Deps} },
		Others: []Backend{zones{Deps: p.Deps}},
	}
}

// prepare finds the backend for a new attachment and lets it prepare the ADD.
// The caller must close the job.
func (p *plugin) prepare(ctx context.Context, a *cniskel.Args, r request) (Backend, Job, error) {
	b, err := p.choose(ctx, a, r.conf)
	if err != nil {
		return nil, nil, err
	}
	return backend.Prepare(b,
		func(b Backend) (Job, error) { return b.Prepare(ctx, a, r) },
		func(why error) (Backend, error) { return p.fallback(ctx, a, r.conf, why) })
}

// choose returns the backend that is wanted. For auto that is eBPF, but firewalld where
// it runs, unless a key needs eBPF.
func (p *plugin) choose(ctx context.Context, a *cniskel.Args, conf *Conf) (Backend, error) {
	if chain := conf.IptablesAdminChainName; chain != "" && p.Netfilter == nil {
		return nil, cnierr.Unsupported("iptablesAdminChainName", chain, "only ebpf is built in, and a chain of iptables needs iptables")
	}
	c := p.chooser()
	wanted, err := c.Wanted(a, conf.Backend)
	if err != nil {
		return nil, err
	}
	if wanted == backend.Auto && conf.FirewalldZone != "" && p.Netfilter != nil { // only firewalld can do what it says
		wanted = backend.EBPF
		if (zones{Deps: p.Deps}).Usable(ctx) == nil {
			wanted = netfilter.NameFirewalld
		}
	}
	only, _ := conf.onlyEBPF()
	switch ebpf, err := c.TriesEBPFBesideFirewalld(ctx, a, wanted, only); {
	case err != nil:
		return nil, err
	case ebpf:
		return c.EBPF, nil
	}
	return p.withoutEBPF(ctx, a, conf, wanted)
}

// fallback returns the backend that takes over when eBPF cannot run.
func (p *plugin) fallback(ctx context.Context, a *cniskel.Args, conf *Conf, why error) (Backend, error) {
	return p.chooser().Fallback(ctx, a, conf.Backend, why, func(ctx context.Context, a *cniskel.Args, name string) (Backend, error) {
		return p.withoutEBPF(ctx, a, conf, name)
	})
}

// withoutEBPF returns a backend that is not eBPF. With auto that is firewalld
// where it runs, as in upstream.
func (p *plugin) withoutEBPF(ctx context.Context, a *cniskel.Args, conf *Conf, name string) (Backend, error) {
	if key, value := conf.onlyEBPF(); key != "" { // never parsed and ignored
		return nil, cnierr.Unsupported(key, value, "only the ebpf backend has "+key+", and "+name+" was chosen")
	}
	if p.Netfilter != nil && (name == netfilter.NameFirewalld || name == backend.Auto) {
		if _, err := p.Netfilter(a); err != nil {
			return nil, err
		}
		fwd := zones{Deps: p.Deps}
		switch err := fwd.Usable(ctx); {
		case err == nil:
			return fwd, nil
		case name == netfilter.NameFirewalld:
			return nil, netfilter.CNIError(err, cnierr.CodeNoDatapath, "the firewalld backend cannot run on this node")
		}
	}
	return p.chooser().Select(ctx, a, conf.tables(name))
}
