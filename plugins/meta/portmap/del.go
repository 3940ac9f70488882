// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"errors"
	"net/netip"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniplugin"
	"github.com/sluice-cni/sluice/pkg/store"
	"github.com/sluice-cni/sluice/plugins/meta/internal/chained"
)

// portKey is one key of the hostPort map as a record holds it.
type portKey struct {
	HostIP netip.Addr `json:"hostIP"`
	Proto  uint8      `json:"proto"`
	Port   uint16     `json:"port"`
}

// collect is DEL for an attachment that only its record names.
func (p *plugin) collect(ctx context.Context, a *cniplugin.Args, ref store.Ref) error {
	return p.withdraw(ctx, a, ref, p.held(ref))
}

// held is what is known about an attachment's ports before the map is asked.
type held struct {
	keys []loader.HostPort // nil and !none: find them by owner
	none bool              // the record says that there are none
}

// del needs nothing but the attachment's name: neither runtimeConfig, nor
// prevResult, nor the namespace, nor a configuration that ADD would accept.
func (p *plugin) del(ctx context.Context, a *cniplugin.Args) error {
	var conf cniconf.Common
	if err := cniconf.Load(a.StdinData, &conf); err != nil {
		return err
	}
	return p.collect(ctx, a, chained.Ref(conf.Name, a))
}

// held reads the record. Without one, or with one that cannot be read, the
// hostPort map is searched by owner.
func (p *plugin) held(ref store.Ref) held {
	rec, err := p.Records.Load(ref)
	if err != nil || rec.Corrupt {
		return held{}
	}
	var s section
	switch ok, err := rec.Section(Name, &s); {
	case err != nil:
		return held{}
	case !ok:
		return held{none: true}
	}
	return held{keys: s.hostPorts()}
}

// withdraw takes out the ports and the publish feature, and the record once
// nothing of them is left. Missing is success.
func (p *plugin) withdraw(ctx context.Context, a *cniplugin.Args, ref store.Ref, h held) error {
	if h.none {
		return nil
	}
	if err := p.withdrawKernel(ctx, a, ref.Owner(), h.keys); err != nil {
		return err
	}
	if err := p.Records.Remove(ref, Name); err != nil {
		return cnierr.Wrap(cnierr.CodeState, err, "remove the attachment record")
	}
	return nil
}

func (p *plugin) withdrawKernel(ctx context.Context, a *cniplugin.Args, owner uint64, keys []loader.HostPort) error {
	dp, err := p.OpenExisting(ctx, a)
	switch {
	case errors.Is(err, loader.ErrNotLoaded):
		return nil
	case errors.Is(err, loader.ErrUnavailable) && keys == nil:
		return nil // no record of ours, on a node that cannot hold anything of ours
	case err != nil:
		return chained.OpenError(err, cnierr.CodeNoDatapath)
	}
	defer dp.Close()
	// Ports first: a port must not lead to a pod whose endpoint is gone.
	err = errors.Join(
		unlessGone(dp.Unpublish(ctx, owner, keys)),
		unlessGone(dp.Disable(ctx, owner, loader.FeaturePublish)))
	return cnierr.Wrap(cnierr.CodeKernel, err, "withdraw host ports")
}

// unlessGone takes a datapath whose maps somebody has removed for one that was
// never loaded: it holds nothing of ours.
func unlessGone(err error) error {
	if errors.Is(err, loader.ErrNotLoaded) {
		return nil
	}
	return err
}

func keysOf(ports []loader.HostPort) []portKey {
	keys := make([]portKey, 0, len(ports))
	for _, hp := range ports {
		keys = append(keys, portKey{hp.HostIP, hp.Proto, hp.Port})
	}
	return keys
}

func (s section) hostPorts() []loader.HostPort {
	out := make([]loader.HostPort, 0, len(s.Ports))
	for _, k := range s.Ports {
		out = append(out, loader.HostPort{HostIP: k.HostIP, Proto: k.Proto, Port: k.Port})
	}
	return out
}
