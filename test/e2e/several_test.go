// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"
)

// eachBackend runs f in a world of its own for each back end.
func eachBackend(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	for _, b := range append([]backend{{"ebpf", `{"backend":"ebpf"}`}}, netfilterBackends()...) {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.use(b)
			f(t, w)
		})
	}
}

// A container that is in one network twice keeps what the first interface has, whatever becomes of the second: it leaves, the
// runtime says so again, or an ADD has failed and the runtime cleans up after it.
func TestPrivilegedSameNetworkTwice(t *testing.T) {
	t.Parallel()
	eachBackend(t, func(t *testing.T, w *world) {
		rt := w.runtime(network{})
		p := w.add(rt, "web", tcp(8080, 80), udp(8080, 80))
		serve(t, p, "web", ":80")
		serve(t, w.Client(), "client", ":9000")
		before := w.snapshot()
		second := *p
		second.att.IfName = "net1"
		second.att.Capabilities = nil
		failing := second
		failing.rt = w.runtime(network{plugins: []string{"portmap", "firewall", "tuning-bad"}})
		second.mustAdd()
		for range 2 {
			second.mustDel()
		}
		if err := failing.tryAdd(); err == nil {
			t.Error("the ADD did not fail")
		}
		for range 2 {
			failing.mustDel()
		}
		w.same(before, "after the second interface")
		whoIs(t, w, "web")
		eachTransport(t, func(t *testing.T, fam family, proto string) {
			got := ask(t, p, proto, at(fam.client(w.Client()), 9000))
			if got.peer.Addr() != fam.node(w.Client()) {
				t.Errorf("the client saw %s, want the node", got.peer)
			}
		})
		if err := p.check(); err != nil {
			t.Errorf("CHECK: %v", err)
		}
	})
}

// Two networks of one subnet, each on a bridge of its own: a pod loses nothing to one of the other network that had its address
// for a while.
func TestPrivilegedEqualSubnets(t *testing.T) {
	t.Parallel()
	eachBackend(t, func(t *testing.T, w *world) {
		rt, other := w.runtime(net0()), w.runtime(network{name: "net1", bridge: "cni1", subnets: net0().subnets})
		w.after(rt, tcp(8080, 80))
		w.after(other, tcp(8081, 80))
		p := w.add(rt, "web", tcp(8080, 80), udp(8080, 80))
		serve(t, p, "web", ":80")
		before := w.snapshot()
		q := w.newPod(other, "other", tcp(8081, 80))
		q.att.Capabilities["ips"] = []string{p.IP4.String(), p.IP6.String()}
		q.mustAdd()
		if q.IP4 != p.IP4 || q.IP6 != p.IP6 {
			t.Fatalf("%s and %s are not the addresses asked for", q.IP4, q.IP6)
		}
		q.mustDel()
		if err := q.Delete(); err != nil {
			t.Fatal(err)
		}
		w.same(before, "after the other pod")
		whoIs(t, w, "web")
		if err := p.check(); err != nil {
			t.Errorf("CHECK: %v", err)
		}
	})
}
