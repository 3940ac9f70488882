// SPDX-License-Identifier: Apache-2.0

// Package dummy is the main plugin that gives a pod an interface which leads
// nowhere, to hold addresses. What it has in common with its relatives, state
// included, is in internal/podlink.
package dummy

import (
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/plugins/main/internal/sublink"
)

// Name is the plugin's type, its section in an attachment record, and the
// kernel's name of the device.
const Name = "dummy"

// Deps are the plugin's dependencies.
type Deps = sublink.Deps

// New returns the plugin.
func New(d Deps) *cniskel.Plugin {
	return sublink.New(sublink.Kind{Name: Name, Parse: parse}, d)
}

// conf is the network configuration; README.md describes the keys.
type conf struct{ sublink.Conf }

func parse(a *cniskel.Args) (*sublink.Request, error) {
	var c conf
	if err := cniconf.Load(a.StdinData, &c); err != nil {
		return nil, err
	}
	return &sublink.Request{Conf: c.Conf, NeedIPAM: true}, nil
}
