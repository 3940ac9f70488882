// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// deniedPod is a pod of one kind, and where the clients ask for it: addresses in both families.
type deniedPod struct {
	name string
	make func(w *e2etest.World) (p *e2etest.Pod, to func(fam e2etest.Family, c *netlab.Client) string)
}

func deniedPods() []deniedPod {
	published := func(n e2etest.Network) func(w *e2etest.World) (*e2etest.Pod, func(e2etest.Family, *netlab.Client) string) {
		return func(w *e2etest.World) (*e2etest.Pod, func(e2etest.Family, *netlab.Client) string) {
			p := w.AddPod(w.Runtime(n), "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
			return p, func(fam e2etest.Family, c *netlab.Client) string { return e2etest.At(fam.Node(c), 8080) }
		}
	}
	direct := func(plugin string) func(w *e2etest.World) (*e2etest.Pod, func(e2etest.Family, *netlab.Client) string) {
		return func(w *e2etest.World) (*e2etest.Pod, func(e2etest.Family, *netlab.Client) string) {
			require.Link(w.T, plugin)
			p := w.AddPod(w.Runtime(e2etest.LANNetwork(plugin, e2etest.Attributes{"mode": map[string]string{"macvlan": "bridge", "ipvlan": "l2"}[plugin]})), "web")
			return p, func(fam e2etest.Family, _ *netlab.Client) string { return e2etest.At(fam.Pod(p), 80) }
		}
	}
	ptp := e2etest.Network{Main: "ptp"}
	return []deniedPod{
		{"bridge", published(e2etest.Net0())}, {"ptp", published(ptp)}, {"macvlan", direct("macvlan")}, {"ipvlan", direct("ipvlan")},
	}
}

// Who is on the node's denylist reaches neither its pods, of whatever kind, nor the node; others do. The list is in force while it is not
// empty, and gone without a trace afterwards.
func TestPrivilegedDenyList(t *testing.T) {
	t.Parallel()
	for _, k := range deniedPods() {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			p, to := k.make(w)
			e2etest.Serve(t, p, "web", ":80")
			e2etest.Serve(t, w.Node, "node", ":9001")
			sluice := e2etest.Programs.Path("sluice")
			second := map[string]netip.Addr{"4": netip.MustParseAddr("192.0.2.90"), "6": netip.MustParseAddr("2001:db8:1::90")}
			e2etest.MustRun(t, w.Client(), "ip addr add 192.0.2.90/24 dev eth0")
			e2etest.MustRun(t, w.Client(), "ip addr add 2001:db8:1::90/64 dev eth0 nodad")
			all := func(ok bool) {
				t.Helper()
				e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
					for _, addr := range []string{to(fam, w.Client()), e2etest.At(fam.Node(w.Client()), 9001)} {
						// Bound, since for IPv6 the kernel prefers the address that came last.
						c, err := e2etest.DialWithin(map[bool]time.Duration{true: e2etest.AnswerTimeout, false: e2etest.NoAnswerTimeout}[ok], w.Client(), proto+fam.Suffix,
							e2etest.At(fam.Client(w.Client()), 0), addr)
						if ok != (err == nil) {
							t.Errorf("%s: %v, want an answer: %t", addr, err, ok)
						}
						if err == nil {
							_ = c.Close()
						}
						other, err := e2etest.Dial(w.Client(), proto+fam.Suffix, e2etest.At(second[fam.Suffix], 0), addr)
						if err != nil {
							t.Fatalf("an address that is not on the list: %v", err)
						}
						if err := other.SendRounds(3); err != nil {
							t.Errorf("an address that is not on the list: %v", err)
						}
						_ = other.Close()
					}
				})
			}
			all(true)
			for _, fam := range e2etest.Families() {
				e2etest.MustRun(t, w.Node, sluice+" deny add "+fam.Client(w.Client()).String())
			}
			all(false)
			if n := w.Drops("source is in the denylist"); n == 0 {
				t.Error("no drop was counted")
			}
			if out := e2etest.MustRun(t, w.Node, sluice+" deny list"); !strings.Contains(out, e2etest.Families()[0].Client(w.Client()).String()) {
				t.Errorf("denylist:\n%s", out)
			}
			for _, fam := range e2etest.Families() {
				e2etest.MustRun(t, w.Node, sluice+" deny del "+fam.Client(w.Client()).String())
			}
			all(true)
			if out := e2etest.MustRun(t, w.Node, "ip link show dev eth0"); strings.Contains(out, "xdp") {
				t.Errorf("still attached: %s", out)
			}
		})
	}
}
