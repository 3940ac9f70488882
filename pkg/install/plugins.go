// SPDX-License-Identifier: Apache-2.0

package install

import "slices"

// The programs that plugins are names of.
const (
	Multicall = "sluice-cni"
	Link      = "sluice-link"
	DHCP      = "sluice-dhcp"
)

// Program is a binary and the plugins that it is laid under the names of.
type Program struct {
	Name    string
	Plugins []string
}

// Among returns which of the names are the program's.
func (p Program) Among(names []string) (of []string) {
	for _, name := range p.Plugins {
		if slices.Contains(names, name) {
			of = append(of, name)
		}
	}
	return of
}

// Programs returns all of them. A plugin lives for some milliseconds, and a tenth to a quarter of an ADD would go into making
// ready, and into walking past, what it does not need: sluice-link is the plugins that need no BPF (sluice-cni is they, too, for
// those who link names by hand), and sluice-dhcp has what dhcp talks with its daemon (package gob) and with servers.
func Programs() []Program {
	return []Program{
		{Multicall, []string{"bridge", "ptp", "tuning", "portmap", "firewall", "bandwidth", "flannel"}},
		{Link, []string{
			"loopback", "host-device", "tap", "macvlan", "ipvlan", "vlan", "dummy",
			"host-local", "static", "sbr", "vrf",
		}},
		{DHCP, []string{"dhcp"}},
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
