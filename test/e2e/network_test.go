// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"maps"
	"net/netip"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// mapping is one entry of the portMappings capability.
type mapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`

	AllowedSources *[]string `json:"allowedSources,omitempty"`
}

func tcp(host, container int) mapping {
	return mapping{HostPort: host, ContainerPort: container, Protocol: "tcp"}
}

func udp(host, container int) mapping {
	return mapping{HostPort: host, ContainerPort: container, Protocol: "udp"}
}

// on binds a mapping to one address of the node.
func (m mapping) on(hostIP netip.Addr) mapping {
	m.HostIP = hostIP.String()
	return m
}

// network describes a conflist. The zero value is a dual-stack bridge with
// masquerade, portmap and firewall.
type network struct {
	name    string     // "net0"
	main    string     // "bridge", or "ptp"
	bridge  string     // "cni0"
	subnets []string   // 10.1.0.0/16 and fd00:10:1::/64
	noMasq  bool       // without ipMasq
	plugins []string   // the chain after the first plugin; portmap and firewall
	extra   attributes // keys added to the first plugin
	ipam    attributes // keys added to ipam
	portmap attributes // keys added to portmap
	version string     // "1.1.0"

	firewall  attributes // keys added to firewall
	bandwidth attributes // keys added to bandwidth
}

type attributes map[string]any

func net0() network { return network{} }

// net1 is a second network with a bridge of its own.
func net1() network {
	return network{name: "net1", bridge: "cni1", subnets: []string{"10.2.0.0/16", "fd00:10:2::/64"}}
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

func (n network) conflist(t testing.TB) []byte {
	t.Helper()
	plugins := []attributes{n.mainPlugin()}
	chain := n.plugins
	if chain == nil {
		chain = []string{"portmap", "firewall"}
	}
	for _, name := range chain {
		switch name {
		case "portmap":
			p := attributes{"type": "portmap", "capabilities": attributes{"portMappings": true}}
			maps.Copy(p, n.portmap)
			plugins = append(plugins, p)
		case "firewall":
			p := attributes{"type": "firewall"}
			maps.Copy(p, n.firewall)
			plugins = append(plugins, p)
		case "bandwidth":
			p := attributes{"type": "bandwidth", "capabilities": attributes{"bandwidth": true}}
			maps.Copy(p, n.bandwidth)
			plugins = append(plugins, p)
		case "tuning":
			plugins = append(plugins, attributes{
				"type": "tuning", "capabilities": attributes{"mac": true},
				"sysctl": attributes{"net.core.somaxconn": "500"},
			})
		case "tuning-bad": // refused when its turn comes
			plugins = append(plugins, attributes{"type": "tuning", "sysctl": attributes{"kernel.hostname": "x"}})
		default:
			plugins = append(plugins, attributes{"type": name})
		}
	}
	list := attributes{
		"cniVersion": orDefault(n.version, "1.1.0"),
		"name":       orDefault(n.name, "net0"),
		"plugins":    plugins,
	}
	b, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (n network) mainPlugin() attributes {
	subnets := n.subnets
	if subnets == nil {
		subnets = []string{"10.1.0.0/16", "fd00:10:1::/64"}
	}
	var ranges []any
	for _, s := range subnets {
		ranges = append(ranges, []attributes{{"subnet": s}})
	}
	ipam := attributes{
		"type": "host-local", "ranges": ranges,
		"routes": []attributes{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}},
	}
	maps.Copy(ipam, n.ipam)
	b := attributes{"type": orDefault(n.main, "bridge"), "ipMasq": !n.noMasq, "capabilities": attributes{"ips": true}, "ipam": ipam}
	if b["type"] == "bridge" {
		b["bridge"], b["isGateway"] = orDefault(n.bridge, "cni0"), true
	}
	maps.Copy(b, n.extra)
	return b
}

// family is IPv4 or IPv6, for the tests that hold for both.
type family struct {
	name   string
	suffix string // of Go's network names: "4", "6"
	of     func([]netip.Prefix) netip.Addr
	pod    func(*pod) netip.Addr
	gw     string // of net0
	any    string // to listen on
}

func families() []family {
	return []family{
		{"IPv4", "4", netlab.IP4, func(p *pod) netip.Addr { return p.IP4 }, "10.1.0.1", "0.0.0.0"},
		{"IPv6", "6", netlab.IP6, func(p *pod) netip.Addr { return p.IP6 }, "fd00:10:1::1", "::"},
	}
}

// eachFamily runs f once for IPv4 and once for IPv6.
func eachFamily(t *testing.T, f func(t *testing.T, fam family)) {
	t.Helper()
	for _, fam := range families() {
		t.Run(fam.name, func(t *testing.T) { f(t, fam) })
	}
}

// eachTransport runs f for TCP and UDP in both families.
func eachTransport(t *testing.T, f func(t *testing.T, fam family, proto string)) {
	t.Helper()
	eachFamily(t, func(t *testing.T, fam family) {
		for _, proto := range []string{"tcp", "udp"} {
			t.Run(proto, func(t *testing.T) { f(t, fam, proto) })
		}
	})
}

// node and client return the addresses of the two ends of an uplink.
func (f family) node(c *netlab.Client) netip.Addr   { return f.of(c.Uplink.Node) }
func (f family) client(c *netlab.Client) netip.Addr { return f.of(c.Uplink.Client) }

func at(a netip.Addr, port uint16) string { return netip.AddrPortFrom(a, port).String() }
