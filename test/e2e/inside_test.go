// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// inside is a kind of pod that has no device on the node, so that firewall and
// bandwidth work in its own namespace. The client is its neighbour or, for
// devices without a layer 2, its gateway's.
type inside struct {
	name, plugin string
	extra        attributes
	subnets      []string // of the pods; nil: the uplink's
	before       []string // lines of ip(8) on the node
	client       []string // and on the client
	far          []string // the client's addresses, where they are not the uplink's
	need         string
}

func insides() []inside {
	return []inside{
		{name: "macvlan", plugin: "macvlan", need: "macvlan"},
		{name: "ipvlan l2", plugin: "ipvlan", need: "ipvlan"},
		{name: "ipvlan l3", plugin: "ipvlan", need: "ipvlan", extra: attributes{"mode": "l3"}, subnets: []string{"10.88.0.0/24", "fd00:88::/64"}},
		{
			name: "vlan", plugin: "vlan", need: "vlan", extra: attributes{"vlanId": 100},
			subnets: []string{"10.77.0.0/24", "fd00:77::/64"}, far: []string{"10.77.0.99", "fd00:77::99"},
			client: []string{
				"link add link eth0 name tagged type vlan id 100", "addr add 10.77.0.99/24 dev tagged",
				"addr add fd00:77::99/64 dev tagged nodad", "link set tagged up",
			},
		},
		{ // a card whose wire leads to the client
			name: "host-device", plugin: "host-device", extra: attributes{"device": "nic0"},
			subnets: []string{"10.88.0.0/24", "fd00:88::/64"}, far: []string{"10.88.0.99", "fd00:88::99"},
			before: []string{"link add nic0 type veth peer name wire0 netns CLIENT"},
			client: []string{"addr add 10.88.0.99/24 dev wire0", "addr add fd00:88::99/64 dev wire0 nodad", "link set wire0 up"},
		},
		{ // the kind of device that an SR-IOV card's function is to others: one of several on a wire
			name: "host-device macvlan", plugin: "host-device", need: "macvlan", extra: attributes{"device": "nic0"},
			before: []string{"link add link eth0 name nic0 type macvlan mode bridge"},
		},
	}
}

// world is a node with what the pods of this kind need.
func (k inside) world(t *testing.T) *world {
	t.Helper()
	if k.need != "" {
		require.Link(t, k.need)
	}
	w := newWorld(t)
	for _, line := range k.before {
		sh(t, w.Node, "ip "+strings.ReplaceAll(line, "CLIENT", w.Client().ProcPath()))
	}
	for _, line := range k.client {
		sh(t, w.Client(), "ip "+line)
	}
	return w
}

func (k inside) network(plugins ...string) network {
	n := onLAN(k.plugin, k.extra)
	if k.plugin == "host-device" {
		delete(n.extra, "master")
	}
	if k.subnets != nil {
		var ranges []any
		for i, s := range k.subnets {
			r := attributes{"subnet": s}
			if k.far != nil {
				r["gateway"] = k.far[i]
			}
			ranges = append(ranges, []attributes{r})
		}
		n.ipam = attributes{"ranges": ranges}
	}
	n.plugins = plugins
	return n
}

// peer is the client's address on the pods' network.
func (k inside) peer(w *world, fam family) netip.Addr {
	for _, a := range k.far {
		if addr := netip.MustParseAddr(a); addr.Is4() == (fam.suffix == "4") {
			return addr
		}
	}
	return fam.client(w.Client())
}

func eachInside(t *testing.T, f func(t *testing.T, k inside)) {
	t.Helper()
	for _, k := range insides() {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			f(t, k)
		})
	}
}

// Rules of the firewall hold in both directions and families, by programs inside
// the pod's namespace. DEL takes them out, and does not need the namespace.
func TestPrivilegedInsideFirewall(t *testing.T) {
	t.Parallel()
	eachInside(t, func(t *testing.T, k inside) {
		w := k.world(t)
		n := k.network("firewall")
		n.firewall = attributes{"backend": "ebpf", "rules": attributes{
			"ingress":        []attributes{{"action": "allow", "ports": []int{80}}},
			"ingressDefault": "deny",
			"egress":         []attributes{{"action": "deny", "ports": []int{9001}}},
		}}
		rt := w.runtime(n)
		a := w.add(rt, "a")
		for _, port := range []string{":80", ":81"} {
			serve(t, a, "a", port)
		}
		for _, port := range []string{":9000", ":9001"} {
			serve(t, w.Client(), "client", port)
		}
		wantChecked(t, a)
		eachTransport(t, func(t *testing.T, fam family, proto string) {
			if got := ask(t, w.Client(), proto, at(fam.pod(a), 80)); got.name != "a" || got.peer.Addr() != k.peer(w, fam) {
				t.Errorf("%s saw %s, want a to see the client", got.name, got.peer)
			}
			denied(t, w.Client(), proto, at(fam.pod(a), 81))
			if got := ask(t, a, proto, at(k.peer(w, fam), 9000)); got.name != "client" || got.peer.Addr() != fam.pod(a) {
				t.Errorf("%s saw %s, want the client to see a", got.name, got.peer)
			}
			denied(t, a, proto, at(k.peer(w, fam), 9001))
		})
		a.mustDel()
		if out := sh(t, w.Node, programs.Path("sluice")+" endpoints -w"); strings.Contains(out, "admit") {
			t.Errorf("left by DEL:\n%s", out)
		}
		if strings.HasPrefix(k.name, "host-device") && !w.has("nic0") {
			t.Error("DEL did not give the device back")
		}
		if k.name == "host-device" { // a veth ends with the namespace
			return
		}
		b := w.add(rt, "b")
		if err := b.Delete(); err != nil {
			t.Fatal(err)
		}
		b.mustDel()
		if out := sh(t, w.Node, programs.Path("sluice")+" endpoints -w"); strings.Contains(out, "admit") {
			t.Errorf("left by DEL without the namespace:\n%s", out)
		}
	})
}

// has reports whether the node has a device of that name.
func (w *world) has(name string) bool {
	w.t.Helper()
	return w.Node.Do(func() error { _, err := netlab.Run("ip", "link", "show", name); return err }) == nil
}

// Both directions are limited, with departure times and with token buckets, in
// a chain with the firewall; DEL leaves nothing in the datapath.
func TestPrivilegedInsideBandwidth(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"edt", "tbf"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			if backend == "edt" {
				require.Qdisc(t, "fq")
			}
			eachInside(t, func(t *testing.T, k inside) { k.limited(t, backend) })
		})
	}
}

func (k inside) limited(t *testing.T, backend string) {
	t.Helper()
	w := k.world(t)
	n := k.network("firewall", "bandwidth")
	n.bandwidth = merged(attributes{"backend": backend}, merged(limits("ingress", 8*megabit, megabit/5), limits("egress", 8*megabit, megabit/5)))
	rt := w.runtime(n)
	a := w.add(rt, "a")
	drain(t, a)
	drain(t, w.Client())
	wantChecked(t, a)
	eachFamily(t, func(t *testing.T, fam family) {
		for name, way := range map[string]struct {
			from place
			to   netip.Addr
		}{"ingress": {w.Client(), fam.pod(a)}, "egress": {a, k.peer(w, fam)}} {
			got, err := rate(way.from, "tcp"+fam.suffix, at(way.to, 90))
			if err != nil {
				t.Errorf("%s: %v", name, err)
			} else if got > 10*megabit {
				t.Errorf("%s: %.1f Mbit/s of 8", name, got/megabit)
			}
		}
	})
	sh(t, a, "tc qdisc del dev eth0 root")
	if a.check() == nil {
		t.Error("CHECK does not miss the qdisc")
	}
	a.mustDel()
	a.mustDel()
	for _, words := range []string{"endpoints -w", "bandwidth -w"} {
		if out := sh(t, w.Node, programs.Path("sluice")+" "+words); strings.Contains(out, "eth0") {
			t.Errorf("left in %s:\n%s", words, out)
		}
	}
}

// Ports are published by netfilter: there is no end on the node that eBPF could
// lead to, and the reference publishes them too. Who asks for eBPF is told.
func TestPrivilegedInsidePortmap(t *testing.T) {
	t.Parallel()
	eachInside(t, func(t *testing.T, k inside) {
		w := k.world(t)
		rt := w.runtime(k.network("portmap", "firewall"))
		before := w.settled(rt, tcp(8080, 80))
		a := w.add(rt, "a", tcp(8080, 80))
		wantChecked(t, a)
		if out := sh(t, w.Node, "iptables-save -t nat") + sh(t, w.Node, "nft list ruleset"); !strings.Contains(out, a.IP4.String()+":80") {
			t.Errorf("no rule leads to the pod:\n%s", out)
		}
		a.mustDel()
		if err := a.Delete(); err != nil {
			t.Fatal(err)
		}
		if k.name != "host-device" { // its device ends with the namespace of the pod before
			w.assertNothingLeft(before)
		}
	})
}

func TestPrivilegedInsidePortmapRefused(t *testing.T) {
	t.Parallel()
	k := insides()[0]
	w := k.world(t)
	n := k.network("portmap")
	n.portmap = attributes{"backend": "ebpf"}
	p := w.newPod(w.runtime(n), "a", tcp(8080, 80))
	if err := p.tryAdd(); err == nil || !strings.Contains(err.Error(), "no host end") {
		t.Errorf("ADD: %v, want the reason", err)
	}
}

// A card's pod is reached through the node's port where its network leads to it.
func TestPrivilegedInsidePortmapTraffic(t *testing.T) {
	t.Parallel()
	for _, k := range insides() {
		if k.name != "host-device" {
			continue
		}
		w := k.world(t)
		n := k.network("portmap")
		n.portmap = attributes{"masqAll": true} // the pod's way back is not through the node
		for i, s := range k.subnets {
			sh(t, w.Node, "ip route add "+s+" via "+w.Client().Uplink.Client[i].Addr().String())
		}
		for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
			if err := errors.Join(w.Client().WriteSysctl(key, "1"), w.Node.WriteSysctl(key, "1")); err != nil {
				t.Fatal(err)
			}
		}
		a := w.add(w.runtime(n), "a", tcp(8080, 80), udp(8080, 80))
		serve(t, a, "a", ":80")
		eachTransport(t, func(t *testing.T, fam family, proto string) {
			if got := ask(t, w.Client(), proto, at(fam.node(w.Client()), 8080)); got.name != "a" || got.peer.Addr() != fam.node(w.Client()) {
				t.Errorf("%s saw %s, want a to see the node", got.name, got.peer)
			}
		})
	}
}
