// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniplugin"
	"github.com/sluice-cni/sluice/pkg/delegate"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/store"
	hostlocal "github.com/sluice-cni/sluice/plugins/ipam/host-local"
	"github.com/sluice-cni/sluice/plugins/main/bridge"
	"github.com/sluice-cni/sluice/plugins/meta/firewall"
	"github.com/sluice-cni/sluice/plugins/meta/portmap"
	"github.com/sluice-cni/sluice/plugins/meta/tuning"
)

// options are the loader's, from the node's configuration. A mistake in that
// file has CNI code 7 and names the key.
func options(a *cniplugin.Args) (loader.Options, error) {
	conf, err := nodeconf.Load(nodeconf.DefaultPath)
	var mistake *nodeconf.Error
	switch {
	case errors.As(err, &mistake):
		return loader.Options{}, cnierr.New(cnierr.CodeConfig, err.Error(), "")
	case err != nil:
		return loader.Options{}, cnierr.Wrap(cnierr.CodeIO, err, "read the node configuration")
	}
	return loader.Options{Config: conf, Log: a.Log}, nil
}

// open is loader.Open with the node's configuration, as the interface D that a
// plugin wants.
func open[D any](ctx context.Context, a *cniplugin.Args) (D, error) {
	o, err := options(a)
	if err != nil {
		var none D
		return none, err
	}
	return as[D](loader.Open(ctx, o))
}

// openExisting is loader.OpenExisting in the same way, except that a mistake in
// the node's configuration is only logged: it must not keep a DEL from cleaning.
func openExisting[D any](ctx context.Context, a *cniplugin.Args) (D, error) {
	o, err := options(a)
	if err != nil {
		a.Log.Warn("using the defaults for what exists", zap.Error(err))
		o = loader.Options{Log: a.Log}
	}
	return as[D](loader.OpenExisting(ctx, o))
}

// as is dp as a D, and no D at all with an error: an interface that holds a nil
// pointer is not nil.
func as[D any](dp *loader.Datapath, err error) (D, error) {
	var d D
	if err == nil {
		d = any(dp).(D)
	}
	return d, err
}

// The conversions above cannot fail while these hold.
var (
	_ bridge.Datapath   = (*loader.Datapath)(nil)
	_ portmap.Datapath  = (*loader.Datapath)(nil)
	_ firewall.Datapath = (*loader.Datapath)(nil)
	_ tuning.Datapath   = (*loader.Datapath)(nil)
)

func newBridge() *cniplugin.Plugin {
	return bridge.New(bridge.Deps{
		IPAM:         &delegate.Runner{InProcess: map[string]*cniplugin.Plugin{hostlocal.Name: hostlocal.New(hostlocal.Deps{})}},
		Open:         open[bridge.Datapath],
		OpenExisting: openExisting[bridge.Datapath],
		Records:      store.Open(store.DefaultDir),
	})
}

func newPortmap() *cniplugin.Plugin {
	return portmap.New(portmap.Deps{
		Open:         open[portmap.Datapath],
		OpenExisting: openExisting[portmap.Datapath],
		Resolve:      loader.Resolve,
		Records:      store.Open(store.DefaultDir),
	})
}

func newFirewall() *cniplugin.Plugin {
	return firewall.New(firewall.Deps{
		Open:         open[firewall.Datapath],
		OpenExisting: openExisting[firewall.Datapath],
		Resolve:      loader.Resolve,
		Records:      store.Open(store.DefaultDir),
	})
}

func newTuning() *cniplugin.Plugin {
	return tuning.New(tuning.Deps{
		OpenExisting: openExisting[tuning.Datapath],
		Records:      store.Open(store.DefaultDir),
	})
}
