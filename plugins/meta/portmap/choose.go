// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/netfilter"
)

// Netfilter is what the plugin needs of *netfilter.Node.
type Netfilter interface {
	Default() string
	Select(ctx context.Context, name string) (netfilter.Tables, netfilter.Choice, error)
	All() []netfilter.Tables
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
	return out
}

// configured is the back end that is asked for: by the configuration, else by
// the node's.
func (p *plugin) configured(a *cniskel.Args, conf *Conf) (string, error) {
	if conf.Backend != "" || p.Netfilter == nil {
		return conf.Backend, nil
	}
	node, err := p.Netfilter(a)
	if err != nil {
		return "", err
	}
	return node.Default(), nil
}

// divide says who carries out what: the back end that is asked for all of it.
// With auto that is eBPF, and netfilter for mappings that eBPF cannot do.
func (p *plugin) divide(ctx context.Context, a *cniskel.Args, w want) ([]share, error) {
	name, err := p.configured(a, w.conf)
	if err != nil {
		return nil, err
	}
	if name != "" && name != backendAuto && name != backendEBPF {
		return p.allTo(ctx, a, name, w)
	}
	can, cannot := w, w
	can.ports, cannot.ports = nil, nil
	for _, hp := range w.ports {
		no := w.conf.refuses(hp)
		switch {
		case no == nil:
			can.ports = append(can.ports, hp)
		case name == backendEBPF || p.Netfilter == nil:
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
		rest, err := p.allTo(ctx, a, backendAuto, cannot)
		if err != nil {
			return nil, err
		}
		out = append(out, rest...)
	}
	return out, nil
}

// allTo gives everything to the tables that name asks for. Conditions, and a
// chain that marks, are words of one tool only.
func (p *plugin) allTo(ctx context.Context, a *cniskel.Args, name string, w want) ([]share, error) {
	if p.Netfilter == nil {
		return nil, cnierr.Unsupported("backend", name, "only ebpf is built in")
	}
	// Rather no port than one that is open to everybody.
	if slices.ContainsFunc(w.ports, func(hp loader.HostPort) bool { return len(hp.Sources) > 0 }) || len(w.conf.AllowedSources) > 0 {
		return nil, cnierr.Unsupported("allowedSources", w.conf.AllowedSources, "the "+name+" back end does not have it: it needs ebpf")
	}
	node, err := p.Netfilter(a)
	if err != nil {
		return nil, err
	}
	if speaks := w.conf.speaks(); name == backendAuto && speaks != "" {
		name = speaks
	}
	t, _, err := node.Select(ctx, name)
	if err != nil {
		return nil, netfilter.CNIError(err, cnierr.CodeNoDatapath, "the %s back end cannot run on this node", name)
	}
	return []share{{tables{t, p.Deps}, w}}, nil
}

// instead gives everything to netfilter when eBPF turned out to be unable to run,
// or the pod's device is whole inside the pod, unless eBPF was asked for by name.
func (p *plugin) instead(ctx context.Context, a *cniskel.Args, w want, why error) ([]share, error) {
	name, err := p.configured(a, w.conf)
	if err != nil || name == backendEBPF || p.Netfilter == nil || !errors.Is(why, loader.ErrUnavailable) && !errors.Is(why, loader.ErrNoHostEnd) {
		return nil, why
	}
	a.Log.Info("eBPF cannot do this: using netfilter", log.NamedError(log.KeyReason, why))
	out, err := p.allTo(ctx, a, backendAuto, w)
	if err != nil {
		return nil, cnierr.Wrap(cnierr.CodeNoDatapath, errors.Join(why, err), "no back end can run on this node")
	}
	return out, nil
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
