// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"sync"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/delegate"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/netfilter/choice"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/nodeports"
	"github.com/sluice-cni/sluice/pkg/sysctlallow"
	"github.com/sluice-cni/sluice/plugins/main/bridge"
	"github.com/sluice-cni/sluice/plugins/main/ptp"
	"github.com/sluice-cni/sluice/plugins/meta/bandwidth"
	"github.com/sluice-cni/sluice/plugins/meta/firewall"
	"github.com/sluice-cni/sluice/plugins/meta/flannel"
	"github.com/sluice-cni/sluice/plugins/meta/portmap"
	"github.com/sluice-cni/sluice/plugins/meta/tuning"
)

// nodeConfig reads the node's configuration, once a call.
var nodeConfig = sync.OnceValues(func() (*nodeconf.Config, error) { return nodeconf.Load(nodeconf.DefaultPath) })

// newLog logs as the node's configuration says. The verbs that need the file report a mistake in it; the log then goes to stderr.
func newLog() *log.Logger {
	conf, err := nodeConfig()
	if err != nil {
		conf = nodeconf.Default()
	}
	return conf.NewLog()
}

// options are the loader's, from the node's configuration. A mistake in that
// file has CNI code 7 and names the key.
func options(a *cniskel.Args) (loader.Options, error) {
	conf, err := nodeConfig()
	var mistake *nodeconf.Error
	switch {
	case errors.As(err, &mistake):
		return loader.Options{}, cnierr.New(cnierr.CodeConfig, err.Error(), "")
	case err != nil:
		return loader.Options{}, cnierr.Wrap(cnierr.CodeIO, err, "read the node configuration")
	}
	own := *conf // openForced changes it
	return loader.Options{Config: &own, Log: a.Log}, nil
}

// datapathAs converts the node's datapath to the interface that a plugin wants. The compiler checks that it fits.
type datapathAs[D any] func(*loader.Datapath) D

// open is loader.Open with the node's configuration.
func (as datapathAs[D]) open(ctx context.Context, a *cniskel.Args) (D, error) {
	o, err := options(a)
	if err != nil {
		var none D
		return none, err
	}
	return as.convert(loader.Open(ctx, o))
}

// openForced is open for plugins that have chosen the backend themselves: a
// configuration that names eBPF gets it wherever it can run.
func (as datapathAs[D]) openForced(ctx context.Context, a *cniskel.Args) (D, error) {
	o, err := options(a)
	if err != nil {
		var none D
		return none, err
	}
	o.Config.Backend = nodeconf.BackendAuto
	return as.convert(loader.Open(ctx, o))
}

// openExisting is loader.OpenExisting in the same way, except that a mistake in
// the node's configuration is only logged: it must not keep a DEL from cleaning.
func (as datapathAs[D]) openExisting(ctx context.Context, a *cniskel.Args) (D, error) {
	o, err := options(a)
	if err != nil {
		a.Log.Warn("using the defaults for what exists", log.Error(err))
		o = loader.Options{Log: a.Log}
	}
	return as.convert(loader.OpenExisting(ctx, o))
}

// convert returns no D at all with an error: an interface that holds a nil
// pointer is not nil.
func (as datapathAs[D]) convert(dp *loader.Datapath, err error) (D, error) {
	if err != nil {
		var none D
		return none, err
	}
	return as(dp), nil
}

// openNetfilter returns the node's netfilter side. A mistake in the node's
// configuration is an error, beside a result that works with the defaults.
func openNetfilter(a *cniskel.Args) (*choice.Node, error) {
	o, err := options(a)
	no := choice.Options{Log: a.Log}
	if c := o.Config; c != nil {
		no.Default, no.Firewall, no.Variant, no.AdmitMark = string(c.Backend), string(c.Firewall), string(c.IPTables), c.AdmitMark
	}
	return choice.New(no), err
}

func newBridge() *cniskel.Plugin {
	as := datapathAs[bridge.Datapath](func(d *loader.Datapath) bridge.Datapath { return d })
	return bridge.New(bridge.Deps{
		IPAM:      ipam(),
		Opener:    bridge.Opener{Open: as.openForced, OpenExisting: as.openExisting},
		Netfilter: func(a *cniskel.Args) (bridge.Netfilter, error) { return openNetfilter(a) },
		Records:   attachments.Open(attachments.DefaultDir),
	})
}

func newPTP() *cniskel.Plugin {
	as := datapathAs[ptp.Datapath](func(d *loader.Datapath) ptp.Datapath { return d })
	return ptp.New(ptp.Deps{
		IPAM:      ipam(),
		Opener:    ptp.Opener{Open: as.openForced, OpenExisting: as.openExisting},
		Netfilter: func(a *cniskel.Args) (ptp.Netfilter, error) { return openNetfilter(a) },
		Records:   attachments.Open(attachments.DefaultDir),
	})
}

func newPortmap() *cniskel.Plugin {
	as := datapathAs[portmap.Datapath](func(d *loader.Datapath) portmap.Datapath { return d })
	return portmap.New(portmap.Deps{
		Opener:    portmap.Opener{Open: as.openForced, OpenExisting: as.openExisting},
		Netfilter: func(a *cniskel.Args) (portmap.Netfilter, error) { return openNetfilter(a) },
		Resolve:   loader.Resolve,
		Records:   attachments.Open(attachments.DefaultDir),
		Conflicts: func(a *cniskel.Args) (nodeconf.Conflicts, error) {
			o, err := options(a)
			if err != nil {
				return "", err
			}
			return o.Config.HostPortConflicts, nil
		},
		TunnelsFile: nodeports.TunnelsFile,
	})
}

func newFirewall() *cniskel.Plugin {
	as := datapathAs[firewall.Datapath](func(d *loader.Datapath) firewall.Datapath { return d })
	return firewall.New(firewall.Deps{
		Opener:    firewall.Opener{Open: as.openForced, OpenExisting: as.openExisting},
		Netfilter: func(a *cniskel.Args) (firewall.Netfilter, error) { return openNetfilter(a) },
		Resolve:   loader.ResolvePodns,
		Records:   attachments.Open(attachments.DefaultDir),
	})
}

func newTuning() *cniskel.Plugin {
	return tuning.New(tuning.Deps{
		Match:        sysctlallow.ByHelper,
		OpenExisting: datapathAs[tuning.Datapath](func(d *loader.Datapath) tuning.Datapath { return d }).openExisting,
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
	as := datapathAs[bandwidth.Datapath](func(d *loader.Datapath) bandwidth.Datapath { return d })
	return bandwidth.New(bandwidth.Deps{
		Opener: bandwidth.Opener{Open: as.open, OpenExisting: as.openExisting},
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
