// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// manyNodes are nodes on 10.200.0.0/16, with all annotations. Their number is in the address and in the pod CIDRs.
func manyNodes(t testing.TB, n int) (nodes []Node) {
	t.Helper()
	for i := 1; i <= n; i++ {
		var b [2]byte
		binary.BigEndian.PutUint16(b[:], uint16(i))
		v4 := netip.AddrFrom4([4]byte{10, 200, b[0], b[1]})
		v6 := netip.MustParseAddr(fmt.Sprintf("2001:db8:1::1:%x", i))
		mac := fmt.Sprintf("ae:00:00:00:%02x:%02x", b[0], b[1])
		var pair keyPair
		for s := range pair.Keys {
			k, err := newKey(baseTime)
			if err != nil {
				t.Fatal(err)
			}
			pair.Keys[s] = k
		}
		keys, err := pair.annotation(51820)
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, Node{
			Name: fmt.Sprintf("node-%04d", i), Created: baseTime, InternalIPs: []netip.Addr{v4, v6},
			PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 16 + b[0], b[1], 0}), 24), netip.MustParsePrefix(fmt.Sprintf("fd00:2:0:%x::/64", i))},
			Annotations: map[string]string{
				flannelType: "vxlan", flannelManaged: "true", flannelPublic: v4.String(), flannelPublicV6: v6.String(),
				flannelData: fmt.Sprintf(`{"VNI":1,"VtepMAC":%q}`, mac), flannelDataV6: fmt.Sprintf(`{"VNI":1,"VtepMAC":%q}`, mac),
				AnnotationWireGuard: keys,
			},
		})
	}
	return nodes
}

// A thousand nodes cost what each of them needs, once. Then only changes are written.
func TestPrivilegedThousandNodes(t *testing.T) {
	t.Parallel()
	count := netlab.Fewer(1000, 200)
	nodes := manyNodes(t, count)
	// What one node needs in the kernel: routes, neighbours, forwarding entries, peers.
	for mode, each := range map[string]int{ModeHostGW: 2, ModeVXLAN: 6, ModeWireGuard: 4} {
		t.Run(mode, func(t *testing.T) {
			if mode != ModeHostGW {
				require.Link(t, mode)
			}
			c := netlab.NewClusterT(t, 1)
			c.Nodes[0].IPT(t, "addr add 10.200.255.254/16 dev eth0")
			g := newRig(t, c.Nodes[0], mode, Config{})
			self := nodeFacts(0)
			self.Annotations = applied(nil, g.mustSync(self))
			step := func(what string, most int, others []Node) {
				t.Helper()
				before, cpu, start := g.changes(), cpuTime(t), time.Now()
				g.mustSync(self, others...)
				changes := g.changes() - before
				t.Logf("%d nodes, %s: %d changes, %s of CPU, %s", count, what, changes, (cpuTime(t) - cpu).Round(100*time.Microsecond), time.Since(start).Round(100*time.Microsecond))
				if changes > most {
					t.Errorf("%s: %d changes, at most %d", what, changes, most)
				}
			}
			step("first Sync", each*count, nodes)
			if got := len(ours(t, g.node)); got != 2*count {
				t.Fatalf("%d routes, want %d", got, 2*count)
			}
			step("nothing new", 0, nodes)
			step("one node gone", each, nodes[1:])
			step("one node new", each, nodes)
			moved := slices.Clone(nodes)
			moved[5].Annotations = maps.Clone(moved[5].Annotations)
			moved[5].InternalIPs = []netip.Addr{netip.MustParseAddr("10.200.200.200"), netip.MustParseAddr("2001:db8:1::2:1")}
			moved[5].Annotations[flannelPublic], moved[5].Annotations[flannelPublicV6] = "10.200.200.200", "2001:db8:1::2:1"
			step("one node's addresses changed", each, moved)
			g.remove()
			if left := ours(t, g.node); len(left) > 0 {
				t.Errorf("%d routes are left", len(left))
			}
		})
	}
}

// cpuTime is that of the process, with what the kernel does for it.
func cpuTime(t testing.TB) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
