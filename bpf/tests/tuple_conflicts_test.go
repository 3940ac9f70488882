// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/policy"
)

// A connection to the pod's own address, then one by the hostPort from the same port.
func TestPrivilegedHostPortAfterDirect(t *testing.T) {
	fx := newFixture(t, nil)
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		j := w.toHostPort(family, proto, podA)
		d := w.toHostPort(family, proto, podA)
		d.outside = d.inside
		d.in("S")
		d.out("SA")
		d.inFast("A")
		w.rolls(20)
		arrived := j.outside.rx("S")
		arrived.srcMAC, arrived.dstMAC = upl0.router, upl0.mac
		if _, err := w.run(uplIngress, upl0.name, input{data: arrived.bytes(t)}); err != nil {
			t.Fatal(err)
		}
		// The direct connection's data must still leave with the pod's own address.
		pa := d.inside.tx("PA")
		pa.srcMAC, pa.dstMAC = upl0.mac, upl0.router
		b := pa.bytes(t)
		w.step(uplEgress, upl0.name, b, passes(b))
	})
}

// The first connection is half closed: the client has sent its FIN and waits for the rest of the answer.
func TestPrivilegedHalfClosed(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			j, k := w.twice(family, tcp)
			j.establish()
			j.inFast("FA") // shutdown(SHUT_WR)
			j.outFast("PA")
			arrived := k.outside.rx("S")
			arrived.srcMAC, arrived.dstMAC = upl0.router, upl0.mac
			if _, err := w.run(uplIngress, upl0.name, input{data: arrived.bytes(t)}); err != nil {
				t.Fatal(err)
			}
			rest := j.inside.tx("PA") // of the answer
			rest.srcMAC, rest.dstMAC = upl0.mac, upl0.router
			left := j.outside.tx("PA")
			left.srcMAC, left.dstMAC = upl0.mac, upl0.router
			w.step(uplEgress, upl0.name, rest.bytes(t), passes(left.bytes(t)))
		}, publishing(mapping(family, tcp, podA)))
	}
}

// A datagram to the node itself, whose identification one to a hostPort had a while ago.
func TestPrivilegedFragmentsOfTheNode(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			j := w.toHostPort(family, udp, podA)
			j.size = 201
			j.slowPath(func(raw []byte) [][]byte { return fragments(raw, 3) }, "", "")
			w.later(20 * time.Second)
			own := *j
			own.outside.local = at(j.outside.local.Addr(), 514)
			f := own.dress(own.outside.rx(""))
			f.srcMAC, f.dstMAC = upl0.router, upl0.mac
			for _, b := range fragments(f.bytes(t), 3) {
				w.step(uplIngress, upl0.name, b, untouched(b))
			}
		}, publishing(mapping(family, udp, podA)))
	}
}

// A stray RST that the pod's TCP does not accept, in an idle masqueraded connection.
func TestPrivilegedStrayReset(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			w.rolls(3)
			j := w.opens(family, tcp, podA, movedPort, rolled(3))
			j.answered()
			j.inFast("R")
			j.outFast("PA")
			j.inFast("A")
			w.later(20 * time.Second)
			j.inFast("PA")
		}, masquerading(podA))
	}
}

// UDP-Lite's checksum covers the addresses, as UDP's does.
func TestPrivilegedUDPLite(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			f := w.opens(family, udp, podA, keptPort, keptPort).inside.tx("")
			f.srcMAC, f.dstMAC = upl0.mac, upl0.router
			b := protocol(136)(f.bytes(t))
			// protocol() leaves the checksum as it was: not UDP-Lite's, but whatever it is, the change of an address has to show.
			r, err := w.run(uplEgress, upl0.name, input{data: b})
			if err != nil {
				t.Fatal(err)
			}
			l4 := read(b).l4
			if r.verdict != shot && !bytes.Equal(b[ethLen:l4], r.out[ethLen:l4]) && bytes.Equal(b[l4+6:l4+8], r.out[l4+6:l4+8]) {
				t.Error("the address was exchanged and the checksum, which covers it, was not")
			}
		}, masquerading(podA))
	}
}

// An ICMP message that is neither an echo nor an error belongs to no connection: the rules decide about it.
func TestPrivilegedPolicyOtherICMP(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		fx.each(t, fmt.Sprint(family), policed(func(w *walk) {
			w.police(podA, 7, policy.ModeOpen, `{"ingressDefault":"deny","egressDefault":"deny"}`)
			f := conn{proto: echo, local: at(podA.addr(family), 7), remote: at(podB.addr(family), 0)}.tx("")
			f.srcMAC, f.dstMAC = podA.mac, podA.gwMAC
			want := wantDrop(reasonEgress, podA)
			w.stepInput(podEgress, podA.name, input{data: icmp(13, 200)(f.bytes(t)), badSums: true}, want)
			g := conn{proto: echo, local: at(podA.addr(family), 7), remote: at(client(family), 0)}.rx("")
			g.srcMAC, g.dstMAC = podA.gwMAC, podA.mac
			w.stepInput(podIngress, podA.name, input{data: icmp(13, 200)(g.bytes(t)), badSums: true, came: upl0.name}, wantDrop(reasonIngress, podA))
		}))
	}
}

func policed(f func(w *walk)) func(w *walk) { return func(w *walk) { w.came = upl0.name; f(w) } }
