// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"net/netip"
	"testing"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
	networkpolicymap "github.com/sluice-cni/sluice/pkg/maps/networkpolicy"
	policymap "github.com/sluice-cni/sluice/pkg/maps/policy"
	"github.com/sluice-cni/sluice/pkg/networkpolicy"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

const (
	reasonNPIngress = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_NP_INGRESS)
	reasonNPEgress  = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_NP_EGRESS)
	reasonNPPending = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_NP_PENDING)
)

// generation is that of the tables that walks write.
const generation = 0x12345678

func (w *walk) networkPolicies() networkpolicymap.Tables {
	return networkpolicymap.Tables{
		Peers: w.views["sl_np_peers"], CIDRs: w.views["sl_np_cidrs"], Services: w.views["sl_np_services"], Bits: w.views["sl_np_bits"],
	}
}

func (w *walk) ok(err error) {
	w.tb.Helper()
	if err != nil {
		w.tb.Fatal(err)
	}
}

// network puts a pod under segments beside its rules, if there are some.
func (w *walk) network(p *pod, id uint16, rules *policymap.Value, segments ...networkpolicy.Segment) {
	w.tb.Helper()
	np, err := networkpolicymap.NewPolicy(generation, 0x77, segments)
	w.ok(err)
	w.underNetwork(p, id, policymap.Policy{Rules: rules, Network: np})
}

func (w *walk) underNetwork(p *pod, id uint16, pol policymap.Policy) {
	w.tb.Helper()
	w.ok(w.policies().Put(id, pol))
	w.put("sl_dev_policy", uint32(w.index(p.name)), policymap.NewPoliced(p.owner, uint32(w.index(p.route)), id, pol))
	w.underPolicy(p, id)
}

// class gives an address a class that has the points.
func (w *walk) class(a netip.Addr, class networkpolicy.Class, points ...networkpolicy.Point) {
	w.tb.Helper()
	w.ok(w.networkPolicies().PutPeer(generation, a, class, 1))
	w.points(generation, class, points...)
}

func (w *walk) points(generation uint32, class networkpolicy.Class, points ...networkpolicy.Point) {
	w.tb.Helper()
	chunks := map[int]networkpolicy.Chunk{0: {}}
	for _, p := range points {
		c := chunks[int(p)/networkpolicy.ChunkBits]
		c[int(p)%networkpolicy.ChunkBits/64] |= 1 << (p % 64)
		chunks[int(p)/networkpolicy.ChunkBits] = c
	}
	for i, c := range chunks {
		w.ok(w.networkPolicies().PutBits(generation, class, i, c))
	}
}

// rest is the last segment of a direction.
func rest(dir networkpolicy.Direction, point networkpolicy.Point) networkpolicy.Segment {
	return networkpolicy.Segment{Direction: dir, Last: 1<<16 - 1, Point: point}
}

// onPort is a segment about one port of the protocol; of a protocol without ports, about everything.
func onPort(dir networkpolicy.Direction, proto int, port uint16, point networkpolicy.Point) networkpolicy.Segment {
	if proto == echo {
		return rest(dir, point)
	}
	number := networkpolicy.TCP
	if proto == udp {
		number = networkpolicy.UDP
	}
	return networkpolicy.Segment{Direction: dir, Protocol: number, First: port, Last: port, Point: point}
}

const (
	in, out = networkpolicy.Ingress, networkpolicy.Egress
	deny    = networkpolicy.DenyPoint
	accept  = networkpolicy.AcceptPoint
)

// The class of the client decides about each port, and a known connection goes on as without a policy.
func TestPrivilegedNetworkPolicyIngress(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, policyWalk(func(w *walk, family, proto int) {
		const point = 700 // in the second chunk
		w.network(podA, 7, nil, onPort(in, proto, podPort, point), rest(in, deny), rest(out, accept))
		w.class(client(family), 5, 3, point)
		w.class(pick(family, far4, far6), 6, point-1, point+1, point-512)
		j := w.toPod(family, proto)
		j.in("S")
		j.out("SA")
		j.inFast("A")
		j.inFast("PA")
		j.outFast("PA")
		stranger := w.toPod(family, proto)
		stranger.inside.remote = at(pick(family, far4, far6), clientPort+1)
		stranger.refusedIn("S", reasonNPIngress)
		if proto != echo {
			other := w.toPod(family, proto)
			other.inside.local = at(podA.addr(family), podPort+1)
			other.refusedIn("S", reasonNPIngress)
		}
		w.wantFlows(1, 0)
	}))
}

func TestPrivilegedNetworkPolicyEgress(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, policyWalk(func(w *walk, family, proto int) {
		w.network(podA, 7, nil, rest(in, deny), onPort(out, proto, serverTCP, 2), rest(out, deny))
		w.class(client(family), 5, 2)
		j := w.opens(family, proto, podA, keptPort, keptPort)
		j.out("S")
		j.in("SA")
		j.outFast("A")
		j.inFast("PA")
		other := w.opens(family, proto, podA, keptPort+2, keptPort+2)
		other.inside.remote = at(pick(family, far4, far6), serverTCP)
		other.refusedOut("S", reasonNPEgress)
		w.toPod(family, proto).refusedIn("S", reasonNPIngress)
	}), masquerading(podA))
}

// The longest network answers for an address that is no pod's and no node's, and class 0 for one in none. Other generations do not matter.
func TestPrivilegedNetworkPolicyClasses(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		fx.each(t, map[int]string{4: "4", 6: "6"}[family], func(w *walk) {
			w.came = upl0.name
			w.network(podA, 7, nil, rest(in, 2), rest(out, accept))
			tables, addr := w.networkPolicies(), client(family)
			open := func(want bool) {
				w.tb.Helper()
				w.empty("sl_ct")
				w.empty("sl_ct_unassured")
				j := w.toPod(family, tcp)
				if want {
					j.in("S")
				} else {
					j.refusedIn("S", reasonNPIngress)
				}
			}
			open(false)
			w.points(generation, 0, 2)
			open(true) // class 0
			short, long := netip.PrefixFrom(addr, addr.BitLen()-16).Masked(), netip.PrefixFrom(addr, addr.BitLen()-3).Masked()
			w.ok(tables.PutCIDR(generation, short, 8))
			open(false)
			w.points(generation, 9, 2)
			w.ok(tables.PutCIDR(generation, long, 9))
			open(true)
			w.ok(tables.PutPeer(generation, addr, 8, 1))
			open(false)
			w.ok(tables.PutPeer(generation, addr, 9, 1))
			open(true)
			w.ok(tables.DeletePeer(generation, addr, 1))
			w.ok(tables.DeleteCIDR(generation, long))
			open(false)
			w.ok(tables.PutPeer(generation+1, addr, 9, 1))
			w.ok(tables.PutCIDR(generation+1, long, 9))
			w.points(generation+1, 8, 2)
			open(false)
			other := netip.MustParsePrefix("::ffff:0:0/96") // what says something of all of IPv4 says nothing of IPv6, and the reverse
			if family == 4 {
				other = netip.MustParsePrefix("2000::/3")
			}
			w.ok(tables.DeleteCIDR(generation, short))
			w.ok(tables.PutCIDR(generation, other, 8))
			open(true) // class 0
		})
	}
}

// The segments of a set are tried in their order, all 128 of them.
func TestPrivilegedNetworkPolicySegments(t *testing.T) {
	fx := newFixture(t, nil)
	fx.each(t, "many", func(w *walk) {
		w.came = upl0.name
		var segments []networkpolicy.Segment
		for i := range uint16(126) {
			port, point := 1000+i, deny
			if i == 125 {
				port, point = podPort, accept
			}
			segments = append(segments, networkpolicy.Segment{Direction: in, Protocol: networkpolicy.TCP, First: port, Last: port, Point: point})
		}
		w.network(podA, 7, nil, append(segments, rest(in, deny), rest(out, deny))...)
		w.toPod(4, tcp).in("S")
		before := w.toPod(4, tcp)
		before.inside.local = at(podA.addr(4), podPort-1)
		before.refusedIn("S", reasonNPIngress)
		w.plain(4, tcp, podA, keptPort).refusedOut("S", reasonNPEgress)
	})
}

// Both the rules and NetworkPolicy have to admit a connection.
func TestPrivilegedNetworkPolicyBesideRules(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, policyWalk(func(w *walk, family, proto int) {
		rules := w.putPolicy(7, "open", onlyTo("ingress", proto, client(family), podPort)).Rules
		w.network(podA, 7, rules, rest(in, 2), rest(out, accept))
		w.class(client(family), 5)
		w.class(pick(family, far4, far6), 6, 2)
		w.toPod(family, proto).refusedIn("S", reasonNPIngress)
		stranger := w.toPod(family, proto)
		stranger.inside.remote = at(pick(family, far4, far6), clientPort)
		stranger.refusedIn("S", reasonIngress)
		w.plain(family, proto, podA, keptPort).refusedOut("S", reasonEgress)
		w.points(generation, 5, 2)
		w.toPod(family, proto).in("S")
	}))
}

// A closed pod gets nothing but what the node's processes send, and may answer that. It opens nothing.
func TestPrivilegedNetworkPolicyPending(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		w.underNetwork(podA, 7, policymap.Policy{Network: networkpolicymap.Closed()})
		w.class(client(family), 5, 2)
		w.came = upl0.name
		w.toPod(family, proto).refusedIn("S", reasonNPPending)
		w.plain(family, proto, podA, keptPort).refusedOut("S", reasonNPPending)
		w.came = ""
		probe := w.toPod(family, proto)
		probe.inside.remote = at(pick(family, upl0.addr4, upl0.addr6), clientPort)
		f := probe.inside.rx("S").routed(podA.gwMAC, podA.mac)
		w.stepInput(podIngress, podA.name, input{data: f.bytes(w.tb)}, passes(f.bytes(w.tb)))
	})
}

// A connection is asked about again when the pod has other policies, and goes on where it stays admitted.
func TestPrivilegedNetworkPolicyChanges(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, policyWalk(func(w *walk, family, proto int) {
		j := w.toPod(family, proto)
		j.in("S")
		j.out("SA")
		j.inFast("A")
		j.inFast("PA")
		w.network(podA, 7, nil, rest(in, 2), rest(out, deny)) // from none to one
		w.class(client(family), 5, 2)
		j.in("PA")
		j.inFast("PA")
		j.outFast("PA")
		w.network(podA, 8, nil, rest(in, 3), rest(out, accept))
		j.refusedOut("PA", reasonNPIngress) // the client had opened it
		w.network(podA, 9, nil, rest(in, 2), rest(out, deny))
		j.outFast("PA") // asked and admitted on its way
		j.inFast("PA")
	}))
}

// Two pods of the node: the first has to be admitted to the second, and may be told so by either's policies. A pod reaches its own address.
func TestPrivilegedNetworkPolicyPodToPod(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		w.class(podA.addr(family), 5, 2)
		w.class(podB.addr(family), 6, 3)
		w.network(podA, 7, nil, rest(in, deny), rest(out, 2))
		p := w.talk(family, proto, podA, podB)
		p.refused("S", reasonNPEgress)
		w.network(podA, 8, nil, rest(in, deny), rest(out, 3))
		w.network(podB, 9, nil, rest(in, 3), rest(out, deny))
		f := p.sent("S")
		b := p.step(podEgress, podA.name, f.bytes(w.tb), passes(f.bytes(w.tb)))
		if !p.bridged() {
			b = route(b, podB.gwMAC, podB.mac)
		}
		w.stepInput(podIngress, podB.name, input{data: b, came: podA.name}, wantDrop(reasonNPIngress, podB))
		w.network(podB, 10, nil, rest(in, 2), rest(out, deny))
		p.slow("S")
	})
}

// A packet that hides its ports has none that a segment could be about.
func TestPrivilegedNetworkPolicyHiddenPorts(t *testing.T) {
	fx := newFixture(t, nil)
	fx.each(t, "fragment", func(w *walk) {
		w.came = upl0.name
		w.network(podA, 7, nil, rest(in, 2), rest(out, accept))
		w.class(client(4), 5, 2)
		f := w.toPod(4, udp).inside.rx("S").routed(podA.gwMAC, podA.mac)
		data := fragment(read(f.bytes(w.tb)), 64, make([]byte, 64), false)
		w.stepInput(podIngress, podA.name, input{data: data, came: upl0.name, badSums: true}, wantDrop(reasonOpaque, podA))
	})
}

// services has the Services' addresses of both families in the table.
func services(w *walk) {
	for _, p := range []string{"10.96.0.0/12", "fd00:96::/64"} {
		w.ok(w.networkPolicies().PutService(generation, netip.MustParsePrefix(p)))
	}
}

// What a pod opens through a Service is asked about behind the translation, also where netfilter masquerades it, and again with another
// policy. An answer to a client that came by a NodePort is not asked about.
func TestPrivilegedNetworkPolicyService(t *testing.T) {
	natCases(t, func(n *natted) {
		family := n.family()
		services(n.walk)
		n.class(client(family), 5, 2)
		if n.clientOpens {
			n.network(podA, 7, nil, rest(in, accept), rest(out, deny))
			n.open()
			n.outFast("PA")
			return
		}
		n.network(podA, 7, nil, rest(in, deny), onPort(out, n.inside.proto, serverTCP, 2), rest(out, deny))
		n.open()
		n.outFast("PA")
		n.inFast("PA")
		n.network(podA, 8, nil, rest(in, accept), rest(out, 2))
		n.outFast("PA") // asked and admitted, by the destination that is known
		n.inFast("PA")
		n.network(podA, 9, nil, rest(in, deny), rest(out, 2))
		n.in("PA") // the answer comes first
		if n.isFast() {
			n.outFast("A")
		} else { // netfilter has seen data that the pod has not acknowledged
			n.out("A")
		}
		n.network(podA, 10, nil, rest(in, accept), rest(out, 3))
		n.step(uplIngress, upl0.name, n.arrived(n.outside, "PA").bytes(n.tb), passes(n.arrived(n.stack, "PA").bytes(n.tb)))
		n.netfilter(false)
		came := n.inside.rx("PA").routed(podA.gwMAC, podA.mac).bytes(n.tb)
		n.stepInput(podIngress, podA.name, input{data: came, came: upl0.name}, wantDrop(reasonNPEgress, podA))
		b := n.sent("PA").bytes(n.tb)
		n.step(podEgress, podA.name, b, wantDrop(reasonNPEgress, podA))
	})
}

// leavesDenied sends a packet of the pod that the uplink's hook denies.
func (n *natted) leavesDenied(kind string) {
	n.tb.Helper()
	b := n.sent(kind).bytes(n.tb)
	n.step(podEgress, podA.name, b, passes(b))
	n.netfilter(true)
	left := n.stack.tx(kind).routed(upl0.mac, upl0.router).bytes(n.tb)
	n.stepInput(uplEgress, upl0.name, input{data: left, came: podA.name}, wantDrop(reasonNPEgress, podA))
}

func TestPrivilegedNetworkPolicyServiceDenied(t *testing.T) {
	natCases(t, func(n *natted) {
		if n.clientOpens || n.inside.remote == n.outside.remote {
			return
		}
		services(n.walk)
		n.network(podA, 7, nil, rest(in, accept), rest(out, 2))
		n.points(generation, 0, 2) // what is neither a pod's nor a node's, as the Service
		n.class(client(n.family()), 5)
		for range 2 {
			n.leavesDenied("S")
		}
		n.class(client(n.family()), 5, 2)
		n.open()
		n.class(client(n.family()), 5)
		n.network(podA, 8, nil, rest(in, accept), rest(out, 2))
		b := n.sent("PA").bytes(n.tb)
		n.step(podEgress, podA.name, b, wantDrop(reasonNPEgress, podA))
	})
}

// What nobody has translated leaves with the Service's address, and is asked about by that.
func TestPrivilegedNetworkPolicyServiceOfNobody(t *testing.T) {
	natCases(t, func(n *natted) {
		if n.clientOpens || n.inside.remote == n.outside.remote || n.stack.local != n.inside.local || n.outside.local != n.stack.local {
			return
		}
		services(n.walk)
		n.network(podA, 7, nil, rest(in, accept), rest(out, 2))
		n.points(generation, 0)
		b := n.sent("S").bytes(n.tb)
		n.step(podEgress, podA.name, b, passes(b))
		left := n.inside.tx("S").routed(upl0.mac, upl0.router).bytes(n.tb)
		n.stepInput(uplEgress, upl0.name, input{data: left, came: podA.name}, wantDrop(reasonNPEgress, podA))
		n.points(generation, 0, 2)
		n.stepInput(uplEgress, upl0.name, input{data: left, came: podA.name}, passes(left))
		n.points(generation, 0)
		n.stepInput(uplEgress, upl0.name, input{data: left, came: podA.name}, passes(left)) // known by now
	})
}

// A Service whose endpoint is another pod of the node: the receiver's hook asks both pods' policies.
func TestPrivilegedNetworkPolicyServicePodToPod(t *testing.T) {
	require.TestRunIngress(t)
	fx := newFixture(t, nil)
	for _, family := range families {
		for _, masq := range []bool{false, true} {
			fx.each(t, pick(family, "4", "6")+map[bool]string{true: "masqueraded"}[masq], func(w *walk) {
				services(w)
				asks := conn{proto: tcp, local: at(podA.addr(family), keptPort), remote: at(pick(family, ip("10.96.0.10"), ip("fd00:96::a")), 80)}
				asked := conn{proto: tcp, local: at(podC.addr(family), 8000), remote: asks.local, remoteAsks: true}
				from := podA.addr(family)
				if masq {
					from = pick(family, ip("10.1.0.1"), ip("fd00:1::1"))
					asked.remote = at(from, 4242)
				}
				nfTuple(w.tuples[:56], tcp, asks.local, asks.remote)
				nfTuple(w.tuples[56:112], tcp, asked.local, asked.remote)
				w.nfStatus(nfConfirmed)
				w.class(from, 4, 2)
				w.class(podC.addr(family), 5)
				w.network(podA, 7, nil, rest(in, deny), onPort(out, tcp, 8000, 3), rest(out, deny))
				w.network(podC, 8, nil, onPort(in, tcp, 8000, 2), rest(in, deny), rest(out, deny))
				send := func(want func(b []byte) want) {
					w.tb.Helper()
					sent := asks.tx("S")
					sent.srcMAC, sent.dstMAC = podA.mac, podA.gwMAC
					got := asked.rx("S")
					got.id = sent.id
					b := sent.bytes(w.tb)
					w.step(podEgress, podA.name, b, passes(b))
					w.nfct = trackedBit
					arrived := got.routed(podC.gwMAC, podC.mac).bytes(w.tb)
					w.stepInput(podIngress, podC.name, input{data: arrived, came: podA.name}, want(arrived))
				}
				send(func([]byte) want { return wantDrop(reasonNPEgress, podC) })
				w.points(generation, 5, 3)
				w.points(generation, 4)
				send(func([]byte) want { return wantDrop(reasonNPIngress, podC) })
				w.points(generation, 4, 2)
				send(passes)
				w.exchange(podC, podA, asked.tx("SA"), asks.rx("SA"), replyInfo, false)
			}, oneNetwork)
		}
	}
}
