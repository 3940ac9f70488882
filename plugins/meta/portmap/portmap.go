// SPDX-License-Identifier: Apache-2.0

// Package portmap is the chained plugin that publishes ports of a pod on the
// node (the portMappings capability). It owns the entries of the hostPort map
// whose owner is its attachment and the publish feature of the attachment's
// endpoint; programs, maps and devices belong to the loader.
//
// Two kinds of back ends carry it out, the eBPF datapath and netfilter tables.
// What the chosen one cannot do goes to another or is refused by name (CNI error
// 2), never parsed and ignored.
package portmap

import (
	"context"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/version"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
	"github.com/sluice-cni/sluice/plugins/internal/gc"
)

// Name is the plugin's type, and its section in an attachment record.
const Name = "portmap"

// Ports is the part of the datapath that publishes ports.
type Ports interface {
	Publish(ctx context.Context, owner uint64, ports []loader.HostPort) error
	Unpublish(ctx context.Context, owner uint64, keys []loader.HostPort) error
	CheckPorts(ctx context.Context, owner uint64, ports []loader.HostPort) error
}

// Datapath is what the plugin needs of *loader.Datapath.
type Datapath interface {
	backend.Datapath
	Ports
}

// Opener opens the node's datapath.
type Opener = backend.Opener[Datapath]

// Deps are the plugin's dependencies. Netfilter may be nil.
type Deps struct {
	Opener
	// Resolve finds the host end of a pod's interface.
	Resolve func(ctx context.Context, netnsPath, ifname string) (loader.Endpoint, error)
	Records *attachments.Dir
	// Netfilter returns the node's other way, with an error if the node's
	// configuration cannot be read; it can be used with the defaults then. Nil:
	// there is only eBPF.
	Netfilter func(a *cniskel.Args) (Netfilter, error)
}

type plugin struct{ Deps }

// New returns the plugin.
func New(d Deps) *cniskel.Plugin {
	p := &plugin{d}
	return &cniskel.Plugin{
		Name:     Name,
		About:    version.About(Name),
		Versions: version.All(),
		Add:      p.add,
		Del:      p.del,
		Check:    p.check,
		GC:       gc.Collector{List: d.Records.List, Detach: p.detach, Sweep: p.chooser().Sweep}.GC,
		Status:   p.status,
	}
}

// section is what an attachment record holds of this plugin: the keys DEL has
// to take out. Its JSON is read by later versions.
type section struct {
	Ports []portKey `json:"ports"`
	// Localnet is the device whose route_localnet this attachment relies on.
	Localnet string `json:"localnet,omitempty"`
}
