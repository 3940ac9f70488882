// SPDX-License-Identifier: Apache-2.0

package install

// The programs that plugins are names of.
const (
	Multicall = "sluice-cni"
	DHCP      = "sluice-dhcp"
)

// Program is a binary and the plugins that it is.
type Program struct {
	Name    string
	Plugins []string
}

// Programs returns all of them. dhcp is a program of its own because of what it talks with its daemon (package gob) and with
// servers: initialising that would take 2 to 3 % of every ADD of the others.
func Programs() []Program {
	return []Program{
		{Multicall, []string{
			"bridge", "loopback", "host-device", "tap",
			"ptp", "macvlan", "ipvlan", "vlan", "dummy",
			"host-local", "static",
			"tuning", "portmap", "firewall", "bandwidth", "flannel", "sbr", "vrf",
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
