// SPDX-License-Identifier: Apache-2.0

package bandwidth

import (
	"context"
	"errors"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// status says whether an ADD would work now: the configuration must be one that
// ADD accepts, and the backend must be able to run.
func (p *plugin) status(ctx context.Context, a *cniskel.Args) error {
	req, err := p.parse(a)
	if err != nil {
		return err
	}
	dp, err := p.Open(ctx, a)
	if err != nil && (req.backend == BackendEDT || !errors.Is(err, loader.ErrUnavailable)) {
		return p.OpenError(err, cnierr.CodeUnavailable)
	}
	if err == nil {
		defer dp.Close()
	}
	backend, reason := choose(dp, err, req.backend)
	switch {
	case req.backend == BackendEDT && backend != BackendEDT:
		return cnierr.New(cnierr.CodeUnavailable, "the edt backend cannot run on this node", reason)
	case backend == BackendTBF:
		probe := rtnl.ProbeQdisc(rtnl.Qdisc{Kind: rtnl.QdiscTBF, Parent: rtnl.ParentRoot, TBF: (&Limit{Rate: 1e6, Burst: minBurst}).tbf()})
		if errors.Is(probe, rtnl.ErrNotProbed) {
			return nil // a container asks, that may enter no namespace (docs/dev/adr/0038-agent-privileges.md). An ADD has the rights.
		}
		return cnierr.Wrap(cnierr.CodeUnavailable, probe, "the kernel has no token bucket filter")
	}
	return nil
}
