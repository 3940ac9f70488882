// SPDX-License-Identifier: Apache-2.0

package install

import (
	"path/filepath"
	"slices"

	"github.com/sluice-cni/sluice/pkg/helperproc"
)

// The programs that implement plugins.
const (
	Multicall = "sluice-cni"
	DHCP      = "sluice-dhcp"
	IPAM      = "sluice-ipam"
)

// Helper is the program that those of Multicall run for what they do not have themselves.
const Helper = helperproc.Name

// IPAMStore is the program that IPAM runs for what it does not have itself.
const IPAMStore = "sluice-ipam-store"

// Program is a binary and the plugins that it implements.
type Program struct {
	Name    string
	Plugins []string
	// Needs is a program that must be in the same directory.
	Needs string
}

// Sources returns what to install for the plugins named: their programs in dir, and the programs that those need.
func Sources(dir string, plugins []string) []Source {
	var out []Source
	for _, p := range Programs() {
		src := Source{Path: filepath.Join(dir, p.Name), Program: p.Name}
		for _, name := range p.Plugins {
			if slices.Contains(plugins, name) {
				src.Names = append(src.Names, name)
			}
		}
		if len(src.Names) == 0 {
			continue
		}
		if p.Needs != "" { // first: a new plugin must not meet an old helper
			out = append(out, Source{Path: filepath.Join(dir, p.Needs), Program: p.Needs})
		}
		out = append(out, src)
	}
	return out
}

// Programs returns all of them. Start-up is 10 to 25 % of an ADD, so code that most calls do not need is in other binaries: dhcp
// (gob, a DHCP client), sluice-helper (eBPF loader, D-Bus, regexp) and sluice-ipam-store (clients of Kubernetes and etcd).
// sluice-ipam is both a program and the plugin of that name.
func Programs() []Program {
	return []Program{
		{Name: Multicall, Needs: Helper, Plugins: []string{
			"bridge", "ptp", "macvlan", "ipvlan", "vlan", "host-device", "tap", "dummy", "loopback", "vrf",
			"host-local", "static", "portmap", "firewall", "bandwidth", "tuning", "sbr", "flannel",
		}},
		{Name: DHCP, Plugins: []string{"dhcp"}},
		{Name: IPAM, Needs: IPAMStore, Plugins: []string{IPAM, "whereabouts"}},
		{Name: Helper},
		{Name: IPAMStore},
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
