// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/trace"
	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/policy"
)

// withoutHostVeth has two pods on macvlan devices of the uplink. What they send does not pass the node's stack.
func (w *traceWorld) withoutHostVeth() {
	w.t.Helper()
	closed, err := policy.Parse("", json.RawMessage(`{"ingressDefault":"deny"}`))
	if err != nil {
		w.t.Fatal(err)
	}
	for i, name := range []string{"m0", "m1"} {
		pod := w.Node.PodT(w.t, name)
		w.pods[name] = pod
		w.script(fmt.Sprintf(`i=%d pod=%s
			ip link add link eth0 name m$i type macvlan mode bridge; ip link set m$i netns $pod; ip -n $pod link set m$i name eth0
			ip -n $pod link set lo up; ip -n $pod addr add 192.0.2.5$i/24 dev eth0; ip -n $pod addr add 2001:db8:1::5$i/64 dev eth0 nodad; ip -n $pod link set eth0 up`, i, name))
		w.enable(name, "macvlan", loader.FeatureAdmit, []*policy.Policy{nil, closed}[i])
		stop, err := pod.ServeTCP(":80")
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(func() { _ = stop() })
	}
	m0 := w.pods["m0"].NS
	for _, end := range []struct{ pod, sibling, client, node string }{
		{"192.0.2.50", "192.0.2.51", "192.0.2.2", "192.0.2.1"}, {"2001:db8:1::50", "2001:db8:1::51", "2001:db8:1::2", "2001:db8:1::1"},
	} {
		at := func(a string, port uint16) string { return netip.AddrPortFrom(netip.MustParseAddr(a), port).String() }
		// Out and back, past the node's stack.
		seen := w.greeting(m0, at(end.pod, 49400), at(end.client, 9000))
		v, status := w.trace("%s %s --port 9000 --from-port 49400", end.pod, end.client)
		w.wantLine(v, status, 0, "sent out of eth0 as "+seen)
		if seen != at(end.pod, 49400) || len(v.NotRehearsed) > 0 {
			w.t.Errorf("a real connection: %q; not run: %q", seen, v.NotRehearsed)
		}
		if v.Answer == nil || v.Answer.At != "pod lab/m000/eth0" || slices.ContainsFunc(v.Answer.Steps, func(s trace.Step) bool { return s.Kind == "route" }) {
			w.t.Errorf("the answer: %+v", v.Answer)
		}
		// In, to a pod without rules and to one with.
		v, status = w.trace("%s %s --port 80", end.client, end.pod)
		w.wantLine(v, status, 0, "delivered to pod lab/m000/eth0 as "+at(end.pod, 80))
		if got := w.greeting(w.Client().NS, at(end.client, 0), at(end.pod, 80)); got == "" {
			w.t.Error("a real connection has no answer")
		}
		v, status = w.trace("%s %s --port 80", end.pod, end.sibling)
		w.wantLine(v, status, 0, "delivered to pod lab/m100/eth0 as "+at(end.sibling, 80)+", if policy ")
		// The node and its macvlan devices do not reach each other.
		v, status = w.trace("%s %s --port 8080", end.pod, end.node)
		w.wantLine(v, status, 1, "dropped at eth0: parent-apart: ")
		if got := w.greeting(m0, at(end.pod, 0), at(end.node, 8080)); got != "" {
			w.t.Errorf("a real connection to the node: %q", got)
		}
		v, status = w.trace("node %s --port 80", end.pod)
		w.wantLine(v, status, 1, "dropped at eth0: parent-apart: ")
		if got := w.greeting(w.Node.NS, at(end.node, 0), at(end.pod, 80)); got != "" {
			w.t.Errorf("a real connection from the node: %q", got)
		}
	}
	w.script("ip -n m0 route flush dev eth0")
	v, status := w.trace("192.0.2.50 198.51.100.9 --port 80")
	w.wantLine(v, status, 1, "dropped at the pod's own routes: no-route-in-pod: ")
}
