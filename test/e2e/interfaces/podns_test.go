// SPDX-License-Identifier: Apache-2.0

package interfaces

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// Ports are published by netfilter: there is no end on the node that eBPF could
// lead to, and upstream publishes them too. Who asks for eBPF is told.
func TestPrivilegedInsidePortmap(t *testing.T) {
	t.Parallel()
	e2etest.EachPodnsKind(t, func(t *testing.T, k e2etest.PodnsKind) {
		w := k.NewWorld(t)
		rt := w.Runtime(k.Network("portmap", "firewall"))
		before := w.Warmup(rt, e2etest.TCP(8080, 80))
		a := w.AddPod(rt, "a", e2etest.TCP(8080, 80))
		e2etest.AssertChecked(t, a)
		if out := e2etest.MustRun(t, w.Node, "iptables-save -t nat") + e2etest.MustRun(t, w.Node, "nft list ruleset"); !strings.Contains(out, a.IP4.String()+":80") {
			t.Errorf("no rule leads to the pod:\n%s", out)
		}
		a.MustDel()
		if err := a.Delete(); err != nil {
			t.Fatal(err)
		}
		if k.Name != "host-device" { // its device ends with the namespace of the pod before
			w.AssertNothingLeft(before)
		}
	})
}

func TestPrivilegedInsidePortmapRefused(t *testing.T) {
	t.Parallel()
	k := e2etest.PodnsKinds()[0]
	w := k.NewWorld(t)
	n := k.Network("portmap")
	n.Portmap = e2etest.Attributes{"backend": "ebpf"}
	p := w.NewPod(w.Runtime(n), "a", e2etest.TCP(8080, 80))
	if err := p.TryAdd(); err == nil || !strings.Contains(err.Error(), "no host end") {
		t.Errorf("ADD: %v, want the reason", err)
	}
}

// A card's pod is reached through the node's port where its network leads to it.
func TestPrivilegedInsidePortmapTraffic(t *testing.T) {
	t.Parallel()
	for _, k := range e2etest.PodnsKinds() {
		if k.Name != "host-device" {
			continue
		}
		w := k.NewWorld(t)
		n := k.Network("portmap")
		n.Portmap = e2etest.Attributes{"masqAll": true} // the pod's way back is not through the node
		for i, s := range k.Subnets {
			e2etest.MustRun(t, w.Node, "ip route add "+s+" via "+w.Client().Uplink.Client[i].Addr().String())
		}
		for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
			if err := errors.Join(w.Client().WriteSysctl(key, "1"), w.Node.WriteSysctl(key, "1")); err != nil {
				t.Fatal(err)
			}
		}
		a := w.AddPod(w.Runtime(n), "a", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
		e2etest.Serve(t, a, "a", ":80")
		e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
			if got := e2etest.Ask(t, w.Client(), proto, e2etest.At(fam.Node(w.Client()), 8080)); got.Server != "a" || got.Peer.Addr() != fam.Node(w.Client()) {
				t.Errorf("%s saw %s, want a to see the node", got.Server, got.Peer)
			}
		})
	}
}
