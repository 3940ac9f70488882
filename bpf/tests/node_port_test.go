// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
)

// nodeConn is a connection that the node opens to the client's host from port, which leaves from outsidePort. forwarded: netfilter
// masquerades it for someone, else a socket of the node sends it.
type nodeConn struct {
	*walk
	inside, outside conn
	forwarded       bool
}

func (w *walk) nodeOpens(family, proto int, port, outsidePort uint16) *nodeConn {
	for _, p := range []uint16{port, outsidePort} {
		w.put("sl_node_ports", uint32(p%8192), uint64(0))
		w.tb.Cleanup(func() { w.put("sl_node_ports", uint32(p%8192), uint64(0)) })
	}
	c := conn{proto: proto, remote: at(client(family), serverTCP)}
	return &nodeConn{walk: w, inside: c.as(at(upl0.addr(family), port)), outside: c.as(at(upl0.addr(family), outsidePort))}
}

func (c *nodeConn) out(kind string) {
	c.tb.Helper()
	if c.forwarded {
		c.came = podA.route
		defer func() { c.came = "" }()
	}
	sent, left := c.inside.tx(kind), c.outside.tx(kind)
	for _, f := range []*frame{&sent, &left} {
		f.srcMAC, f.dstMAC = upl0.mac, upl0.router
	}
	c.step(uplEgress, upl0.name, sent.bytes(c.tb), passes(left.bytes(c.tb)))
}

func (c *nodeConn) in(kind string) {
	c.tb.Helper()
	arrived, got := c.outside.rx(kind), c.inside.rx(kind)
	for _, f := range []*frame{&arrived, &got} {
		f.srcMAC, f.dstMAC = upl0.router, upl0.mac
	}
	c.step(uplIngress, upl0.name, arrived.bytes(c.tb), passes(got.bytes(c.tb)))
}

// The node opens a connection whose tuple a pod's connection has outside: it leaves from another port, and both go on.
func TestPrivilegedNodeOpensPodsTuple(t *testing.T) {
	for _, secret := range []uint32{0, secret} { // the answers must not depend on how ports are drawn
		fx := newFixture(t, map[string]uint32{"cfg_snat_secret": secret})
		eachProtocol(t, fx, func(w *walk, family, proto int) {
			w.rolls(9)
			pod := w.opens(family, proto, podA, 40001, 40001)
			pod.answered()
			node := w.nodeOpens(family, proto, 40001, rolled(9))
			if secret != 0 {
				key := node.inside.tuple()
				key.Side = 2
				node.outside = node.outside.as(at(upl0.addr(family), drawn(key, 1)))
			}
			node.out("S")
			node.out("S") // again: the same port
			node.in("SA")
			for range 3 {
				node.out("PA")
				pod.outFast("PA")
				node.in("PA")
				pod.inFast("PA")
			}
			// A third pod finds the port taken that the node's connection got.
			if secret == 0 {
				other := w.opens(family, proto, podB, rolled(9), rolled(10))
				w.rolls(9)
				other.answered()
			}
			// Long after the pod's connection is over the node's keeps its port, if it has not been idle.
			w.evict(pod.inside)
			w.evict(pod.outside)
			w.later(170 * time.Second)
			node.out("PA")
			w.later(170 * time.Second)
			node.in("PA")
			node.out("PA")
		}, masquerading(podA, podB))
	}
}

// What netfilter masquerades for others may clash in the same way.
func TestPrivilegedForeignOpensPodsTuple(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		w.rolls(9)
		pod := w.opens(family, proto, podA, 40001, 40001)
		pod.answered()
		other := w.nodeOpens(family, proto, 40001, rolled(9))
		other.forwarded = true
		other.out("S")
		other.in("SA")
		other.out("PA")
		pod.inFast("PA")
	}, masquerading(podA))
}

// If it was first, the pod gets another port, though no socket shows it. So with the node's own ping.
func TestPrivilegedForeignFirst(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		w.rolls(9)
		first := w.nodeOpens(family, proto, 40001, 40001)
		first.forwarded = proto != echo
		first.out("S")
		w.opens(family, proto, podA, 40001, rolled(9)).answered()
		first.out("PA")
		// An hour without an opening packet: TCP may still go on.
		w.later(time.Hour)
		seen := uint16(40001)
		if proto == tcp {
			seen = rolled(10)
		}
		w.rolls(10)
		w.opens(family, proto, podB, 40001, seen).out("S")
	}, masquerading(podA, podB))
}

// Nothing of the node is touched while no pod has its tuple, or the pod's connection there is over.
func TestPrivilegedNodeKeepsPort(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		node := w.nodeOpens(family, proto, 40001, 40001)
		node.out("S")
		node.in("SA")
		node.out("PA")
		if proto != echo { // whose note keeps the pod away
			pod := w.opens(family, proto, podA, 40002, 40002)
			pod.out("S")
			w.later(200 * time.Second)
			late := w.nodeOpens(family, proto, 40002, 40002)
			late.out("S")
			late.in("SA")
		}
		w.wantNodeEntries(0)
	}, masquerading(podA))
}

func (w *walk) wantNodeEntries(n int) {
	w.tb.Helper()
	for _, table := range []string{proven, unproven} {
		w.eachFlow(table, func(k bpfgen.TypesSlTuple, _ bpfgen.TypesSlCtEntry) {
			if k.Side == 2 {
				n--
			}
		})
	}
	if n != 0 {
		w.tb.Errorf("%d entries of the node too few", n)
	}
}

// A new connection of the node from the same port asks anew: the pod's may be over by then. And a stranger's SYN is for the stack.
func TestPrivilegedNodeOpensAgain(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		fx.each(t, "tcp", func(w *walk) {
			w.rolls(9)
			pod := w.opens(family, tcp, podA, 40001, 40001)
			pod.answered()
			node := w.nodeOpens(family, tcp, 40001, rolled(9))
			node.out("S")
			node.in("SA")
			node.out("A")
			stray := node.outside.rx("S")
			stray.srcMAC, stray.dstMAC = upl0.router, upl0.mac
			w.step(uplIngress, upl0.name, stray.bytes(t), untouched(stray.bytes(t)))
			node.in("FA")
			node.out("FA")
			node.in("A")
			pod.inFast("FA")
			pod.outFast("FA")
			w.later(time.Minute)
			again := w.nodeOpens(family, tcp, 40001, 40001)
			again.out("S")
			again.in("SA")
		}, masquerading(podA))
	}
}

// No port left for the node: its packet is dropped and counted, rather than taken for the pod's.
func TestPrivilegedNodeFindsNoPort(t *testing.T) {
	fx := newFixture(t, map[string]uint32{
		"cfg_snat_min1": 61000, "cfg_snat_max1": 61000, "cfg_snat_min2": 0, "cfg_snat_max2": 0,
	})
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		w.keepPorts(61000, 61000)
		w.opens(family, proto, podA, 40001, 40001).answered()
		node := w.nodeOpens(family, proto, 40001, 40001)
		f := node.inside.tx("S")
		f.srcMAC, f.dstMAC = upl0.mac, upl0.router
		w.step(uplEgress, upl0.name, f.bytes(t), want{verdict: shot, reason: reasonPorts})
	}, masquerading(podA))
}

// Errors about the node's connection find its socket, and the node's own errors find the server.
func TestPrivilegedNodePortErrors(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		w.rolls(9)
		w.opens(family, proto, podA, 40001, 40001).answered()
		node := w.nodeOpens(family, proto, 40001, rolled(9))
		node.out("S")
		node.in("SA")
		j := &journey{walk: w, up: upl0, inside: node.inside, outside: node.outside}
		eachError(family, func(kind icmpKind, keep int) {
			before, after := j.toNode(kind, keep, "PA")
			w.step(uplIngress, upl0.name, before.bytes(t), passes(after.bytes(t)))
			before, after = j.fromNode(kind, keep, "PA", false)
			w.step(uplEgress, upl0.name, before.bytes(t), passes(after.bytes(t)))
		})
	}, masquerading(podA))
}

// A datagram of several fragments: the ports are in the first one only, and the address stays.
func TestPrivilegedNodePortFragments(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		fx.each(t, "udp", func(w *walk) {
			w.rolls(9)
			w.opens(family, udp, podA, 40001, 40001).answered()
			node := w.nodeOpens(family, udp, 40001, rolled(9))
			node.out("")
			j := &journey{walk: w, up: upl0, size: 201}
			for _, dir := range []struct {
				hook          hook
				before, after frame
				src, dst      []byte
			}{
				{uplEgress, node.inside.tx(""), node.outside.tx(""), upl0.mac, upl0.router},
				{uplIngress, node.outside.rx(""), node.inside.rx(""), upl0.router, upl0.mac},
			} {
				before, after := j.dress(dir.before), j.dress(dir.after)
				before.srcMAC, before.dstMAC, after.srcMAC, after.dstMAC = dir.src, dir.dst, dir.src, dir.dst
				want := fragments(after.bytes(t), 3)
				for i, b := range fragments(before.bytes(t), 3) {
					w.step(dir.hook, upl0.name, b, passes(want[i]))
				}
			}
		}, masquerading(podA))
	}
}
