// SPDX-License-Identifier: Apache-2.0

package e2etest

import (
	"encoding/json"
	"maps"
	"net/netip"
	"testing"
)

// Network describes a conflist. The zero value is a dual-stack bridge with
// masquerade, portmap and firewall.
type Network struct {
	Name    string     // "net0"
	Main    string     // "bridge", or "ptp"
	Bridge  string     // "cni0"
	Subnets []string   // 10.1.0.0/16 and fd00:10:1::/64
	NoMasq  bool       // without ipMasq
	Plugins []string   // the chain after the first plugin; portmap and firewall
	Extra   Attributes // keys added to the first plugin
	IPAM    Attributes // keys added to ipam
	Portmap Attributes // keys added to portmap
	Version string     // "1.1.0"

	Firewall  Attributes // keys added to firewall
	Bandwidth Attributes // keys added to bandwidth
}

// Attributes are keys of a JSON object.
type Attributes map[string]any

// Net0 is the first network: the zero Network.
func Net0() Network { return Network{} }

// Net1 is a second network, with a bridge of its own.
func Net1() Network {
	return Network{Name: "net1", Bridge: "cni1", Subnets: []string{"10.2.0.0/16", "fd00:10:2::/64"}}
}

// PTPNetwork is a dual-stack network of point-to-point links.
func PTPNetwork() Network { return Network{Main: "ptp"} }

// LANNetwork is a network of interfaces on the node's eth0 (macvlan, ipvlan, vlan ...).
// Their addresses are the uplink's own subnets, so the client is a neighbour. extra adds
// keys to the plugin.
func LANNetwork(plugin string, extra Attributes) Network {
	n := Network{Main: plugin, NoMasq: true, Plugins: []string{}, Extra: Attributes{"master": "eth0"}, IPAM: Attributes{
		"ranges": []any{
			[]Attributes{{"subnet": "192.0.2.0/24", "rangeStart": "192.0.2.100", "gateway": "192.0.2.2"}},
			[]Attributes{{"subnet": "2001:db8:1::/64", "rangeStart": "2001:db8:1::100", "gateway": "2001:db8:1::2"}},
		},
	}}
	for k, v := range extra {
		n.Extra[k] = v
	}
	return n
}

// Conflist is the network configuration list, JSON.
func (n Network) Conflist(t testing.TB) []byte {
	t.Helper()
	plugins := []Attributes{n.mainPlugin()}
	chain := n.Plugins
	if chain == nil {
		chain = []string{"portmap", "firewall"}
	}
	for _, name := range chain {
		switch name {
		case "portmap":
			p := Attributes{"type": "portmap", "capabilities": Attributes{"portMappings": true}}
			maps.Copy(p, n.Portmap)
			plugins = append(plugins, p)
		case "firewall":
			p := Attributes{"type": "firewall"}
			maps.Copy(p, n.Firewall)
			plugins = append(plugins, p)
		case "bandwidth":
			p := Attributes{"type": "bandwidth", "capabilities": Attributes{"bandwidth": true}}
			maps.Copy(p, n.Bandwidth)
			plugins = append(plugins, p)
		case "tuning":
			plugins = append(plugins, Attributes{
				"type": "tuning", "capabilities": Attributes{"mac": true},
				"sysctl": Attributes{"net.core.somaxconn": "500"},
			})
		case "tuning-bad": // refused when its turn comes
			plugins = append(plugins, Attributes{"type": "tuning", "sysctl": Attributes{"kernel.hostname": "x"}})
		default:
			plugins = append(plugins, Attributes{"type": name})
		}
	}
	list := Attributes{
		"cniVersion": orDefault(n.Version, "1.1.0"),
		"name":       orDefault(n.Name, "net0"),
		"plugins":    plugins,
	}
	b, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (n Network) mainPlugin() Attributes {
	subnets := n.Subnets
	if subnets == nil {
		subnets = []string{"10.1.0.0/16", "fd00:10:1::/64"}
	}
	var ranges []any
	for _, s := range subnets {
		ranges = append(ranges, []Attributes{{"subnet": s}})
	}
	ipam := Attributes{
		"type": "host-local", "ranges": ranges,
		"routes": []Attributes{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}},
	}
	maps.Copy(ipam, n.IPAM)
	b := Attributes{"type": orDefault(n.Main, "bridge"), "ipMasq": !n.NoMasq, "capabilities": Attributes{"ips": true}, "ipam": ipam}
	if b["type"] == "bridge" {
		b["bridge"], b["isGateway"] = orDefault(n.Bridge, "cni0"), true
	}
	maps.Copy(b, n.Extra)
	return b
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// Merge returns base with the keys of over added or replaced.
func Merge(base, over Attributes) Attributes {
	out := Attributes{}
	for _, m := range []Attributes{base, over} {
		for k, v := range m {
			out[k] = v
		}
	}
	return out
}

// BandwidthLimits are keys of the bandwidth plugin: direction is "ingress" or "egress",
// rate bits per second, burst bits.
func BandwidthLimits(direction string, rate, burst int) Attributes {
	return Attributes{direction + "Rate": rate, direction + "Burst": burst}
}

// PortMapping is one entry of the portMappings capability.
type PortMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`

	AllowedSources *[]string `json:"allowedSources,omitempty"`
}

// TCP maps a TCP port of the node to one of the pod.
func TCP(host, container int) PortMapping {
	return PortMapping{HostPort: host, ContainerPort: container, Protocol: "tcp"}
}

// UDP maps a UDP port of the node to one of the pod.
func UDP(host, container int) PortMapping {
	return PortMapping{HostPort: host, ContainerPort: container, Protocol: "udp"}
}

// OnAddress returns the mapping bound to one address of the node (hostIP).
func (m PortMapping) OnAddress(hostIP netip.Addr) PortMapping {
	m.HostIP = hostIP.String()
	return m
}

// AllowedFrom returns the mapping limited to networks (allowedSources).
func (m PortMapping) AllowedFrom(nets ...string) PortMapping {
	nets = append([]string{}, nets...) // an empty list is not none
	m.AllowedSources = &nets
	return m
}
