// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"errors"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniplugin"
	"github.com/sluice-cni/sluice/plugins/meta/internal/chained"
)

// check compares the endpoint, its programs and every hostPort entry with what
// the configuration and the previous result ask for.
func (p *plugin) check(ctx context.Context, a *cniplugin.Args) error {
	req, err := parse(a.StdinData)
	if err != nil {
		return err
	}
	prev, err := req.conf.Chained()
	if err != nil {
		return err
	}
	addrs := cniconf.PodAddrs(prev, a.IfName)
	ports := req.ports(addrs)
	if len(ports) == 0 {
		return nil
	}
	ref := chained.Ref(req.conf.Name, a)
	ep, err := p.resolve(ctx, a, ref, addrs)
	if err != nil {
		return chained.ResolveError(err, a.IfName, cnierr.CodeCheck)
	}
	dp, err := p.OpenExisting(ctx, a)
	if errors.Is(err, loader.ErrNotLoaded) {
		return cnierr.Wrap(cnierr.CodeCheck, err, "host ports are not published")
	}
	if err != nil {
		return chained.OpenError(err, cnierr.CodeNoDatapath)
	}
	defer dp.Close()
	err = errors.Join(
		dp.CheckEndpoint(ctx, ep, loader.FeaturePublish),
		dp.CheckPorts(ctx, ref.Owner(), ports))
	return cnierr.Wrap(cnierr.CodeCheck, err, "host ports differ from the configuration")
}

// status says whether an ADD would work now: the configuration must be one
// that ADD accepts, and the datapath must open, which loads it if need be.
func (p *plugin) status(ctx context.Context, a *cniplugin.Args) error {
	if _, err := parse(a.StdinData); err != nil {
		return err
	}
	dp, err := p.Open(ctx, a)
	if err != nil {
		return chained.OpenError(err, cnierr.CodeUnavailable)
	}
	return dp.Close()
}
