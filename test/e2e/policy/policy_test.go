// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// policed is net0 and net1 with an ingressPolicy, and a pod or two of each.
func policed(t *testing.T, mode string) (w *e2etest.World, a, b, c *e2etest.Pod) {
	w = e2etest.NewWorld(t)
	one, two := e2etest.Net0(), e2etest.Net1()
	one.Firewall, two.Firewall = e2etest.Attributes{"ingressPolicy": mode}, e2etest.Attributes{"ingressPolicy": mode}
	rt1, rt2 := w.Runtime(one), w.Runtime(two)
	a, b = w.AddPod(rt1, "a", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)), w.AddPod(rt1, "b")
	c = w.AddPod(rt2, "c")
	for _, p := range []*e2etest.Pod{a, b, c} {
		e2etest.Serve(t, p, p.Name, ":80")
		e2etest.AssertChecked(t, p)
	}
	e2etest.Serve(t, w.Client(), "client", ":9000")
	e2etest.Serve(t, w.Node, "node", ":9000")
	return w, a, b, c
}

// outsideReaches is what no ingressPolicy forbids.
func outsideReaches(t *testing.T, w *e2etest.World, a *e2etest.Pod) {
	t.Helper()
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		e2etest.Ask(t, w.Client(), proto, e2etest.At(fam.Node(w.Client()), 8080))
		e2etest.Ask(t, w.Node, proto, e2etest.At(fam.Pod(a), 80))
		e2etest.Ask(t, a, proto, e2etest.At(fam.Client(w.Client()), 9000))
		e2etest.Ask(t, a, proto, e2etest.At(netip.MustParseAddr(fam.Gateway), 9000))
	})
}

// Pods of one bridge reach each other, pods of different bridges do not.
func TestPrivilegedPolicySameBridge(t *testing.T) {
	t.Parallel()
	w, a, b, c := policed(t, "same-bridge")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		e2etest.Ask(t, a, proto, e2etest.At(fam.Pod(b), 80))
		e2etest.Ask(t, b, proto, e2etest.At(fam.Pod(a), 80))
		e2etest.AssertDenied(t, a, proto, e2etest.At(fam.Pod(c), 80))
		e2etest.AssertDenied(t, c, proto, e2etest.At(fam.Pod(a), 80))
		e2etest.AssertDenied(t, c, proto, e2etest.At(fam.Node(w.Client()), 8080)) // nor through the published port
		e2etest.Ask(t, b, proto, e2etest.At(fam.Node(w.Client()), 8080))
	})
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		if err := e2etest.Ping(a, fam, fam.Pod(b), 7, 1); err != nil {
			t.Errorf("ping on the bridge: %v", err)
		}
		if e2etest.Ping(a, fam, fam.Pod(c), 7, 2) == nil {
			t.Error("ping to another bridge is answered")
		}
	})
	outsideReaches(t, w, a)
}

// Pods of one bridge do not reach each other either.
func TestPrivilegedPolicyIsolated(t *testing.T) {
	t.Parallel()
	w, a, b, c := policed(t, "isolated")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		e2etest.AssertDenied(t, a, proto, e2etest.At(fam.Pod(b), 80))
		e2etest.AssertDenied(t, b, proto, e2etest.At(fam.Pod(a), 80))
		e2etest.AssertDenied(t, c, proto, e2etest.At(fam.Pod(a), 80))
		e2etest.AssertDenied(t, b, proto, e2etest.At(fam.Node(w.Client()), 8080))
	})
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		if e2etest.Ping(a, fam, fam.Pod(b), 7, 1) == nil {
			t.Error("ping on the bridge is answered")
		}
	})
	outsideReaches(t, w, a)
}

// Rules of both directions, with state: what one end may open, the other may answer.
func TestPrivilegedPolicyRules(t *testing.T) {
	t.Parallel()
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			t.Parallel()
			policyRules(t, main)
		})
	}
}

func policyRules(t *testing.T, main string) {
	t.Helper()
	w := e2etest.NewWorld(t)
	n := e2etest.Network{Main: main}
	client4, client6 := w.Client().Uplink.Client[0].Addr().String(), w.Client().Uplink.Client[1].Addr().String()
	n.Firewall = e2etest.Attributes{"rules": e2etest.Attributes{
		"ingress": []e2etest.Attributes{
			{"action": "deny", "cidrs": []string{"10.1.0.0/16", "fd00:10:1::/64"}, "ports": []string{"81"}},
			{"action": "allow", "ports": []any{80, "81-82"}},
		},
		"ingressDefault": "deny",
		"egress": []e2etest.Attributes{
			{"action": "allow", "cidrs": []string{client4, client6}, "protocol": "tcp", "ports": []string{"9000"}},
			{"action": "allow", "cidrs": []string{client4, client6}, "protocol": "icmp"},
			{"action": "allow", "cidrs": []string{"10.1.0.0/16", "fd00:10:1::/64"}},
		},
		"egressDefault": "deny",
	}}
	rt := w.Runtime(n)
	a := w.AddPod(rt, "a", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80), e2etest.TCP(8083, 83), e2etest.UDP(8083, 83))
	b := w.AddPod(rt, "b")
	e2etest.AssertChecked(t, a)
	for _, port := range []string{":80", ":81", ":83"} {
		e2etest.Serve(t, a, "a", port)
	}
	e2etest.Serve(t, w.Client(), "client", ":9000")
	e2etest.Serve(t, w.Client(), "client", ":9001")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		e2etest.Ask(t, b, proto, e2etest.At(fam.Pod(a), 80))
		e2etest.AssertDenied(t, b, proto, e2etest.At(fam.Pod(a), 81))
		e2etest.AssertDenied(t, b, proto, e2etest.At(fam.Pod(a), 83))
		e2etest.Ask(t, w.Node, proto, e2etest.At(fam.Pod(a), 83)) // kubelet's probes
		e2etest.Ask(t, w.Client(), proto, e2etest.At(fam.Node(w.Client()), 8080))
		e2etest.AssertDenied(t, w.Client(), proto, e2etest.At(fam.Node(w.Client()), 8083))
		e2etest.AssertDenied(t, a, proto, e2etest.At(fam.Client(w.Client()), 9001))
		if proto == "tcp" {
			e2etest.Ask(t, a, proto, e2etest.At(fam.Client(w.Client()), 9000))
		} else {
			e2etest.AssertDenied(t, a, proto, e2etest.At(fam.Client(w.Client()), 9000))
		}
	})
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		if err := e2etest.Ping(a, fam, fam.Client(w.Client()), 7, 1); err != nil {
			t.Errorf("ping that a rule allows: %v", err)
		}
		if e2etest.Ping(b, fam, fam.Pod(a), 7, 2) == nil {
			t.Error("ping that no rule allows is answered")
		}
	})
}

// A policy for which there is nothing to carry it out is refused, not forgotten.
func TestPrivilegedPolicyRefused(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	n := e2etest.Net0()
	n.Firewall = e2etest.Attributes{"backend": "iptables", "rules": e2etest.Attributes{"egressDefault": "deny"}}
	p := w.NewPod(w.Runtime(n), "a")
	if err := p.TryAdd(); err == nil || !strings.Contains(err.Error(), "rules") {
		t.Errorf("rules with iptables: %v", err)
	}
}

// onMacvlan is a network of macvlan devices on the node's uplink.
func onMacvlan(w *e2etest.World) e2etest.Network {
	up := w.Client().Uplink
	var ranges []any
	for _, p := range up.Client {
		ranges = append(ranges, []e2etest.Attributes{{
			"subnet": p.Masked().String(), "rangeStart": e2etest.NthAddr(p, 100), "rangeEnd": e2etest.NthAddr(p, 120), "gateway": p.Addr().String(),
		}})
	}
	return e2etest.Network{
		Main: "macvlan", NoMasq: true, Plugins: []string{"firewall"},
		Extra: e2etest.Attributes{"master": up.Name, "mode": "bridge"}, IPAM: e2etest.Attributes{"ranges": ranges},
	}
}

// Rules on a pod without a host veth, by programs inside its namespace; DEL and GC when that has gone.
func TestPrivilegedPolicyMacvlan(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	n := onMacvlan(w)
	n.Firewall = e2etest.Attributes{"rules": e2etest.Attributes{
		"ingress":        []e2etest.Attributes{{"action": "allow", "ports": []int{80}}},
		"ingressDefault": "deny",
		"egress":         []e2etest.Attributes{{"action": "deny", "ports": []int{9001}}},
	}}
	rt := w.Runtime(n)
	a, b := w.AddPod(rt, "a"), w.AddPod(rt, "b")
	e2etest.Serve(t, a, "a", ":80")
	e2etest.Serve(t, a, "a", ":81")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	e2etest.Serve(t, w.Client(), "client", ":9001")
	e2etest.AssertChecked(t, a)
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		for _, from := range []e2etest.Place{w.Client(), b} {
			e2etest.Ask(t, from, proto, e2etest.At(fam.Pod(a), 80))
			e2etest.AssertDenied(t, from, proto, e2etest.At(fam.Pod(a), 81))
		}
		e2etest.Ask(t, a, proto, e2etest.At(fam.Client(w.Client()), 9000))
		e2etest.AssertDenied(t, a, proto, e2etest.At(fam.Client(w.Client()), 9001))
	})
	if out := e2etest.MustRun(t, w.Node, e2etest.Programs.Path("sluice")+" endpoints -w"); strings.Count(out, "admit") != 2 {
		t.Errorf("endpoints:\n%s", out)
	}
	if err := b.Delete(); err != nil { // the namespace goes before DEL
		t.Error(err)
	}
	b.MustDel()
	a.MustDel()
	if out := e2etest.MustRun(t, w.Node, e2etest.Programs.Path("sluice")+" endpoints -w"); strings.Contains(out, "admit") {
		t.Errorf("left:\n%s", out)
	}
}

// On a macvlan device isolated means the pod's own subnets, but for the gateway; same-bridge means nothing.
func TestPrivilegedPolicyMacvlanIsolated(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	n := onMacvlan(w)
	n.Firewall = e2etest.Attributes{"ingressPolicy": "isolated"}
	rt := w.Runtime(n)
	a, b := w.AddPod(rt, "a"), w.AddPod(rt, "b")
	e2etest.Serve(t, a, "a", ":80")
	e2etest.AssertChecked(t, a)
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		e2etest.Ask(t, w.Client(), proto, e2etest.At(fam.Pod(a), 80)) // it is the gateway
		e2etest.AssertDenied(t, b, proto, e2etest.At(fam.Pod(a), 80))
	})
	linkLocal(t, b)
	for _, proto := range []string{"tcp", "udp"} { // nor by the addresses of the link
		e2etest.AssertDenied(t, b, proto, netip.AddrPortFrom(linkLocal(t, a).WithZone(deviceIndex(t, b)), 80).String())
	}
	n.Name, n.Firewall = "other", e2etest.Attributes{"ingressPolicy": "same-bridge"}
	if err := w.NewPod(w.Runtime(n), "c").TryAdd(); err == nil || !strings.Contains(err.Error(), "same-bridge") {
		t.Errorf("same-bridge without a bridge: %v", err)
	}
}

// linkLocal is the link-local address of the pod's device.
func linkLocal(t testing.TB, p *e2etest.Pod) (a netip.Addr) {
	t.Helper()
	e2etest.Eventually(t, e2etest.AnswerTimeout, func() (err error) {
		fields := strings.Fields(e2etest.MustRun(t, p, "ip -6 -o addr show dev eth0 scope link -tentative"))
		if len(fields) < 4 {
			return errors.New("no link-local address")
		}
		address, _, _ := strings.Cut(fields[3], "/")
		a, err = netip.ParseAddr(address)
		return err
	})
	return a
}

// deviceIndex is the number of the pod's device, which names it in an address.
func deviceIndex(t testing.TB, p *e2etest.Pod) string {
	t.Helper()
	index, _, _ := strings.Cut(e2etest.MustRun(t, p, "ip -o link show dev eth0"), ":")
	return index
}
