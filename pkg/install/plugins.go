// SPDX-License-Identifier: Apache-2.0

package install

// Plugins returns the names sluice-cni answers to, in the order of a listing.
func Plugins() []string {
	return []string{
		"bridge", "loopback", "host-device", "tap",
		"ptp", "macvlan", "ipvlan", "vlan", "dummy",
		"host-local", "static", "dhcp",
		"tuning", "portmap", "firewall", "bandwidth", "flannel", "sbr", "vrf",
	}
}
