// SPDX-License-Identifier: Apache-2.0

// Package sublink is a main plugin whose attachment is one interface in the pod
// and nothing on the node: macvlan, ipvlan, vlan and dummy, which differ in the
// keys they read and the message they send to the kernel. Each of them says what
// it wants by a Request.
//
// It owns the interface and the plugin's section of the attachment record, by
// which DEL and GC find it, also under another name.
package sublink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/version"
	"github.com/sluice-cni/sluice/plugins/main/internal/cniops"
	"github.com/sluice-cni/sluice/plugins/main/internal/ipam"
)

// Deps are a plugin's dependencies. Both are required.
type Deps struct {
	IPAM    ipam.Plugin
	Records *attachments.Dir
}

// Kind is one plugin. Its type, its section in a record and the kernel's name of
// its devices are one word.
type Kind struct {
	Name string
	// Parse validates everything that can be validated without looking at the
	// kernel. Errors name key and value.
	Parse func(a *cniskel.Args) (*Request, error)
	// Busy says why the kernel may answer EBUSY or EINVAL; empty where nothing
	// better is known.
	Busy string
}

// Conf holds the keys that these plugins have in common. Embed it in a plugin's
// configuration.
type Conf struct {
	cniconf.Common
	MTU       int             `json:"mtu"`
	EnableDAD bool            `json:"enabledad"`
	DNS       types.DNS       `json:"dns"`
	IPAM      json.RawMessage `json:"ipam"`
}

// MasterConf holds the keys of plugins whose interface sits on another one.
type MasterConf struct {
	Master          string `json:"master"`
	LinkInContainer bool   `json:"linkInContainer"`
}

// Request is a validated call.
type Request struct {
	Conf
	Args *cniskel.Args
	// Spec is the wanted interface without its name, parent and namespace.
	Spec rtnl.SubSpec

	// HasMaster says that the interface sits on another one: Master, or with an
	// empty name the device of the first default route.
	HasMaster bool
	Master    MasterConf
	// WithinMaster refuses an MTU that is greater than the master's.
	WithinMaster bool
	// Announce tells the neighbours about the addresses.
	Announce bool
	// NeedIPAM refuses a configuration without ipam.
	NeedIPAM bool
	// MayChain says that addresses and master may come with prevResult, which
	// STATUS does not have.
	MayChain bool
	// Given is a result to take the addresses from instead of from IPAM.
	Given *types100.Result

	ref      attachments.ID
	ipamType string
}

type plugin struct {
	Deps
	Kind
}

// New returns the plugin.
func New(k Kind, d Deps) *cniskel.Plugin {
	p := &plugin{d, k}
	return &cniskel.Plugin{
		Name:     k.Name,
		Usage:    version.About(k.Name),
		Versions: version.All(),
		Add:      p.add,
		Del:      p.del,
		Check:    p.check,
		GC:       p.gc,
		Status:   p.status,
	}
}

// parse is Kind.Parse and what all kinds have in common.
func (p *plugin) parse(a *cniskel.Args, status bool) (*Request, error) {
	r, err := p.Parse(a)
	if err != nil {
		return nil, err
	}
	r.Args, r.ref = a, a.Ref(r.Name)
	r.Spec.Kind, r.Spec.MTU = p.Name, r.MTU
	if r.ipamType, err = ipam.Type(r.IPAM); err != nil {
		return nil, err
	}
	later := status && r.MayChain // what a chain brings, STATUS is not told
	if r.ipamType == "" && r.NeedIPAM && r.Given == nil && !later {
		return nil, cnierr.Config("ipam.type", "", p.Name+" needs an IPAM plugin")
	}
	if err := cniops.CheckMTU(r.MTU); err != nil {
		return nil, err
	}
	if why := cniconf.BadLinkName(r.Master.Master); why != "" {
		return nil, cnierr.Config("master", r.Master.Master, why)
	}
	if r.Given != nil { // there will be an address
		return r, nil
	}
	if err := cniops.CheckResult(r.ipamType, r.Version()); err != nil {
		return nil, err
	}
	return r, nil
}

// section is what an attachment record holds. Its JSON is read by later versions.
type section struct {
	NetNS  uint64          `json:"netnsInode,omitempty"` // of the pod
	Index  int             `json:"ifIndex,omitempty"`    // 0 until ADD completes
	Master string          `json:"master,omitempty"`
	Addrs  []netip.Prefix  `json:"addrs,omitempty"`
	IPAM   json.RawMessage `json:"ipam,omitempty"` // the configuration's, for a DEL that comes without one
}

// remembered is the record's section, if there is one that can be read.
type remembered struct {
	section
	found bool
	netns string // recorded path
}

func (p *plugin) loadSection(ref attachments.ID) (r remembered) {
	r.section, r.found, r.netns = attachments.ReadSection[section](p.Records, ref, p.Name)
	return r
}

// findMaster returns the link that the interface is to sit on, in the namespace
// of h. Changes nothing.
func (r *Request) findMaster(h *rtnl.Handle) (rtnl.Link, error) {
	name := r.Master.Master
	if name == "" {
		return defaultDevice(h)
	}
	l, err := h.LinkByName(name)
	if errors.Is(err, rtnl.ErrNotFound) {
		return l, cnierr.Config("master", name, "no such interface"+r.where())
	}
	return l, cnierr.Wrap(cnierr.CodeKernel, err, "look up master %s", name)
}

func (r *Request) where() string {
	if r.Master.LinkInContainer {
		return " in the pod (linkInContainer)"
	}
	return " on the node"
}

// defaultDevice returns the device of the first default route: IPv4's best, else
// IPv6's.
func defaultDevice(h *rtnl.Handle) (rtnl.Link, error) {
	routes, err := h.Routes(rtnl.FamilyAll)
	if err != nil {
		return rtnl.Link{}, cnierr.Wrap(cnierr.CodeKernel, err, "look for a default route")
	}
	for _, r := range routes {
		if r.Dst.Bits() != 0 || r.LinkIndex == 0 || r.Type != unix.RTN_UNICAST { // IPv6 hangs an unreachable one on lo
			continue
		}
		l, err := h.LinkByIndex(r.LinkIndex)
		return l, cnierr.Wrap(cnierr.CodeKernel, err, "look up the device of the default route")
	}
	return rtnl.Link{}, cnierr.Config("master", "", "none is given, and there is no default route to take one from")
}

// checkMTU refuses an MTU that the kernel would not let the interface have, and
// warns of one that it would.
func (r *Request) checkMTU(master rtnl.Link) error {
	if r.MTU <= master.MTU {
		return nil
	}
	if r.WithinMaster {
		return cnierr.Config("mtu", r.MTU, fmt.Sprintf("is more than the %d of master %s", master.MTU, master.Name))
	}
	r.Args.Log.Warn(fmt.Sprintf("mtu %d is more than the %d of master %s, which drops longer packets", r.MTU, master.MTU, master.Name))
	return nil
}

// status says whether an ADD would work now. What is in a pod, or comes with a
// chain, cannot be asked for.
func (p *plugin) status(ctx context.Context, a *cniskel.Args) error {
	req, err := p.parse(a, true)
	if err != nil {
		return err
	}
	host, err := rtnl.New()
	if err != nil {
		return cnierr.Wrap(cnierr.CodeUnavailable, err, "open the host's network namespace")
	}
	defer host.Close()
	errs := []error{cnierr.Wrap(cnierr.CodeUnavailable, host.Supports(p.Name), "this kernel has no %s", p.Name)}
	chained := req.MayChain && req.Master.Master == "" && req.ipamType == ""
	if req.HasMaster && !req.Master.LinkInContainer && !chained {
		master, err := req.findMaster(host)
		if err == nil && req.MTU > 0 {
			err = req.checkMTU(master)
		}
		errs = append(errs, cnierr.Wrap(cnierr.CodeUnavailable, err, "an interface cannot be made now"))
	}
	if req.ipamType != "" {
		errs = append(errs, p.IPAM.Status(ctx, a, req.ipamType))
	}
	return errors.Join(errs...)
}
