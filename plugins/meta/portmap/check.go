// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
)

// check compares what the attachment's backends hold with what the
// configuration and the previous result ask for.
func (p *plugin) check(ctx context.Context, a *cniskel.Args) error {
	req, err := parse(a.StdinData)
	if err != nil {
		return err
	}
	prev, err := req.conf.Chained()
	if err != nil {
		return err
	}
	w := req.want(a.Ref(req.conf.Name), cniconf.PodAddrs(prev, a.IfName))
	if len(w.ports) == 0 {
		return nil
	}
	var errs []error
	shares, err := p.recorded(ctx, a, w)
	if err != nil {
		return err
	}
	for _, s := range shares {
		errs = append(errs, s.backend.Check(ctx, a, s.want))
	}
	differs := errors.Join(errs...)
	if differs != nil && len(p.held(w.ref).keys) == 0 && p.byAnother(ctx, a, w) {
		return nil
	}
	return differs
}

// byAnother reports whether some backend has all the ports, as for a pod of the
// reference plugins.
func (p *plugin) byAnother(ctx context.Context, a *cniskel.Args, w want) bool {
	return slices.ContainsFunc(p.chooser().All(a), func(b Backend) bool { return b.Check(ctx, a, w) == nil })
}

// status says whether an ADD would work now: the configuration must be one
// that ADD accepts, and a backend must be able to run.
func (p *plugin) status(ctx context.Context, a *cniskel.Args) error {
	req, err := parse(a.StdinData)
	if err != nil {
		return err
	}
	wanted, err := p.chooser().Wanted(a, req.conf.Backend)
	if err != nil {
		return err
	}
	for _, any := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if err := req.conf.refuses(loader.HostPort{PodIP: any}); err != nil && wanted == backend.EBPF {
			return err
		}
	}
	if !backend.TriesEBPF(wanted) {
		_, err = p.allTo(ctx, a, wanted, want{conf: req.conf})
		return cnierr.Unavailable(err)
	}
	why := (ebpf{p.Deps}).Status(ctx, a)
	if why == nil {
		return nil
	}
	_, err = p.instead(ctx, a, want{conf: req.conf}, why)
	return cnierr.Unavailable(err)
}
