// SPDX-License-Identifier: Apache-2.0

package install

import (
	"path/filepath"
	"slices"

	"github.com/sluice-cni/sluice/pkg/helperproc"
)

// The programs that plugins are names of.
const (
	Multicall = "sluice-cni"
	DHCP      = "sluice-dhcp"
)

// Helper is the program that those of Multicall run for what they do not have themselves.
const Helper = helperproc.Name

// Program is a binary and the plugins that it is laid under the names of.
type Program struct {
	Name    string
	Plugins []string
	// Needs is a program that has to lie beside it.
	Needs string
}

// Sources returns what is to be laid for the plugins named: their programs, which lie in dir, and what those need.
func Sources(dir string, plugins []string) []Source {
	var out []Source
	for _, p := range Programs() {
		src := Source{Path: filepath.Join(dir, p.Name)}
		for _, name := range p.Plugins {
			if slices.Contains(plugins, name) {
				src.Names = append(src.Names, name)
			}
		}
		if len(src.Names) == 0 {
			continue
		}
		if p.Needs != "" { // first: a new plugin finds no use in an old helper
			out = append(out, Source{Path: filepath.Join(dir, p.Needs), Names: []string{p.Needs}})
		}
		out = append(out, src)
	}
	return out
}

// Programs returns all of them. A plugin lives for some milliseconds, and a tenth to a quarter of an ADD would go into making
// ready, and into walking past, what it does not need: so dhcp is apart, which has what it talks with its daemon (package gob) and
// with servers, and so is what is needed once per boot or on few nodes, see package helper.
func Programs() []Program {
	return []Program{
		{Name: Multicall, Needs: Helper, Plugins: []string{
			"bridge", "ptp", "macvlan", "ipvlan", "vlan", "host-device", "tap", "dummy", "loopback", "vrf",
			"host-local", "static", "portmap", "firewall", "bandwidth", "tuning", "sbr", "flannel",
		}},
		{Name: DHCP, Plugins: []string{"dhcp"}},
		{Name: Helper},
	}
}

// Plugins returns the names of all plugins in the order of a listing.
func Plugins() []string {
	var names []string
	for _, p := range Programs() {
		names = append(names, p.Plugins...)
	}
	return names
}
