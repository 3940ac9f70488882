// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
)

// Netfilter is what the plugin needs of *netfilter.Node.
type Netfilter = backend.Netfilter

func (p *plugin) chooser() backend.Chooser[Backend, Netfilter] {
	return backend.Chooser[Backend, Netfilter]{
		Key: "backend", EBPF: ebpf{p.Deps}, Netfilter: p.Netfilter,
		Tables: func(t netfilter.Tables) Backend { return tables{t, p.Deps} },
		// The device of macvlan, ipvlan, vlan and host-device is whole inside the pod.
		FallbackFor: []error{loader.ErrUnavailable, loader.ErrNoHostEnd},
	}
}

// divide says who carries out what: the back end that is asked for all of it.
// With auto that is eBPF, and netfilter for mappings that eBPF cannot do.
func (p *plugin) divide(ctx context.Context, a *cniskel.Args, w want) ([]share, error) {
	wanted, err := p.chooser().Wanted(a, w.conf.Backend)
	if err != nil {
		return nil, err
	}
	if !backend.TriesEBPF(wanted) {
		return p.allTo(ctx, a, wanted, w)
	}
	can, cannot := w, w
	can.ports, cannot.ports = nil, nil
	for _, hp := range w.ports {
		no := w.conf.refuses(hp)
		switch {
		case no == nil:
			can.ports = append(can.ports, hp)
		case wanted == backend.EBPF || p.Netfilter == nil:
			return nil, no
		default:
			a.Log.Warn("a mapping falls back to netfilter", log.Stringer("port", mappingKey{hp.HostIP, hp.Proto, hp.Port}), log.NamedError(log.KeyReason, no))
			cannot.ports = append(cannot.ports, hp)
		}
	}
	var out []share
	if len(can.ports) > 0 {
		out = append(out, share{ebpf{p.Deps}, can})
	}
	if len(cannot.ports) > 0 {
		rest, err := p.allTo(ctx, a, backend.Auto, cannot)
		if err != nil {
			return nil, err
		}
		out = append(out, rest...)
	}
	return out, nil
}

// allTo gives everything to the tables that name asks for.
func (p *plugin) allTo(ctx context.Context, a *cniskel.Args, name string, w want) ([]share, error) {
	b, err := p.tables(ctx, a, name, w)
	return []share{{b, w}}, err
}

// tables returns the tables that name asks for. Conditions, and a chain that
// marks, are words of one tool only.
func (p *plugin) tables(ctx context.Context, a *cniskel.Args, name string, w want) (Backend, error) {
	// Rather no port than one that is open to everybody.
	if slices.ContainsFunc(w.ports, func(hp loader.HostPort) bool { return len(hp.Sources) > 0 }) || len(w.conf.AllowedSources) > 0 {
		return nil, cnierr.Unsupported("allowedSources", w.conf.AllowedSources, "the "+name+" backend does not have it: it needs ebpf")
	}
	if speaks := w.conf.speaks(); name == backend.Auto && speaks != "" {
		name = speaks
	}
	return p.chooser().Select(ctx, a, name)
}

// instead gives everything to netfilter when eBPF turned out to be unable to run,
// or the pod's device is whole inside the pod, unless eBPF was asked for by name.
func (p *plugin) instead(ctx context.Context, a *cniskel.Args, w want, why error) ([]share, error) {
	b, err := p.chooser().Fallback(ctx, a, w.conf.Backend, why, func(ctx context.Context, a *cniskel.Args, name string) (Backend, error) {
		return p.tables(ctx, a, name, w)
	})
	return []share{{b, w}}, err
}

// speaks says which tool's language the configuration has words of, as the
// reference guesses it; empty for none.
func (c *Conf) speaks() string {
	for _, conditions := range [][]string{c.ConditionsV4, c.ConditionsV6} {
		if len(conditions) == 0 {
			continue
		}
		if strings.HasPrefix(conditions[0], "-") || strings.HasPrefix(conditions[0], "!") {
			return netfilter.NameIPTables
		}
		return netfilter.NameNFTables
	}
	if c.ExternalSetMarkChain != nil {
		return netfilter.NameIPTables
	}
	return ""
}
