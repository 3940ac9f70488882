// SPDX-License-Identifier: Apache-2.0

// Package vlan is the main plugin that gives a pod an interface in one VLAN of
// one of the node's interfaces. What it has in common with its relatives, state
// included, is in internal/podlink.
package vlan

import (
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/main/internal/sublink"
)

// Name is the plugin's type, its section in an attachment record, and the
// kernel's name of the device.
const Name = "vlan"

const maxVLAN = 4094

// Deps are the plugin's dependencies.
type Deps = sublink.Deps

// New returns the plugin.
func New(d Deps) *cniskel.Plugin {
	return sublink.New(sublink.Kind{Name: Name, Parse: parse}, d)
}

// conf is the network configuration; README.md describes the keys.
type conf struct {
	sublink.Conf
	sublink.MasterConf

	VLANID int `json:"vlanId"`
}

func parse(a *cniskel.Args) (*sublink.Request, error) {
	var c conf
	if err := cniconf.Load(a.StdinData, &c); err != nil {
		return nil, err
	}
	if c.Master == "" {
		return nil, cnierr.Config("master", "", "the name of an interface is required")
	}
	if c.VLANID < 0 || c.VLANID > maxVLAN {
		return nil, cnierr.Config("vlanId", c.VLANID, "must be 0 to 4094")
	}
	return &sublink.Request{
		Conf: c.Conf, Master: c.MasterConf, HasMaster: true, WithinMaster: true, Announce: true, NeedIPAM: true,
		Spec: rtnl.SubSpec{Sub: rtnl.Sub{VLANID: uint16(c.VLANID)}},
	}, nil
}
