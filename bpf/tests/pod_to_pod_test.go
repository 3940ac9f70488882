// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/maps/codec"
)

// pair is a connection between two pods of the node; conn is how a sees it.
type pair struct {
	*walk
	a, b *pod
	conn
	size int // bytes of payload, 0 = some
}

// talk is a connection that a opens to b. For an echo both ports are the identifier.
func (w *walk) talk(family, proto int, a, b *pod) *pair {
	c := conn{proto: proto, local: at(a.addr(family), keptPort), remote: at(b.addr(family), podPort)}
	if proto == echo {
		c.remote = at(b.addr(family), keptPort)
	}
	return &pair{walk: w, a: a, b: b, conn: c}
}

// back is the same connection as the other pod sees it.
func (p *pair) back() *pair {
	q := *p
	q.a, q.b = p.b, p.a
	q.local, q.remote, q.remoteAsks = p.remote, p.local, !p.remoteAsks
	return &q
}

func (p *pair) bridged() bool { return p.a.route == p.b.route }

// sent is the frame as it leaves a.
func (p *pair) sent(kind string) frame {
	f := p.tx(kind)
	f.srcMAC, f.dstMAC = p.a.mac, p.a.gwMAC
	if p.bridged() {
		f.dstMAC = p.b.mac
	}
	if p.size > 0 {
		f.payload = make([]byte, p.size)
	}
	return f
}

// arrived is the frame as b gets it.
func (p *pair) arrived(f frame) frame {
	if p.bridged() {
		return f
	}
	return f.routed(p.b.gwMAC, p.b.mac)
}

// slow sends a packet from a to b through the bridge or the stack.
func (p *pair) slow(kind string) {
	p.tb.Helper()
	f := p.sent(kind)
	b := p.step(podEgress, p.a.name, f.bytes(p.tb), passes(f.bytes(p.tb)))
	if !p.bridged() {
		b = route(b, p.b.gwMAC, p.b.mac)
	}
	p.step(podIngress, p.b.name, b, passes(p.arrived(f).bytes(p.tb)))
}

// fast sends a packet that goes straight to b.
func (p *pair) fast(kind string) {
	p.tb.Helper()
	f := p.sent(kind)
	w := toPeer(p.b, p.arrived(f).bytes(p.tb))
	// Only what is addressed to the host end itself is PACKET_HOST there already.
	w.hostType = !isMAC(f.dstMAC, p.links[p.a.name].MAC)
	p.step(podEgress, p.a.name, f.bytes(p.tb), w)
}

func isMAC(a, b net.HardwareAddr) bool { return a.String() == b.String() }

func pairCases(t *testing.T, fx *fixture, f func(p *pair), opts ...option) {
	t.Helper()
	for _, ends := range [][2]*pod{{podA, podB}, {podA, podC}, {podC, podA}} {
		t.Run(ends[0].name+ends[1].name, func(t *testing.T) {
			eachProtocol(t, fx, func(w *walk, family, proto int) { f(w.talk(family, proto, ends[0], ends[1])) }, opts...)
		})
	}
}

// oneNetwork keeps the pods' addresses between each other.
var oneNetwork = notMasqueraded("10.2.0.0/24", "fd00:2::/64")

// establish opens the connection and leaves both directions short.
func (p *pair) establish() {
	p.tb.Helper()
	p.slow("S")
	p.back().slow("SA")
	p.fast("A")
	p.back().fast("PA")
}

func TestPrivilegedPodToPod(t *testing.T) {
	fx := newFixture(t, nil)
	pairCases(t, fx, func(p *pair) {
		const tx, rx = flowTXFirst | flowTXConfirm | flowLocalPeer, flowRXFirst | flowRXConfirm | flowLocalPeer
		p.slow("S")
		p.wantFlow(unproven, p.conn, flowPodOpened|tx)
		p.wantFlow(unproven, p.back().conn, rx)
		p.back().slow("SA")
		p.wantFlow(proven, p.conn, flowPodOpened|tx|rx|flowReplied|flowAssured)
		p.wantFlow(unproven, p.back().conn, tx|rx|flowReplied)
		for range 3 {
			p.fast("PA")
			p.back().fast("PA")
		}
		a := p.wantFlow(proven, p.conn, flowPodOpened|tx|rx|flowReplied|flowAssured)
		b := p.wantFlow(proven, p.back().conn, tx|rx|flowReplied|flowAssured)
		if a.TxPackets != 4 || a.RxPackets != b.TxPackets || b.TxPackets != 4 || b.RxPackets != 4 {
			p.tb.Errorf("counted %d sent, %d received by one end, %d sent, %d received by the other, want 4 of each",
				a.TxPackets, a.RxPackets, b.TxPackets, b.RxPackets)
		}
		p.wantFlows(2, 0)
	}, masquerading(podA), oneNetwork)
}

// Two pods ping each other with one identifier.
func TestPrivilegedPodToPodEcho(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		for _, peer := range []*pod{podB, podC} {
			fx.each(t, fmt.Sprintf("%d/%s", family, peer.name), func(w *walk) {
				p, q := w.talk(family, echo, podA, peer), w.talk(family, echo, peer, podA)
				p.slow("")
				q.slow("")
				q.back().slow("")
				p.back().slow("")
				for range 2 {
					p.fast("")
					q.fast("")
					p.back().fast("")
					q.back().fast("")
				}
				w.wantFlows(4, 0)
			})
		}
	}
}

// Pods that connect to each other from and to the same ports have a connection each way, not two in one record.
func TestPrivilegedPodToPodReopened(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		for _, peer := range []*pod{podB, podC} {
			fx.each(t, fmt.Sprintf("%d/%s", family, peer.name), func(w *walk) {
				p := w.talk(family, tcp, podA, peer)
				p.establish()
				p.fast("FA")
				p.back().fast("FA")
				w.later(time.Second)
				p.slow("S")
				p.back().slow("SA")
				p.fast("A")
				p.back().fast("PA")
				p.back().fast("R")
				// The other end may be the next to open.
				w.later(time.Second)
				p.back().slow("S")
				p.slow("SA")
				p.back().fast("A")
				p.fast("PA")
				if f, _ := w.lookup(proven, p.conn); f.Flags&flowPodOpened != 0 {
					t.Error("the record says that this end opened the connection")
				}
			})
		}
	}
}

// Whatever is odd goes by the stack.
func TestPrivilegedPodToPodOdd(t *testing.T) {
	fx := newFixture(t, nil)
	pairCases(t, fx, func(p *pair) {
		p.establish()
		if p.proto == tcp {
			p.slow("S")
		}
		big := *p
		big.size = podMTU
		big.slow("PA") // more than the peer's MTU
		f := p.sent("PA")
		f.ttl = 1
		p.step(podEgress, p.a.name, f.bytes(p.tb), passes(f.bytes(p.tb)))
		p.fast("PA")
		p.evict(p.back().conn)
		p.slow("PA") // the peer's record is gone
	})
}

// A pod that was replaced under its address does not get the old one's traffic by the fast path.
func TestPrivilegedPodToPodNewOwner(t *testing.T) {
	fx := newFixture(t, nil)
	pairCases(t, fx, func(p *pair) {
		p.establish()
		p.endpoint(p.b, 0xbb, 0)
		p.slow("PA")
	})
}

// The peer is gone and its address is somewhere outside now: what the pod goes on
// sending does not leave with the pod's address.
func TestPrivilegedPodToPodPeerGone(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		p := w.talk(family, proto, podA, podC)
		p.establish()
		w.empty("sl_nomasq_cidrs")
		w.remove("sl_endpoints", codec.Addr(podC.addr(family)))
		j := &journey{walk: w, pod: podA, up: upl0, inside: p.conn, outside: p.as(at(upl0.addr(family), keptPort))}
		j.out("PA")
		j.in("PA")
		j.out("PA")
		j.inFast("PA")
		j.outFast("PA") // as the last one did
		w.later(routeHold)
		j.out("PA") // slow: the test node's route still leads to the pod's device
	}, masquerading(podA), oneNetwork)
}
