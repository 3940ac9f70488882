// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// eachBackend runs f in a world of its own for each backend.
func eachBackend(t *testing.T, f func(t *testing.T, w *e2etest.World)) {
	t.Helper()
	for _, b := range append([]e2etest.Backend{{Name: "ebpf", Conf: `{"backend":"ebpf"}`}}, e2etest.NetfilterBackends()...) {
		t.Run(b.Name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			w.SetBackend(b)
			f(t, w)
		})
	}
}

// A container that is in one network twice keeps what the first interface has, whatever becomes of the second: it leaves, the
// runtime says so again, or an ADD has failed and the runtime cleans up after it.
func TestPrivilegedSameNetworkTwice(t *testing.T) {
	t.Parallel()
	eachBackend(t, func(t *testing.T, w *e2etest.World) {
		rt := w.Runtime(e2etest.Network{})
		p := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
		e2etest.Serve(t, p, "web", ":80")
		e2etest.Serve(t, w.Client(), "client", ":9000")
		before := w.Snapshot()
		second := *p
		second.Attachment.IfName = "net1"
		second.Attachment.Capabilities = nil
		failing := second
		failing.Runtime = w.Runtime(e2etest.Network{Plugins: []string{"portmap", "firewall", "tuning-bad"}})
		second.MustAdd()
		for range 2 {
			second.MustDel()
		}
		if err := failing.TryAdd(); err == nil {
			t.Error("the ADD did not fail")
		}
		for range 2 {
			failing.MustDel()
		}
		w.AssertUnchanged(before, "after the second interface")
		e2etest.AssertHostPort(t, w, "web")
		e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
			got := e2etest.Ask(t, p, proto, e2etest.At(fam.Client(w.Client()), 9000))
			if got.Peer.Addr() != fam.Node(w.Client()) {
				t.Errorf("the client saw %s, want the node", got.Peer)
			}
		})
		if err := p.Check(); err != nil {
			t.Errorf("CHECK: %v", err)
		}
	})
}

// Two networks of one subnet, each on a bridge of its own: a pod loses nothing to one of the other network that had its address
// for a while. With eBPF the other one does not get it.
func TestPrivilegedEqualSubnets(t *testing.T) {
	t.Parallel()
	eachBackend(t, func(t *testing.T, w *e2etest.World) {
		rt, other := w.Runtime(e2etest.Net0()), w.Runtime(e2etest.Network{Name: "net1", Bridge: "cni1", Subnets: e2etest.Net0().Subnets})
		w.NodeAfterPod(rt, e2etest.TCP(8080, 80))
		w.NodeAfterPod(other, e2etest.TCP(8081, 80))
		p := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
		e2etest.Serve(t, p, "web", ":80")
		before := w.Snapshot()
		q := w.NewPod(other, "other", e2etest.TCP(8081, 80))
		q.Attachment.Capabilities["ips"] = []string{p.IP4.String(), p.IP6.String()}
		if strings.HasSuffix(t.Name(), "/ebpf") {
			wantHeld(t, q.TryAdd(), "container web")
		} else if q.MustAdd(); q.IP4 != p.IP4 || q.IP6 != p.IP6 {
			t.Fatalf("%s and %s are not the addresses asked for", q.IP4, q.IP6)
		}
		q.MustDel()
		if err := q.Delete(); err != nil {
			t.Fatal(err)
		}
		w.AssertUnchanged(before, "after the other pod")
		e2etest.AssertHostPort(t, w, "web")
		if err := p.Check(); err != nil {
			t.Errorf("CHECK: %v", err)
		}
	})
}
