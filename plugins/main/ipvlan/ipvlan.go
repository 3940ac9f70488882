// SPDX-License-Identifier: Apache-2.0

// Package ipvlan is the main plugin that gives a pod an interface which shares
// the MAC address of one of the node's interfaces. It can also be chained, to
// put the pod on the interface that the plugin before it has made on the node.
// What it has in common with its relatives, state included, is in
// internal/podlink.
package ipvlan

import (
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/main/internal/sublink"
)

// Name is the plugin's type, its section in an attachment record, and the
// kernel's name of the device.
const Name = "ipvlan"

// Deps are the plugin's dependencies.
type Deps = sublink.Deps

// New returns the plugin.
func New(d Deps) *cniskel.Plugin {
	return sublink.New(sublink.Kind{
		Name: Name, Parse: parse,
		Busy: "a master takes no ipvlans while it is a bridge's port or carries macvlans",
	}, d)
}

// conf is the network configuration; README.md describes the keys.
type conf struct {
	sublink.Conf
	sublink.MasterConf

	Mode string `json:"mode"`
}

func parse(a *cniskel.Args) (*sublink.Request, error) {
	var c conf
	if err := cniconf.Load(a.StdinData, &c); err != nil {
		return nil, err
	}
	mode, err := modeOf(c.Mode)
	if err != nil {
		return nil, err
	}
	r := &sublink.Request{
		Conf: c.Conf, Master: c.MasterConf, HasMaster: true, Announce: true, NeedIPAM: true, MayChain: true,
		Spec: rtnl.SubSpec{Sub: rtnl.Sub{IPVLANMode: mode}},
	}
	prev, err := cniconf.ParseResult("prevResult", c.RawPrevResult, c.Version())
	if err != nil || prev == nil {
		return r, err
	}
	if len(prev.IPs) > 0 {
		r.Given = prev
	}
	return r, chain(r, prev, a.IfName)
}

// chain takes the master from the plugin before this one, unless it is
// configured: its single named interface. The result of this plugin itself,
// which CHECK gets, names no master.
func chain(r *sublink.Request, prev *types100.Result, ifname string) error {
	own := func(i *types100.Interface) bool { return i.Name == ifname && i.Sandbox != "" }
	if r.Master.Master != "" || slices.ContainsFunc(prev.Interfaces, own) {
		return nil
	}
	if len(prev.Interfaces) != 1 || prev.Interfaces[0].Name == "" {
		return cnierr.New(cnierr.CodeConfig, "invalid prevResult: without the key \"master\" it must have a single interface with a name", "")
	}
	r.Master.Master = prev.Interfaces[0].Name
	return nil
}

func modeOf(s string) (uint16, error) {
	switch s {
	case "", "l2":
		return rtnl.IPVLANL2, nil
	case "l3":
		return rtnl.IPVLANL3, nil
	case "l3s":
		return rtnl.IPVLANL3S, nil
	}
	return 0, cnierr.Config("mode", s, `must be "l2", "l3" or "l3s"`)
}
