// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
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
	return loader.Options{Config: conf, Log: a.Log}, nil
}

// open is loader.Open for plugins that have chosen eBPF themselves.
func open(ctx context.Context, a *cniskel.Args) (loader.Interface, error) {
	o, err := options(a)
	if err != nil {
		return nil, err
	}
	return orNil(loader.Open(ctx, o))
}

// openAsked is open for a plugin that takes eBPF only where the node does not ask for another backend.
func openAsked(ctx context.Context, a *cniskel.Args) (loader.Interface, error) {
	o, err := options(a)
	if err != nil {
		return nil, err
	}
	if err := o.Config.EBPFRefused(); err != nil {
		return nil, fmt.Errorf("%w: %w", loader.ErrUnavailable, err)
	}
	return orNil(loader.Open(ctx, o))
}

// openExisting is loader.OpenExisting. A mistake in the node's configuration is only logged: it must not keep a DEL from cleaning.
func openExisting(ctx context.Context, a *cniskel.Args) (loader.Interface, error) {
	o, err := options(a)
	if err != nil {
		a.Log.Warn("using the defaults for what exists", log.Error(err))
		o = loader.Options{Log: a.Log}
	}
	return orNil(loader.OpenExisting(ctx, o))
}

// orNil returns no interface at all with an error: one that holds a nil pointer is not nil.
func orNil(dp *loader.Datapath, err error) (loader.Interface, error) {
	if err != nil {
		return nil, err
	}
	return dp, nil
}

// openNetfilter returns the node's netfilter side. A mistake in the node's
// configuration is an error, beside a result that works with the defaults.
func openNetfilter(a *cniskel.Args) (portmap.Netfilter, error) {
	o, err := options(a)
	no := choice.Options{Log: a.Log}
	if c := o.Config; c != nil {
		no.Default, no.Firewall, no.Variant, no.AdmitMark = string(c.Backend), string(c.Firewall), string(c.IPTables), c.AdmitMark
	}
	return choice.New(no), err
}

func newBridge() *cniskel.Plugin {
	return bridge.New(bridge.Deps{
		IPAM:      ipam(),
		Opener:    bridge.Opener{Open: open, OpenExisting: openExisting},
		Netfilter: openNetfilter,
		Records:   attachments.Open(attachments.DefaultDir),
	})
}

func newPTP() *cniskel.Plugin {
	return ptp.New(ptp.Deps{
		IPAM:      ipam(),
		Opener:    ptp.Opener{Open: open, OpenExisting: openExisting},
		Netfilter: openNetfilter,
		Records:   attachments.Open(attachments.DefaultDir),
	})
}

func newPortmap() *cniskel.Plugin {
	return portmap.New(portmap.Deps{
		Opener:    portmap.Opener{Open: open, OpenExisting: openExisting},
		Netfilter: openNetfilter,
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
	return firewall.New(firewall.Deps{
		Opener:    firewall.Opener{Open: open, OpenExisting: openExisting},
		Netfilter: openNetfilter,
		Resolve:   loader.ResolvePodns,
		Records:   attachments.Open(attachments.DefaultDir),
	})
}

func newTuning() *cniskel.Plugin {
	return tuning.New(tuning.Deps{
		Match:        sysctlallow.ByHelper,
		OpenExisting: openExisting,
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
		Opener: bandwidth.Opener{Open: openAsked, OpenExisting: openExisting},
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
