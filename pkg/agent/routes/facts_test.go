// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var baseTime = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// factsOf makes a node of "name age facts...": age in hours since baseTime, "-" for unknown; a fact with a slash is a pod CIDR.
func factsOf(t testing.TB, line string) Node {
	t.Helper()
	words := strings.Fields(line)
	n := Node{Name: words[0]}
	if words[1] != "-" {
		h, err := time.ParseDuration(words[1] + "h")
		if err != nil {
			t.Fatal(err)
		}
		n.Created = baseTime.Add(h)
	}
	for _, w := range words[2:] {
		if p, err := netip.ParsePrefix(w); err == nil {
			n.PodCIDRs = append(n.PodCIDRs, p)
		} else {
			n.InternalIPs = append(n.InternalIPs, netip.MustParseAddr(w))
		}
	}
	return n
}

func TestCheckFacts(t *testing.T) {
	t.Parallel()
	const self = "self - 192.0.2.1 2001:db8::1 10.1.0.0/24 fd00:1::/64"
	for name, tc := range map[string]struct {
		cluster, service []string
		nodes, want      []string
		errs             []string // parts of the errors, in any order
	}{
		"two nodes": {
			nodes: []string{"b 2 192.0.2.3 10.1.2.0/24", "a 1 192.0.2.2 10.1.1.0/24 fd00:1:0:1::/64"},
			want:  []string{"a 192.0.2.2 10.1.1.0/24 fd00:1:0:1::/64", "b 192.0.2.3 10.1.2.0/24"},
		},
		"this node itself": {nodes: []string{"self 1 192.0.2.2 10.1.1.0/24"}},
		"everything": {
			nodes: []string{"a 1 192.0.2.2 0.0.0.0/0 ::/0 10.0.0.0/7 2000::/3"},
			want:  []string{"a 192.0.2.2"},
			errs:  []string{"node a: podCIDR 0.0.0.0/0: too wide", "node a: podCIDR ::/0: too wide", "node a: podCIDR 10.0.0.0/7: too wide", "node a: podCIDR 2000::/3: too wide"},
		},
		"no networks of pods": {
			nodes: []string{"a 1 192.0.2.2 127.0.0.0/24 224.1.0.0/16 169.254.1.0/24 fe80::/64 ff02::/64 ::/112 ::ffff:10.0.0.0/120 10.1.1.1/24"},
			want:  []string{"a 192.0.2.2"},
			errs: []string{
				"podCIDR 127.0.0.0/24: no network", "podCIDR 224.1.0.0/16: no network", "podCIDR 169.254.1.0/24: no network", "podCIDR fe80::/64: no network",
				"podCIDR ff02::/64: no network", "podCIDR ::/112: no network", "podCIDR ::ffff:10.0.0.0/120: ", "podCIDR 10.1.1.1/24: not a network",
			},
		},
		"the own CIDR, whole, in part and around": {
			nodes: []string{"a 1 10.1.0.0/24", "b 1 10.1.0.128/25", "c 1 10.1.0.0/16", "d 1 fd00::/16"},
			want:  []string{"a", "b", "c", "d"},
			errs: []string{
				"node a: podCIDR 10.1.0.0/24: overlaps podCIDR 10.1.0.0/24 of node self", "node b: podCIDR 10.1.0.128/25: overlaps podCIDR 10.1.0.0/24 of node self",
				"node c: podCIDR 10.1.0.0/16: overlaps", "node d: podCIDR fd00::/16: overlaps podCIDR fd00:1::/64 of node self",
			},
		},
		"the older has it": {
			nodes: []string{"evil 9 192.0.2.9 10.1.1.0/25 fd00:1:0:1::/64", "a 1 192.0.2.2 10.1.1.0/24 fd00:1:0:1::/64"},
			want:  []string{"a 192.0.2.2 10.1.1.0/24 fd00:1:0:1::/64", "evil 192.0.2.9"},
			errs:  []string{"node evil: podCIDR 10.1.1.0/25: overlaps podCIDR 10.1.1.0/24 of node a, which has it for longer", "node evil: podCIDR fd00:1:0:1::/64: overlaps"},
		},
		"of one age": {
			nodes: []string{"a 1 10.1.1.0/24", "b 1 10.1.1.0/24", "c 1 10.1.2.0/24"},
			want:  []string{"a", "b", "c 10.1.2.0/24"},
			errs:  []string{"node a: podCIDR 10.1.1.0/24: overlaps podCIDR 10.1.1.0/24 of node b, and neither is older", "node b: podCIDR 10.1.1.0/24: overlaps"},
		},
		"an age unknown": {
			nodes: []string{"a - 10.1.1.0/24", "b 100 10.1.1.0/24"},
			want:  []string{"a", "b 10.1.1.0/24"},
			errs:  []string{"node a: podCIDR 10.1.1.0/24: overlaps"},
		},
		"one that is refused refuses no other": {
			nodes: []string{"a 1 10.1.1.0/24", "b 2 10.1.0.0/23", "c 3 10.1.1.0/25", "d 4 10.0.0.0/8"},
			want:  []string{"a 10.1.1.0/24", "b", "c", "d"},
			errs:  []string{"node b: podCIDR 10.1.0.0/23", "node c: podCIDR 10.1.1.0/25: overlaps podCIDR 10.1.1.0/24 of node a", "node d: podCIDR 10.0.0.0/8"},
		},
		"addresses of nodes": {
			nodes: []string{"a 1 192.0.2.1 0.0.0.0 127.0.0.1 224.0.0.1 255.255.255.255 192.0.2.2 ::ffff:192.0.2.2 10.1.1.0/24", "b 2 192.0.2.2 10.1.2.0/24"},
			want:  []string{"a 192.0.2.2 10.1.1.0/24", "b 192.0.2.2 10.1.2.0/24"},
			errs: []string{
				"node a: InternalIP 192.0.2.1: overlaps InternalIP 192.0.2.1 of node self", "node a: InternalIP 0.0.0.0: ", "node a: InternalIP 127.0.0.1: ",
				"node a: InternalIP 224.0.0.1: ", "node a: InternalIP 255.255.255.255: ",
			},
		},
		"a CIDR around addresses of nodes": {
			nodes: []string{"a 1 198.51.100.1 10.1.1.0/24", "b 2 198.51.100.0/24", "c 3 203.0.113.1 203.0.113.0/24", "d 4 192.0.0.0/16"},
			want:  []string{"a 198.51.100.1 10.1.1.0/24", "b", "c 203.0.113.1", "d"},
			errs: []string{
				"node b: podCIDR 198.51.100.0/24: overlaps InternalIP 198.51.100.1 of node a", "node c: podCIDR 203.0.113.0/24: holds the node's own address",
				"node d: podCIDR 192.0.0.0/16: overlaps InternalIP 192.0.2.1 of node self",
			},
		},
		"an older node cannot take a CIDR by an address in it": {
			cluster: []string{"10.1.0.0/16", "fd00:1::/32"},
			nodes:   []string{"evil 1 192.0.2.9 10.1.1.5 10.1.9.0/24", "a 2 192.0.2.2 10.1.1.0/24"},
			want:    []string{"a 192.0.2.2 10.1.1.0/24", "evil 192.0.2.9 10.1.9.0/24"},
			errs:    []string{"node evil: InternalIP 10.1.1.5: inside clusterCIDRs"},
		},
		"outside of the cluster": {
			cluster: []string{"10.1.0.0/16"}, service: []string{"10.1.128.0/20"},
			nodes: []string{"a 1 8.8.8.0/24 10.1.128.0/24 10.0.0.0/15 fd00:9::/64"},
			want:  []string{"a fd00:9::/64"},
			errs:  []string{"podCIDR 8.8.8.0/24: not inside clusterCIDRs", "podCIDR 10.1.128.0/24: overlaps serviceCIDRs", "podCIDR 10.0.0.0/15: "},
		},
		"too many": {
			nodes: []string{"a 1 10.2.0.0/24 10.2.1.0/24 10.2.2.0/24 10.2.3.0/24 10.2.4.0/24 10.2.5.0/24 10.2.6.0/24 10.2.7.0/24 10.2.8.0/24", "b 1 10.1.2.0/24"},
			want:  []string{"b 10.1.2.0/24"},
			errs:  []string{"node a: 9 podCIDRs and 0 InternalIPs: at most"},
		},
		"twice in one list": {nodes: []string{"a 1 10.1.1.0/24 10.1.1.0/24"}, want: []string{"a 10.1.1.0/24"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := &Config{}
			for _, c := range tc.cluster {
				cfg.ClusterCIDRs = append(cfg.ClusterCIDRs, netip.MustParsePrefix(c))
			}
			for _, c := range tc.service {
				cfg.ServiceCIDRs = append(cfg.ServiceCIDRs, netip.MustParsePrefix(c))
			}
			var others []Node
			for _, l := range tc.nodes {
				others = append(others, factsOf(t, l))
			}
			nodes, errs := checkFacts(cfg, factsOf(t, self), others)
			var got []string
			for _, n := range nodes {
				line := n.Name
				for _, a := range n.InternalIPs {
					line += " " + a.String()
				}
				for _, p := range n.PodCIDRs {
					line += " " + p.String()
				}
				got = append(got, line)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			for _, want := range tc.errs {
				i := slices.IndexFunc(errs, func(e error) bool { return strings.Contains(e.Error(), want) })
				if i < 0 {
					t.Errorf("no error has %q: %v", want, errs)
					continue
				}
				errs = slices.Delete(errs, i, i+1)
			}
			if len(errs) > 0 {
				t.Errorf("more errors: %v", errs)
			}
		})
	}
}

// A thousand nodes that all claim one network take no more than the comparison of each pair.
func TestCheckFactsFlood(t *testing.T) {
	t.Parallel()
	var others []Node
	for i := range 1000 {
		others = append(others, factsOf(t, fmt.Sprintf("n%d %d 10.0.0.0/8 192.0.2.7", i, i)))
	}
	nodes, errs := checkFacts(&Config{}, factsOf(t, "self - 192.0.2.1"), others)
	if len(nodes) != 1000 || len(errs) != 999 || len(nodes[0].PodCIDRs) != 1 {
		t.Errorf("%d nodes, %d errors, want the oldest one to have the network", len(nodes), len(errs))
	}
}

func FuzzCheckFacts(f *testing.F) {
	f.Add([]byte{10, 1, 1, 0, 24, 1, 10, 1, 0, 0, 16, 2, 10, 0, 0, 0, 8, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		var others []Node
		for i := 0; len(b) >= 6 && i < 64; i++ {
			n := Node{Name: fmt.Sprint("n", i), Created: baseTime.Add(time.Duration(b[5]) * time.Hour)}
			addr := netip.AddrFrom4([4]byte(b[:4]))
			if b[4] > 32 {
				n.InternalIPs = append(n.InternalIPs, addr)
			} else {
				n.PodCIDRs = append(n.PodCIDRs, netip.PrefixFrom(addr, int(b[4])).Masked())
			}
			others, b = append(others, n), b[6:]
		}
		self := factsOf(t, "self - 192.0.2.1 10.1.0.0/24")
		nodes, _ := checkFacts(&Config{}, self, others)
		for i, n := range nodes {
			for _, p := range n.PodCIDRs {
				if p.Overlaps(self.PodCIDRs[0]) || p.Contains(self.InternalIPs[0]) || p.Bits() < widest4 {
					t.Fatalf("%s got %s", n.Name, p)
				}
				for _, o := range nodes[i+1:] {
					for _, q := range o.PodCIDRs {
						if p.Overlaps(q) {
							t.Fatalf("%s got %s, and %s got %s", n.Name, p, o.Name, q)
						}
					}
				}
			}
		}
	})
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		mode string
		cfg  Config
		want string
	}{
		"mode":     {"bgp", Config{}, `routing: "bgp": unknown mode; use one of host-gw, native, vxlan, wireguard`},
		"vni":      {ModeVXLAN, Config{VXLAN: VXLAN{VNI: 1 << 24}}, "vxlan.vni: 16777216: "},
		"port":     {ModeVXLAN, Config{VXLAN: VXLAN{Port: 65536}}, "vxlan.port: 65536: "},
		"device":   {ModeVXLAN, Config{VXLAN: VXLAN{Device: "a/b"}}, `vxlan.device: "a/b": `},
		"long":     {ModeWireGuard, Config{WireGuard: WireGuard{Device: "abcdefghijklm"}}, `wireguard.device: "abcdefghijklm": `},
		"wg port":  {ModeWireGuard, Config{WireGuard: WireGuard{Port: 65535}}, "wireguard.port: 65535: "},
		"rotation": {ModeWireGuard, Config{WireGuard: WireGuard{KeyRotation: time.Second}}, "wireguard.keyRotation: 1s: "},
		"cluster":  {ModeNative, Config{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/8")}}, "clusterCIDRs: 10.0.0.1/8: "},
		"service":  {ModeNative, Config{ServiceCIDRs: []netip.Prefix{{}}}, "serviceCIDRs: "},
	} {
		if _, err := New(tc.mode, tc.cfg, nil); err == nil || !strings.HasPrefix(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
	}
}

func TestNodeErrors(t *testing.T) {
	t.Parallel()
	a, b, other := &NodeError{"a", "x"}, &NodeError{"b", "y"}, errors.New("other")
	nodes, rest := NodeErrors(errors.Join(a, fmt.Errorf("z: %w", b), errors.Join(other, nil)))
	if len(nodes) != 2 || nodes[0] != a || nodes[1] != b || !errors.Is(rest, other) {
		t.Errorf("%v, %v", nodes, rest)
	}
	if nodes, rest = NodeErrors(nil); nodes != nil || rest != nil {
		t.Errorf("%v, %v", nodes, rest)
	}
}
