// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// deniedPod is a pod of one kind, and where the clients ask for it: addresses in both families.
type deniedPod struct {
	name string
	make func(w *world) (p *pod, to func(fam family, c *netlab.Client) string)
}

func deniedPods() []deniedPod {
	published := func(n network) func(w *world) (*pod, func(family, *netlab.Client) string) {
		return func(w *world) (*pod, func(family, *netlab.Client) string) {
			p := w.add(w.runtime(n), "web", tcp(8080, 80), udp(8080, 80))
			return p, func(fam family, c *netlab.Client) string { return at(fam.node(c), 8080) }
		}
	}
	direct := func(plugin string) func(w *world) (*pod, func(family, *netlab.Client) string) {
		return func(w *world) (*pod, func(family, *netlab.Client) string) {
			require.Link(w.t, plugin)
			p := w.add(w.runtime(onLAN(plugin, attributes{"mode": map[string]string{"macvlan": "bridge", "ipvlan": "l2"}[plugin]})), "web")
			return p, func(fam family, _ *netlab.Client) string { return at(fam.pod(p), 80) }
		}
	}
	ptp := network{main: "ptp"}
	return []deniedPod{
		{"bridge", published(net0())}, {"ptp", published(ptp)}, {"macvlan", direct("macvlan")}, {"ipvlan", direct("ipvlan")},
	}
}

// Who is on the node's deny list reaches neither its pods, of whatever kind, nor the node; others do. The list is in force while it is not
// empty, and gone without a trace afterwards.
func TestPrivilegedDenyList(t *testing.T) {
	t.Parallel()
	for _, k := range deniedPods() {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			p, to := k.make(w)
			serve(t, p, "web", ":80")
			serve(t, w.Node, "node", ":9001")
			sluice := programs.Path("sluice")
			second := map[string]netip.Addr{"4": netip.MustParseAddr("192.0.2.90"), "6": netip.MustParseAddr("2001:db8:1::90")}
			sh(t, w.Client(), "ip addr add 192.0.2.90/24 dev eth0")
			sh(t, w.Client(), "ip addr add 2001:db8:1::90/64 dev eth0 nodad")
			all := func(ok bool) {
				t.Helper()
				eachTransport(t, func(t *testing.T, fam family, proto string) {
					for _, addr := range []string{to(fam, w.Client()), at(fam.node(w.Client()), 9001)} {
						// Bound, since for IPv6 the kernel prefers the address that came last.
						c, err := dialWithin(map[bool]time.Duration{true: patience, false: short}[ok], w.Client(), proto+fam.suffix,
							at(fam.client(w.Client()), 0), addr)
						if ok != (err == nil) {
							t.Errorf("%s: %v, want an answer: %t", addr, err, ok)
						}
						if err == nil {
							_ = c.Close()
						}
						other, err := dial(w.Client(), proto+fam.suffix, at(second[fam.suffix], 0), addr)
						if err != nil {
							t.Fatalf("an address that is not on the list: %v", err)
						}
						if err := other.rounds(3); err != nil {
							t.Errorf("an address that is not on the list: %v", err)
						}
						_ = other.Close()
					}
				})
			}
			all(true)
			for _, fam := range families() {
				sh(t, w.Node, sluice+" deny add "+fam.client(w.Client()).String())
			}
			all(false)
			if n := w.drops("source is in the deny list"); n == 0 {
				t.Error("no drop was counted")
			}
			if out := sh(t, w.Node, sluice+" deny list"); !strings.Contains(out, families()[0].client(w.Client()).String()) {
				t.Errorf("deny list:\n%s", out)
			}
			for _, fam := range families() {
				sh(t, w.Node, sluice+" deny del "+fam.client(w.Client()).String())
			}
			all(true)
			if out := sh(t, w.Node, "ip link show dev eth0"); strings.Contains(out, "xdp") {
				t.Errorf("still attached: %s", out)
			}
		})
	}
}
