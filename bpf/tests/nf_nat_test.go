// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// nfTuplesSize is the size of what the programs read of nf_conn: tuplehash, which is two times struct nf_conntrack_tuple_hash, and status.
const nfTuplesSize = 2*56 + 8

// nfConfirmed and nfDying are bits of nf_conn.status: IPS_CONFIRMED, IPS_DYING.
const (
	nfConfirmed = 1 << 3
	nfDying     = 1 << 9
)

// nfStatus sets the status of netfilter's entry.
func (w *walk) nfStatus(status uint64) { binary.NativeEndian.PutUint64(w.tuples[112:], status) }

// replyInfo is IP_CT_ESTABLISHED_REPLY in the low bits of sk_buff._nfct.
const replyInfo = 3

// nfTuple writes one direction of netfilter's entry.
func nfTuple(to []byte, proto int, src, dst netip.AddrPort) {
	copy(to[16:], src.Addr().AsSlice())
	binary.BigEndian.PutUint16(to[32:], src.Port())
	copy(to[36:], dst.Addr().AsSlice())
	binary.BigEndian.PutUint16(to[52:], dst.Port())
	to[54] = byte(proto)
}

// natted is a connection that netfilter translates: as the pod sees it, as it is in the stack between netfilter and the uplink,
// and as it is outside.
type natted struct {
	*walk
	pod                    *pod
	inside, stack, outside conn
	clientOpens            bool
	entry                  uint64 // netfilter's is that far behind the first one
}

// netfilter has netfilter's entry for the connection on the next packet, which is of the pod's direction or not.
func (n *natted) netfilter(fromPod bool) {
	n.nfct = trackedBit + n.entry
	if fromPod == n.clientOpens {
		n.nfct |= replyInfo
	}
	n.nfStatus(nfConfirmed)
	orig, reply := n.tuples[:56], n.tuples[56:112]
	if n.clientOpens {
		nfTuple(orig, n.inside.proto, n.stack.remote, n.stack.local)
		nfTuple(reply, n.inside.proto, n.inside.local, n.inside.remote)
		return
	}
	nfTuple(orig, n.inside.proto, n.inside.local, n.inside.remote)
	nfTuple(reply, n.inside.proto, n.stack.remote, n.stack.local)
}

func (n *natted) sent(kind string) frame {
	f := n.inside.tx(kind)
	f.srcMAC, f.dstMAC = n.pod.mac, n.pod.gwMAC
	return f
}

func (n *natted) arrived(c conn, kind string) frame {
	f := c.rx(kind)
	f.srcMAC, f.dstMAC = upl0.router, upl0.mac
	return f
}

// out sends a packet of the pod by the slow path.
func (n *natted) out(kind string) {
	n.tb.Helper()
	b := n.sent(kind).bytes(n.tb)
	n.step(podEgress, n.pod.name, b, passes(b))
	n.netfilter(true)
	left := passes(n.outside.tx(kind).routed(upl0.mac, upl0.router).bytes(n.tb))
	left.uncounted = true
	n.stepInput(uplEgress, upl0.name, input{data: n.stack.tx(kind).routed(upl0.mac, upl0.router).bytes(n.tb), came: n.pod.name}, left)
}

func (n *natted) outFast(kind string) {
	n.tb.Helper()
	b, left := n.sent(kind).bytes(n.tb), n.outside.tx(kind)
	f, _ := n.lookup(proven, n.inside)
	want := toNeigh(upl0, left.routed(n.pod.mac, n.pod.gwMAC).bytes(n.tb))
	if n.clock < f.NexthopUntil && len(b)-ethLen <= int(f.NexthopLen) {
		want = toLink(upl0, left.routed(upl0.mac, upl0.router).bytes(n.tb))
	}
	n.step(podEgress, n.pod.name, b, want)
}

// in brings a packet from outside to the pod by the slow path.
func (n *natted) in(kind string) {
	n.tb.Helper()
	up := passes(n.arrived(n.stack, kind).bytes(n.tb))
	n.step(uplIngress, upl0.name, n.arrived(n.outside, kind).bytes(n.tb), up)
	n.netfilter(false)
	b := n.inside.rx(kind).routed(n.pod.gwMAC, n.pod.mac).bytes(n.tb)
	n.stepInput(podIngress, n.pod.name, input{data: b, came: upl0.name}, passes(b))
}

func (n *natted) inFast(kind string) {
	n.tb.Helper()
	n.step(uplIngress, upl0.name, n.arrived(n.outside, kind).bytes(n.tb), toPeer(n.pod, n.inside.rx(kind).routed(n.pod.gwMAC, n.pod.mac).bytes(n.tb)))
}

// open brings the connection to where its next packets take the fast path.
func (n *natted) open() {
	n.tb.Helper()
	first, second := n.slow()
	first("S")
	second("SA")
	if n.inside.proto == udp {
		n.later(nfStreamAge)
	}
	n.learn()
}

// slow returns what sends a packet of the end that opens the connection, and of the other one.
func (n *natted) slow() (first, second func(kind string)) {
	if n.clientOpens {
		return n.in, n.out
	}
	return n.out, n.in
}

// learn goes on with the connection until its next packets take the fast path.
func (n *natted) learn() {
	n.tb.Helper()
	first, second := n.slow()
	for range 8 {
		for _, send := range []func(kind string){first, second} {
			if n.isFast() {
				return
			}
			send("A")
		}
	}
	n.tb.Fatalf("the connection is not learned:\n%s", n.dump())
}

// isFast reports whether the next packet takes the fast path.
func (n *natted) isFast() bool {
	f, ok := n.lookup(proven, n.inside)
	due := n.inside.proto == udp && f.RelearnAt-uint32(n.clock>>20)-1 >= 2*uint32(time.Second>>20)
	return ok && f.Flags&flowConfirmed == flowConfirmed && !due
}

// nfStreamAge is a little more than the age at which an entry of UDP counts as a stream.
const nfStreamAge = 2100 * time.Millisecond

// natCases runs f for the kinds of translated connections with an end outside: to a Service and through a NodePort, with and without
// masquerade by netfilter and by us.
func natCases(t *testing.T, f func(n *natted)) {
	t.Helper()
	require.TestRunIngress(t)
	fx := newFixture(t, nil)
	for _, family := range families {
		for _, proto := range []int{tcp, udp} {
			vip, node := at(pick(family, ip("10.96.0.10"), ip("fd00:96::a")), 80), at(upl0.addr(family), 30080)
			outside := conn{proto: proto, local: at(podA.addr(family), keptPort), remote: at(client(family), serverTCP)}
			inside := outside
			inside.remote = vip
			masked := outside.as(at(upl0.addr(family), keptPort))
			third := outside.as(at(upl0.addr(family), 4242))
			client := conn{proto: proto, local: node, remote: at(client(family), 4000)}
			served := client.as(at(podA.addr(family), 8000))
			shown := served
			shown.remote = at(pick(family, ip("10.1.0.1"), ip("fd00:1::1")), 4000)
			for _, c := range []struct {
				name                   string
				inside, stack, outside conn
				clientOpens            bool
				opts                   []option
			}{
				{"Service", inside, outside, outside, false, nil},
				{"Service, masqueraded by us", inside, outside, masked, false, []option{masquerading(podA)}},
				{"Service, masqueraded by netfilter", inside, third, third, false, []option{masquerading(podA)}},
				{"masqueraded by netfilter", outside, third, third, false, nil},
				{"NodePort", served, client, client, true, []option{masquerading(podA)}},
				{"NodePort, masqueraded", shown, client, client, true, nil},
			} {
				fx.each(t, c.name+pick(family, "/4", "/6")+map[int]string{tcp: "/tcp", udp: "/udp"}[proto], func(w *walk) {
					f(&natted{walk: w, pod: podA, inside: c.inside, stack: c.stack, outside: c.outside, clientOpens: c.clientOpens})
				}, c.opts...)
			}
		}
	}
}

// A connection that netfilter translates is learned with the translation, and takes the fast path in both directions.
func TestPrivilegedNetfilterNAT(t *testing.T) {
	natCases(t, func(n *natted) {
		n.open()
		for range 3 {
			n.outFast("PA")
			n.inFast("PA")
		}
		f, ok := n.lookup(proven, n.inside)
		if !ok || f.Flags&flowNFNAT == 0 || f.Other != n.outside.tuple() {
			n.tb.Errorf("the entry is %+v (%v), want one that leads to %s", f, ok, tupleText(n.outside.tuple()))
		}
		n.wantIndex(proven, n.outside, n.inside)
		n.wantFlows(2, 0)
	})
}

// A connection whose translation netfilter has changed (conntrack -D, and another endpoint) follows it with the first packet that the
// stack sees. What still comes from the old end belongs to no connection.
func TestPrivilegedNetfilterNATMoves(t *testing.T) {
	natCases(t, func(n *natted) {
		if n.inside.proto != udp || n.clientOpens || n.inside.remote == n.outside.remote {
			return
		}
		n.open()
		n.outFast("")
		n.nfStatus(nfConfirmed | nfDying)
		old := *n
		other := at(pick(n.family(), ip("203.0.113.77"), ip("2001:db8:9::77")), serverTCP)
		n.stack.remote, n.outside.remote = other, other
		n.out("")
		n.in("")
		b := old.arrived(old.outside, "").bytes(n.tb)
		if n.outside.local.Addr() == upl0.addr(n.family()) {
			n.step(uplIngress, upl0.name, b, untouched(b))
		}
		n.outFast("")
		n.inFast("")
		n.wantIndex(proven, n.outside, n.inside)
	})
}

func (n *natted) family() int {
	if n.inside.local.Addr().Is6() {
		return 6
	}
	return 4
}

// A connection whose outside tuple another one has taken leaves that alone: when it moves to another tuple, and when it goes on with its own,
// which netfilter has chosen and we do not replace.
func TestPrivilegedNetfilterNATTupleTaken(t *testing.T) {
	natCases(t, func(n *natted) {
		if n.inside.proto != udp || n.clientOpens || n.inside.remote == n.outside.remote {
			return
		}
		n.open()
		other := n.inside
		other.local = at(podB.addr(n.family()), keptPort)
		n.put(proven, n.outside.tuple(), &bpfgen.TypesSlCtEntry{
			Other: other.tuple(), Flags: flowIndex | flowSNAT | flowPodOpened, Owner: podB.owner, Created: n.clock, LastSeen: n.clock,
		})
		n.nfStatus(nfConfirmed | nfDying)
		old := n.outside
		if n.outside.local.Addr() == n.stack.local.Addr() {
			b := n.sent("").bytes(n.tb)
			n.step(podEgress, n.pod.name, b, passes(b))
			n.netfilter(true)
			left := n.stack.tx("").routed(upl0.mac, upl0.router).bytes(n.tb)
			n.stepInput(uplEgress, upl0.name, input{data: left, came: n.pod.name}, want{verdict: pass, out: left, uncounted: true})
			n.wantIndex(proven, old, other)
			n.nfStatus(nfConfirmed | nfDying)
		}
		moved := at(pick(n.family(), ip("203.0.113.77"), ip("2001:db8:9::77")), serverTCP)
		n.stack.remote, n.outside.remote = moved, moved
		n.out("")
		n.in("")
		n.outFast("")
		n.wantIndex(proven, old, other)
	})
}

// A packet takes the fast path only while netfilter has the entry: what goes by another one is for netfilter to decide, also if that has come to
// the same address. Behind a new entry the connection is learned anew, without waiting for its next confirmation.
func TestPrivilegedNetfilterNATEntryGone(t *testing.T) {
	for name, gone := range map[string]func(n *natted){
		"taken out":          func(n *natted) { n.nfStatus(nfConfirmed | nfDying) },
		"not in the table":   func(n *natted) { n.nfStatus(0) },
		"another connection": func(n *natted) { n.tuples[32]++ },
		"another answer":     func(n *natted) { n.tuples[56+32]++ },
	} {
		t.Run(name, func(t *testing.T) {
			natCases(t, func(n *natted) {
				n.open()
				for _, asks := range []bool{true, false} {
					n.outFast("PA")
					n.inFast("PA")
					gone(n)
					for range 2 {
						if asks {
							n.out("A")
						} else {
							n.in("A")
						}
						gone(n)
					}
					n.entry += 0x100
					n.out("A") // netfilter has one again
					n.learn()
					n.outFast("PA")
					n.inFast("PA")
				}
			})
		})
	}
}

// A client that talked through a NodePort, and now to the pod itself from the same port, is answered by the pod's own address, though the first
// connection was never closed.
func TestPrivilegedNetfilterNATGone(t *testing.T) {
	natCases(t, func(n *natted) {
		if n.inside.proto != tcp || !n.clientOpens || n.inside.remote != n.outside.remote {
			return
		}
		n.open()
		n.outFast("PA")
		n.inFast("PA")
		direct := *n
		direct.stack, direct.outside = n.inside, n.inside
		direct.in("S")
		direct.out("SA")
		direct.in("A")
		for range 3 {
			if direct.isFast() {
				direct.outFast("PA")
				direct.inFast("PA")
				continue
			}
			direct.out("A")
			direct.in("A")
		}
		n.wantNoReverse()
	})
}

// A Service that is gone is an address like any other: what a pod goes on sending to it is masqueraded, though it was answered before.
func TestPrivilegedNetfilterNATServiceGone(t *testing.T) {
	natCases(t, func(n *natted) {
		if n.inside.proto != udp || n.clientOpens || n.inside.remote == n.outside.remote || n.outside.local == n.stack.local {
			return
		}
		n.open()
		n.outFast("")
		n.nfStatus(nfConfirmed | nfDying)
		direct := *n
		direct.stack, direct.outside.remote = n.inside, n.inside.remote
		for range 3 {
			direct.out("")
		}
	})
}

// wantNoReverse checks that what comes under the outside tuple is for no pod any more.
func (n *natted) wantNoReverse() {
	n.tb.Helper()
	b := n.arrived(n.outside, "PA").bytes(n.tb)
	n.step(uplIngress, upl0.name, b, untouched(b))
}

// A SYN on the tuple of a connection that has ended begins anew, with what netfilter makes of it now.
func TestPrivilegedNetfilterNATBeginsAnew(t *testing.T) {
	natCases(t, func(n *natted) {
		if n.inside.proto != tcp || n.clientOpens {
			return
		}
		n.open()
		n.outFast("PA")
		n.inFast("PA")
		n.out("RA")
		if n.inside.remote != n.outside.remote {
			other := at(pick(n.family(), ip("203.0.113.77"), ip("2001:db8:9::77")), serverTCP)
			n.stack.remote, n.outside.remote = other, other
		}
		n.open()
		n.outFast("PA")
		n.inFast("PA")
	})
}

// An entry that the LRU took comes back by its reverse entry, with the translation.
func TestPrivilegedNetfilterNATRestored(t *testing.T) {
	natCases(t, func(n *natted) {
		if n.inside.proto != tcp {
			return
		}
		n.open()
		n.evict(n.inside)
		n.in("PA")
		n.out("PA")
		n.in("PA")
		f, ok := n.lookup(proven, n.inside)
		if !ok {
			f, ok = n.lookup(unproven, n.inside)
		}
		if !ok || f.Flags&flowNFNAT == 0 || f.Other != n.outside.tuple() {
			n.tb.Errorf("the entry is %+v (%v), want one that leads to %s", f, ok, tupleText(n.outside.tuple()))
		}
	})
}

// A packet whose entry of netfilter names other ends, such as that of the packet it was carried in, teaches nothing.
func TestPrivilegedNetfilterNATOfAnother(t *testing.T) {
	natCases(t, func(n *natted) {
		if n.clientOpens || n.outside != n.stack || n.stack.local.Addr() != n.inside.local.Addr() {
			return
		}
		b := n.sent("S").bytes(t)
		n.step(podEgress, n.pod.name, b, passes(b))
		n.netfilter(true)
		n.tuples[56+33]++ // the far end's port in the reply direction is another one
		left := n.stack.tx("S").routed(upl0.mac, upl0.router).bytes(t)
		n.stepInput(uplEgress, upl0.name, input{data: left, came: n.pod.name}, want{verdict: pass, out: left, uncounted: true})
		if f, ok := n.lookup(unproven, n.inside); !ok || f.Flags&flowNFNAT != 0 {
			t.Errorf("the entry is %+v (%v), want one without a translation", f, ok)
		}
	})
}

// exchange sends a packet from one pod to another, which sees another tuple.
func (w *walk) exchange(from, to *pod, sent, got frame, info uint64, fast bool) {
	w.tb.Helper()
	sent.srcMAC, sent.dstMAC = from.mac, from.gwMAC
	got.id = sent.id
	b, arrived := sent.bytes(w.tb), got.routed(to.gwMAC, to.mac).bytes(w.tb)
	if fast {
		want := toPeer(to, arrived)
		want.hostType = !isMAC(sent.dstMAC, w.links[from.name].MAC)
		w.step(podEgress, from.name, b, want)
		return
	}
	w.step(podEgress, from.name, b, passes(b))
	w.nfct = trackedBit | info
	w.stepInput(podIngress, to.name, input{data: arrived, came: from.name}, passes(arrived))
}

// Between two pods of the node each has an entry under its own tuple, and each learns what becomes of what it sends. A pod that reaches
// itself stays on the slow path.
func TestPrivilegedNetfilterNATPodToPod(t *testing.T) {
	require.TestRunIngress(t)
	fx := newFixture(t, nil)
	for _, family := range families {
		for _, masq := range []bool{false, true} {
			for _, ends := range [][2]*pod{{podA, podC}, {podC, podA}, {podA, podB}, {podA, podA}} {
				a, b := ends[0], ends[1]
				fx.each(t, pick(family, "4", "6")+map[bool]string{true: "masqueraded"}[masq]+a.name+b.name, func(w *walk) {
					asks := conn{proto: tcp, local: at(a.addr(family), keptPort), remote: at(pick(family, ip("10.96.0.10"), ip("fd00:96::a")), 80)}
					asked := conn{proto: tcp, local: at(b.addr(family), 8000), remote: asks.local, remoteAsks: true}
					if masq {
						asked.remote = at(pick(family, ip("10.1.0.1"), ip("fd00:1::1")), 4242)
					}
					nfTuple(w.tuples[:56], tcp, asks.local, asks.remote)
					nfTuple(w.tuples[56:112], tcp, asked.local, asked.remote)
					w.nfStatus(nfConfirmed)
					ask := func(kind string, fast bool) { w.exchange(a, b, asks.tx(kind), asked.rx(kind), 0, fast) }
					answer := func(kind string, fast bool) { w.exchange(b, a, asked.tx(kind), asks.rx(kind), replyInfo, fast) }
					ask("S", false)
					answer("SA", false)
					fast := func(c conn) bool {
						f, _ := w.lookup(proven, c)
						return f.Flags&flowConfirmed == flowConfirmed
					}
					for range 12 {
						ask("A", fast(asks))
						answer("A", fast(asked))
					}
					for range 3 {
						ask("PA", a != b)
						answer("PA", a != b)
					}
					if a == b || masq {
						return
					}
					// The same ends talk directly now, and the first connection has never been closed.
					w.nfct = 0
					direct := w.talk(family, tcp, a, b)
					direct.remote = asked.local
					direct.slow("S")
					direct.back().slow("SA")
					direct.fast("A")
					direct.back().fast("PA")
				}, oneNetwork)
			}
		}
	}
}
