// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/delegate"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/sysctlallow"
	"github.com/sluice-cni/sluice/plugins/main/bridge"
	"github.com/sluice-cni/sluice/plugins/main/ptp"
	"github.com/sluice-cni/sluice/plugins/meta/bandwidth"
	"github.com/sluice-cni/sluice/plugins/meta/firewall"
	"github.com/sluice-cni/sluice/plugins/meta/flannel"
	"github.com/sluice-cni/sluice/plugins/meta/portmap"
	"github.com/sluice-cni/sluice/plugins/meta/tuning"
)

// options are the loader's, from the node's configuration. A mistake in that
// file has CNI code 7 and names the key.
func options(a *cniskel.Args) (loader.Options, error) {
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
func open[D any](ctx context.Context, a *cniskel.Args) (D, error) {
	o, err := options(a)
	if err != nil {
		var none D
		return none, err
	}
	return as[D](loader.Open(ctx, o))
}

// openChosen is open for plugins that have seen to the node's back end themselves:
// a configuration that names eBPF gets it wherever it can run.
func openChosen[D any](ctx context.Context, a *cniskel.Args) (D, error) {
	o, err := options(a)
	if err != nil {
		var none D
		return none, err
	}
	o.Config.Backend = nodeconf.BackendAuto
	return as[D](loader.Open(ctx, o))
}

// tables is the node's netfilter side as the interface N that a plugin wants. A
// mistake in the node's configuration is an error, beside a result that works
// with the defaults.
func tables[N any](a *cniskel.Args) (N, error) {
	o, err := options(a)
	no := netfilter.Options{Log: a.Log}
	if c := o.Config; c != nil {
		no.Default, no.Firewall, no.Variant, no.AdmitMark = string(c.Backend), string(c.Firewall), string(c.IPTables), c.AdmitMark
	}
	return any(netfilter.NewNode(no)).(N), err
}

// openExisting is loader.OpenExisting in the same way, except that a mistake in
// the node's configuration is only logged: it must not keep a DEL from cleaning.
func openExisting[D any](ctx context.Context, a *cniskel.Args) (D, error) {
	o, err := options(a)
	if err != nil {
		a.Log.Warn("using the defaults for what exists", log.Error(err))
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
	_ ptp.Datapath      = (*loader.Datapath)(nil)
	_ portmap.Datapath  = (*loader.Datapath)(nil)
	_ firewall.Datapath = (*loader.Datapath)(nil)
	_ tuning.Datapath   = (*loader.Datapath)(nil)

	_ bandwidth.Datapath = (*loader.Datapath)(nil)

	_ bridge.Netfilter   = (*netfilter.Node)(nil)
	_ ptp.Netfilter      = (*netfilter.Node)(nil)
	_ portmap.Netfilter  = (*netfilter.Node)(nil)
	_ firewall.Netfilter = (*netfilter.Node)(nil)
)

func newBridge() *cniskel.Plugin {
	return bridge.New(bridge.Deps{
		IPAM:      ipam(),
		Opener:    bridge.Opener{Open: openChosen[bridge.Datapath], OpenExisting: openExisting[bridge.Datapath]},
		Netfilter: tables[bridge.Netfilter],
		Records:   attachments.Open(attachments.DefaultDir),
	})
}

func newPTP() *cniskel.Plugin {
	return ptp.New(ptp.Deps{
		IPAM:      ipam(),
		Opener:    ptp.Opener{Open: openChosen[ptp.Datapath], OpenExisting: openExisting[ptp.Datapath]},
		Netfilter: tables[ptp.Netfilter],
		Records:   attachments.Open(attachments.DefaultDir),
	})
}

func newPortmap() *cniskel.Plugin {
	return portmap.New(portmap.Deps{
		Opener:    portmap.Opener{Open: openChosen[portmap.Datapath], OpenExisting: openExisting[portmap.Datapath]},
		Netfilter: tables[portmap.Netfilter],
		Resolve:   loader.Resolve,
		Records:   attachments.Open(attachments.DefaultDir),
	})
}

func newFirewall() *cniskel.Plugin {
	return firewall.New(firewall.Deps{
		Opener:    firewall.Opener{Open: openChosen[firewall.Datapath], OpenExisting: openExisting[firewall.Datapath]},
		Netfilter: tables[firewall.Netfilter],
		Resolve:   loader.ResolveOwn,
		Records:   attachments.Open(attachments.DefaultDir),
	})
}

func newTuning() *cniskel.Plugin {
	return tuning.New(tuning.Deps{
		Match:        sysctlallow.ByHelper,
		OpenExisting: openExisting[tuning.Datapath],
		Records:      attachments.Open(attachments.DefaultDir),
	})
}

// newFlannel delegates to any other plugin of this suite in-process.
func newFlannel() *cniskel.Plugin {
	others := map[string]*cniskel.Plugin{}
	for _, name := range names() {
		if name != flannel.Name {
			others[name] = plugin(name)
		}
	}
	return flannel.New(flannel.Deps{
		Delegate: &delegate.Runner{Key: "delegate.type", InProcess: others},
		Records:  attachments.Open(attachments.DefaultDir),
	})
}

func newBandwidth() *cniskel.Plugin {
	return bandwidth.New(bandwidth.Deps{
		Opener: bandwidth.Opener{Open: open[bandwidth.Datapath], OpenExisting: openExisting[bandwidth.Datapath]},
		Backend: func(a *cniskel.Args) (string, error) {
			o, err := options(a)
			if err != nil {
				return "", err
			}
			return string(o.Config.Bandwidth), nil
		},
		Records: attachments.Open(attachments.DefaultDir),
	})
}
