// SPDX-License-Identifier: Apache-2.0

// Package macvlan is the main plugin that gives a pod an interface with a MAC
// address of its own on the network of one of the node's interfaces. What it has
// in common with its relatives, state included, is in internal/podlink.
package macvlan

import (
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/main/internal/cniops"
	"github.com/sluice-cni/sluice/plugins/main/internal/sublink"
)

// Name is the plugin's type, its section in an attachment record, and the
// kernel's name of the device.
const Name = "macvlan"

// Deps are the plugin's dependencies.
type Deps = sublink.Deps

// New returns the plugin.
func New(d Deps) *cniskel.Plugin {
	return sublink.New(sublink.Kind{
		Name: Name, Parse: parse,
		Busy: `a master takes either one macvlan of mode "passthru" or any number of the other modes, and none while it is a bridge's port or carries ipvlans`,
	}, d)
}

// conf is the network configuration; README.md describes the keys.
type conf struct {
	sublink.Conf
	sublink.MasterConf

	Mode       string `json:"mode"`
	MAC        string `json:"mac"`
	BCQueueLen uint32 `json:"bcqueuelen"`
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
	mac, err := cniops.MAC(a, &c.Common, c.MAC)
	if err != nil {
		return nil, err
	}
	return &sublink.Request{
		Conf: c.Conf, Master: c.MasterConf, HasMaster: true, WithinMaster: true, Announce: true,
		Spec: rtnl.SubSpec{MAC: mac, Sub: rtnl.Sub{MacvlanMode: mode, BCQueueLen: c.BCQueueLen}},
	}, nil
}

func modeOf(s string) (uint32, error) {
	switch s {
	case "", "bridge":
		return rtnl.MacvlanBridge, nil
	case "private":
		return rtnl.MacvlanPrivate, nil
	case "vepa":
		return rtnl.MacvlanVEPA, nil
	case "passthru":
		return rtnl.MacvlanPassthru, nil
	}
	return 0, cnierr.Config("mode", s, `must be "bridge", "private", "vepa" or "passthru"`)
}
