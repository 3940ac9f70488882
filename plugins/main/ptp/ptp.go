// SPDX-License-Identifier: Apache-2.0

package ptp

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/version"
	"github.com/sluice-cni/sluice/plugins/main/internal/cniops"
	"github.com/sluice-cni/sluice/plugins/main/internal/ipam"
	"github.com/sluice-cni/sluice/plugins/main/internal/masquerade"
	"github.com/sluice-cni/sluice/plugins/main/internal/veth"
)

// Name is the plugin's type, and its section in an attachment record.
const Name = "ptp"

// Netfilter is what the plugin needs of *choice.Node.
type Netfilter = masquerade.Netfilter

// Opener opens the node's datapath.
type Opener = masquerade.Opener

// Deps are the plugin's dependencies. All but Netfilter are required.
type Deps struct {
	IPAM    ipam.Plugin
	Records *attachments.Dir
	Opener
	// Netfilter returns the node's other way to masquerade; nil: there is none.
	Netfilter func(a *cniskel.Args) (Netfilter, error)
}

type plugin struct{ Deps }

func (p *plugin) masq() masquerade.Node {
	return masquerade.Node{Opener: p.Opener, Netfilter: p.Netfilter, List: p.Records.List}
}

// New returns the plugin.
func New(d Deps) *cniskel.Plugin {
	p := &plugin{d}
	return &cniskel.Plugin{
		Name:     Name,
		Usage:    version.About(Name),
		Versions: version.All(),
		Add:      p.add,
		Del:      p.del,
		Check:    p.check,
		GC:       p.gc,
		Status:   p.status,
	}
}

// conf is the network configuration; README.md describes the keys.
type conf struct {
	cniconf.Common
	masquerade.Conf
	veth.PairConf

	MTU  int             `json:"mtu"`
	DNS  types.DNS       `json:"dns"`
	IPAM json.RawMessage `json:"ipam"`
}

// request is a validated call.
type request struct {
	conf
	args     *cniskel.Args
	ref      attachments.ID
	ipamType string
}

// parse decodes and validates everything that can be validated without looking
// at the kernel. Errors name key and value.
func parse(a *cniskel.Args) (*request, error) {
	r := &request{args: a}
	err := cniconf.Load(a.StdinData, &r.conf)
	if err != nil {
		return nil, err
	}
	r.ref = a.Ref(r.Name)
	if r.ipamType, err = ipam.Type(r.IPAM); err != nil {
		return nil, err
	}
	if r.ipamType == "" {
		return nil, cnierr.Config("ipam.type", "", "a pod on a point-to-point link needs an address")
	}
	if err := cniops.CheckMTU(r.MTU); err != nil {
		return nil, err
	}
	if err := r.ValidatePair(); err != nil {
		return nil, err
	}
	return r, r.Validate()
}

// section is what an attachment record holds of this plugin. Its JSON is read
// by later versions.
type section struct {
	veth.Recorded
	Addrs      []netip.Prefix  `json:"addrs,omitempty"`
	Masquerade string          `json:"masquerade,omitempty"` // the backend that does it; empty: none
	IPAM       json.RawMessage `json:"ipam,omitempty"`       // the configuration's, for a DEL that comes without one
}

// remembered is the record's section, if there is one that can be read.
type remembered struct {
	section
	found bool
}

func (p *plugin) loadSection(ref attachments.ID) (r remembered) {
	r.section, r.found, _ = attachments.ReadSection[section](p.Records, ref, Name)
	return r
}

func (p *plugin) record(ref attachments.ID) cniops.Record {
	return cniops.Record{Dir: p.Records, ID: ref, Section: Name}
}

// endpoint describes the pod to the datapath. The pod's gateway is the host veth.
func endpoint(ref attachments.ID, host, pod rtnl.Link, addrs []netip.Prefix) loader.Endpoint {
	return loader.Endpoint{
		Ref:          ref,
		HostIfindex:  host.Index,
		RouteIfindex: host.Index,
		HostIfName:   host.Name,
		Netkit:       pod.Kind == rtnl.KindNetkit,
		MAC:          pod.MAC,
		GatewayMAC:   host.MAC,
		MTU:          pod.MTU,
		Addrs:        addrs,
	}
}

// status says whether an ADD would work now.
func (p *plugin) status(ctx context.Context, a *cniskel.Args) error {
	req, err := parse(a)
	if err != nil {
		return err
	}
	var errs []error
	if req.IPMasq {
		errs = append(errs, p.masq().Status(ctx, a, req.Conf))
	}
	return errors.Join(append(errs, p.IPAM.Status(ctx, a, req.ipamType))...)
}
