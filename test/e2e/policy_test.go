// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// short is how long something is waited for that must not come.
const short = 300 * time.Millisecond

func wantChecked(t testing.TB, p *pod) {
	t.Helper()
	if err := p.check(); err != nil {
		t.Errorf("CHECK %s: %v", p.Name, err)
	}
}

// denied checks that no conversation comes about.
func denied(t testing.TB, ns place, proto, addr string) {
	t.Helper()
	c, err := dialWithin(short, ns, proto, "", addr)
	if err == nil {
		c.Close()
		t.Errorf("%s %s is answered", proto, addr)
	}
}

// policed is net0 and net1 with an ingressPolicy, and a pod or two of each.
func policed(t *testing.T, mode string) (w *world, a, b, c *pod) {
	w = newWorld(t)
	one, two := net0(), net1()
	one.firewall, two.firewall = attributes{"ingressPolicy": mode}, attributes{"ingressPolicy": mode}
	rt1, rt2 := w.runtime(one), w.runtime(two)
	a, b = w.add(rt1, "a", tcp(8080, 80), udp(8080, 80)), w.add(rt1, "b")
	c = w.add(rt2, "c")
	for _, p := range []*pod{a, b, c} {
		serve(t, p, p.Name, ":80")
		wantChecked(t, p)
	}
	serve(t, w.Client(), "client", ":9000")
	serve(t, w.Node, "node", ":9000")
	return w, a, b, c
}

// outsideReaches is what no ingressPolicy forbids.
func outsideReaches(t *testing.T, w *world, a *pod) {
	t.Helper()
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		ask(t, w.Client(), proto, at(fam.node(w.Client()), 8080))
		ask(t, w.Node, proto, at(fam.pod(a), 80))
		ask(t, a, proto, at(fam.client(w.Client()), 9000))
		ask(t, a, proto, at(netip.MustParseAddr(fam.gw), 9000))
	})
}

// Pods of one bridge reach each other, pods of different bridges do not.
func TestPrivilegedPolicySameBridge(t *testing.T) {
	t.Parallel()
	w, a, b, c := policed(t, "same-bridge")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		ask(t, a, proto, at(fam.pod(b), 80))
		ask(t, b, proto, at(fam.pod(a), 80))
		denied(t, a, proto, at(fam.pod(c), 80))
		denied(t, c, proto, at(fam.pod(a), 80))
		denied(t, c, proto, at(fam.node(w.Client()), 8080)) // nor through the published port
		ask(t, b, proto, at(fam.node(w.Client()), 8080))
	})
	eachFamily(t, func(t *testing.T, fam family) {
		if err := ping(a, fam, fam.pod(b), 7, 1); err != nil {
			t.Errorf("ping on the bridge: %v", err)
		}
		if ping(a, fam, fam.pod(c), 7, 2) == nil {
			t.Error("ping to another bridge is answered")
		}
	})
	outsideReaches(t, w, a)
}

// Pods of one bridge do not reach each other either.
func TestPrivilegedPolicyIsolated(t *testing.T) {
	t.Parallel()
	w, a, b, c := policed(t, "isolated")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		denied(t, a, proto, at(fam.pod(b), 80))
		denied(t, b, proto, at(fam.pod(a), 80))
		denied(t, c, proto, at(fam.pod(a), 80))
		denied(t, b, proto, at(fam.node(w.Client()), 8080))
	})
	eachFamily(t, func(t *testing.T, fam family) {
		if ping(a, fam, fam.pod(b), 7, 1) == nil {
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
	w := newWorld(t)
	n := network{main: main}
	client4, client6 := w.Client().Uplink.Client[0].Addr().String(), w.Client().Uplink.Client[1].Addr().String()
	n.firewall = attributes{"rules": attributes{
		"ingress": []attributes{
			{"action": "deny", "cidrs": []string{"10.1.0.0/16", "fd00:10:1::/64"}, "ports": []string{"81"}},
			{"action": "allow", "ports": []any{80, "81-82"}},
		},
		"ingressDefault": "deny",
		"egress": []attributes{
			{"action": "allow", "cidrs": []string{client4, client6}, "protocol": "tcp", "ports": []string{"9000"}},
			{"action": "allow", "cidrs": []string{client4, client6}, "protocol": "icmp"},
			{"action": "allow", "cidrs": []string{"10.1.0.0/16", "fd00:10:1::/64"}},
		},
		"egressDefault": "deny",
	}}
	rt := w.runtime(n)
	a := w.add(rt, "a", tcp(8080, 80), udp(8080, 80), tcp(8083, 83), udp(8083, 83))
	b := w.add(rt, "b")
	wantChecked(t, a)
	for _, port := range []string{":80", ":81", ":83"} {
		serve(t, a, "a", port)
	}
	serve(t, w.Client(), "client", ":9000")
	serve(t, w.Client(), "client", ":9001")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		ask(t, b, proto, at(fam.pod(a), 80))
		denied(t, b, proto, at(fam.pod(a), 81))
		denied(t, b, proto, at(fam.pod(a), 83))
		ask(t, w.Node, proto, at(fam.pod(a), 83)) // kubelet's probes
		ask(t, w.Client(), proto, at(fam.node(w.Client()), 8080))
		denied(t, w.Client(), proto, at(fam.node(w.Client()), 8083))
		denied(t, a, proto, at(fam.client(w.Client()), 9001))
		if proto == "tcp" {
			ask(t, a, proto, at(fam.client(w.Client()), 9000))
		} else {
			denied(t, a, proto, at(fam.client(w.Client()), 9000))
		}
	})
	eachFamily(t, func(t *testing.T, fam family) {
		if err := ping(a, fam, fam.client(w.Client()), 7, 1); err != nil {
			t.Errorf("ping that a rule allows: %v", err)
		}
		if ping(b, fam, fam.pod(a), 7, 2) == nil {
			t.Error("ping that no rule allows is answered")
		}
	})
}

// A policy for which there is nothing to carry it out is refused, not forgotten.
func TestPrivilegedPolicyRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := net0()
	n.firewall = attributes{"backend": "iptables", "rules": attributes{"egressDefault": "deny"}}
	p := w.newPod(w.runtime(n), "a")
	if err := p.tryAdd(); err == nil || !strings.Contains(err.Error(), "rules") {
		t.Errorf("rules with iptables: %v", err)
	}
}

// onMacvlan is a network of macvlan devices on the node's uplink.
func onMacvlan(w *world) network {
	up := w.Client().Uplink
	var ranges []any
	for _, p := range up.Client {
		ranges = append(ranges, []attributes{{
			"subnet": p.Masked().String(), "rangeStart": nth(p, 100), "rangeEnd": nth(p, 120), "gateway": p.Addr().String(),
		}})
	}
	return network{
		main: "macvlan", noMasq: true, plugins: []string{"firewall"},
		extra: attributes{"master": up.Name, "mode": "bridge"}, ipam: attributes{"ranges": ranges},
	}
}

// nth is the address of p's network that ends in n.
func nth(p netip.Prefix, n byte) string {
	b := p.Masked().Addr().AsSlice()
	b[len(b)-1] = n
	a, _ := netip.AddrFromSlice(b)
	return a.String()
}

// Rules on a pod without a host end, by programs inside its namespace; DEL and GC when that has gone.
func TestPrivilegedPolicyMacvlan(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := onMacvlan(w)
	n.firewall = attributes{"rules": attributes{
		"ingress":        []attributes{{"action": "allow", "ports": []int{80}}},
		"ingressDefault": "deny",
		"egress":         []attributes{{"action": "deny", "ports": []int{9001}}},
	}}
	rt := w.runtime(n)
	a, b := w.add(rt, "a"), w.add(rt, "b")
	serve(t, a, "a", ":80")
	serve(t, a, "a", ":81")
	serve(t, w.Client(), "client", ":9000")
	serve(t, w.Client(), "client", ":9001")
	wantChecked(t, a)
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		for _, from := range []place{w.Client(), b} {
			ask(t, from, proto, at(fam.pod(a), 80))
			denied(t, from, proto, at(fam.pod(a), 81))
		}
		ask(t, a, proto, at(fam.client(w.Client()), 9000))
		denied(t, a, proto, at(fam.client(w.Client()), 9001))
	})
	if out := sh(t, w.Node, programs.Path("sluice")+" endpoints -w"); strings.Count(out, "admit") != 2 {
		t.Errorf("endpoints:\n%s", out)
	}
	if err := b.Delete(); err != nil { // the namespace goes before DEL
		t.Error(err)
	}
	b.mustDel()
	a.mustDel()
	if out := sh(t, w.Node, programs.Path("sluice")+" endpoints -w"); strings.Contains(out, "admit") {
		t.Errorf("left:\n%s", out)
	}
}

// On a macvlan device isolated means the pod's own subnets, but for the gateway; same-bridge means nothing.
func TestPrivilegedPolicyMacvlanIsolated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := onMacvlan(w)
	n.firewall = attributes{"ingressPolicy": "isolated"}
	rt := w.runtime(n)
	a, b := w.add(rt, "a"), w.add(rt, "b")
	serve(t, a, "a", ":80")
	wantChecked(t, a)
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		ask(t, w.Client(), proto, at(fam.pod(a), 80)) // it is the gateway
		denied(t, b, proto, at(fam.pod(a), 80))
	})
	linkLocal(t, b)
	for _, proto := range []string{"tcp", "udp"} { // nor by the addresses of the link
		denied(t, b, proto, netip.AddrPortFrom(linkLocal(t, a).WithZone(deviceIndex(t, b)), 80).String())
	}
	n.name, n.firewall = "other", attributes{"ingressPolicy": "same-bridge"}
	if err := w.newPod(w.runtime(n), "c").tryAdd(); err == nil || !strings.Contains(err.Error(), "same-bridge") {
		t.Errorf("same-bridge without a bridge: %v", err)
	}
}

// linkLocal is the link-local address of the pod's device.
func linkLocal(t testing.TB, p *pod) (a netip.Addr) {
	t.Helper()
	eventually(t, patience, func() (err error) {
		fields := strings.Fields(sh(t, p, "ip -6 -o addr show dev eth0 scope link -tentative"))
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
func deviceIndex(t testing.TB, p *pod) string {
	t.Helper()
	index, _, _ := strings.Cut(sh(t, p, "ip -o link show dev eth0"), ":")
	return index
}
