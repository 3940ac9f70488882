// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"testing"
	"time"
)

// trackedBit stands for a pointer to netfilter's entry in sk_buff._nfct.
const trackedBit = 1 << 12

// tracked has netfilter track every packet.
func tracked(w *walk) { w.nfct = trackedBit }

// numbered gives the next packets of a TCP connection these numbers, as distances from where each end began.
func (j *journey) numbered(local, remote uint32) *journey {
	k := *j
	k.shift = [2]uint32{local, remote}
	return &k
}

// said is the length of a packet's payload.
const said = uint32(len("what is sent"))

// openTracked opens a client's TCP connection, and leaves it on the fast path.
func (j *journey) openTracked() {
	j.tb.Helper()
	j.in("S")
	j.out("SA")
	j.in("A") // netfilter sees that the connection is established
	j.inFast("PA")
	j.outFast("PA")
}

// Netfilter sees how a connection opens, and how it ends; what is between takes the fast path.
func TestPrivilegedNetfilterOpensAndEnds(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		fx.each(t, pick(family, "hostPort4", "hostPort6"), func(w *walk) {
			j := w.toHostPort(family, tcp, podA)
			j.openTracked()
			j.numbered(said, said).in("FA")
			j.numbered(said, said+1).out("A")
			j.numbered(said, said+1).out("FA")
			j.numbered(said+1, said+1).in("A")
			j.wantFlows(0, 0) // the entry has gone with the last packet
		}, tracked, publishing(mapping(family, tcp, podA)))
		fx.each(t, pick(family, "masquerade4", "masquerade6"), func(w *walk) {
			j := w.opens(family, tcp, podA, keptPort, keptPort)
			j.out("S")
			j.in("SA")
			j.out("A")
			j.outFast("PA")
			j.inFast("PA")
			j.numbered(said, said).out("FA")
			j.numbered(said+1, said).in("PA") // the other end goes on: half closed
			j.numbered(said+1, 2*said).out("A")
		}, tracked, masquerading(podA))
	}
	for _, ends := range [][2]*pod{{podA, podB}, {podA, podC}} {
		fx.each(t, ends[0].name+ends[1].name, func(w *walk) {
			p := w.talk(4, tcp, ends[0], ends[1])
			p.slow("S")
			p.back().slow("SA")
			p.slow("A")
			p.fast("PA")
			p.back().fast("PA")
			p.slow("FA")
			p.back().slow("FA")
		}, tracked, oneNetwork)
	}
}

// A connection whose opener sends data at once has to wait for the acknowledgment: netfilter would forget unacknowledged data soon.
func TestPrivilegedNetfilterUnacknowledged(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		fx.each(t, pick(family, "tcp4", "tcp6"), func(w *walk) {
			j := w.toHostPort(family, tcp, podA)
			j.in("S")
			j.out("SA")
			j.in("PA")
			j.out("A") // of what came before
			j.numbered(0, said).in("A")
			j.numbered(0, said).out("A")
			j.numbered(0, said).inFast("PA")
		}, tracked, publishing(mapping(family, tcp, podA)))
	}
}

// Behind the fast path a packet acknowledges what netfilter has not seen, so netfilter leaves its entry as it is: nothing is to wait for.
func TestPrivilegedNetfilterRelearn(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_relearn": relearnUnits})
	for _, family := range families {
		fx.each(t, pick(family, "exchange4", "exchange6"), func(w *walk) {
			j := w.toHostPort(family, tcp, podA)
			j.openTracked()
			j.later(relearnUnits * unit)
			j.numbered(said, said).in("PA")
			j.numbered(said, 2*said).out("PA")
			j.numbered(2*said, 2*said).inFast("PA")
			j.numbered(2*said, 3*said).outFast("PA")
		}, tracked, publishing(mapping(family, tcp, podA)))
		fx.each(t, pick(family, "idle4", "idle6"), func(w *walk) {
			j := w.toHostPort(family, tcp, podA)
			j.in("S")
			j.out("SA")
			j.in("A")
			j.later(relearnUnits * unit)
			j.in("PA") // nothing took the fast path: netfilter takes note
			j.numbered(0, said).out("PA")
			j.numbered(said, said).in("A")
			j.numbered(said, said).outFast("PA")
			j.numbered(2*said, said).inFast("A")
		}, tracked, publishing(mapping(family, tcp, podA)))
	}
}

// Netfilter takes a connection for closed by a RST with the number that it saw acknowledged last. The other end gets the sender's.
func TestPrivilegedNetfilterReset(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		open := func(w *walk) *journey {
			j := w.toHostPort(family, tcp, podA)
			j.openTracked()
			j = j.numbered(said, said)
			j.outFast("A")
			j.inFast("A")
			return j
		}
		for _, kind := range []string{"R", "RA"} {
			fx.each(t, pick(family, "client4", "client6")+kind, func(w *walk) {
				j := open(w)
				seen := j.inside.rx(kind)
				seen.ack += said
				j.pastStack(uplIngress, j.up.name, podIngress, podA.name, j.dress(j.outside.rx(kind)), seen, j.dress(j.inside.rx(kind)))
			}, tracked, publishing(mapping(family, tcp, podA)))
			fx.each(t, pick(family, "pod4", "pod6")+kind, func(w *walk) {
				j := open(w)
				seen := j.inside.tx(kind)
				seen.ack += said
				j.pastStack(podEgress, podA.name, uplEgress, j.up.name, j.dress(j.inside.tx(kind)), seen, j.dress(j.outside.tx(kind)))
			}, tracked, publishing(mapping(family, tcp, podA)))
		}
		// One that is out of place ends nothing, and netfilter does not see it.
		fx.each(t, pick(family, "blind4", "blind6"), func(w *walk) {
			j := open(w)
			j.numbered(said, said+1000).inFast("R")
			j.inFast("PA")
		}, tracked, publishing(mapping(family, tcp, podA)))
	}
}

// pastStack takes a packet through both hooks of its direction. seen is what the stack has of it.
func (j *journey) pastStack(first hook, dev string, last hook, lastDev string, sent, seen, got frame) {
	j.tb.Helper()
	macs := func(f frame, src, dst []byte) frame {
		f.srcMAC, f.dstMAC = src, dst
		return f
	}
	src, dst, src2, dst2 := j.up.router, j.up.mac, j.pod.gwMAC, j.pod.mac
	if first == podEgress {
		src, dst, src2, dst2 = j.pod.mac, j.pod.gwMAC, j.up.mac, j.up.router
	}
	b := j.step(first, dev, macs(sent, src, dst).bytes(j.tb), passes(macs(seen, src, dst).bytes(j.tb)))
	got.ttl--
	j.step(last, lastDev, route(b, src2, dst2), passes(macs(got, src2, dst2).bytes(j.tb)))
}

// What is not TCP stays with netfilter for two seconds, and shows itself once a second afterwards.
func TestPrivilegedNetfilterDatagrams(t *testing.T) {
	for _, relearn := range []uint32{0, 5 * relearnUnits} {
		fx := newFixture(t, map[string]uint32{"cfg_relearn": relearn})
		for _, proto := range protocols[1:] {
			for _, family := range families {
				fx.each(t, proto.name+pick(family, "4", "6"), func(w *walk) {
					j := w.opens(family, proto.proto, podA, keptPort, keptPort)
					for range 3 {
						j.out("")
						j.in("")
						j.later(time.Second)
					}
					for range 2 { // the deadline of its first moments has it confirmed once more
						j.out("")
						j.in("")
					}
					j.outFast("")
					j.inFast("")
					j.later(time.Second * 3 / 4)
					j.inFast("") // it is the opener's turn
					j.out("")
					j.in("")
					j.outFast("")
					j.inFast("")
				}, tracked, masquerading(podA))
			}
		}
	}
}

// Where netfilter insists on windows, a TCP connection that it tracks stays with it.
func TestPrivilegedNetfilterNotLiberal(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_tcp_liberal": 0})
	for _, family := range families {
		fx.each(t, pick(family, "tcp4", "tcp6"), func(w *walk) {
			j := w.toHostPort(family, tcp, podA)
			j.in("S")
			j.out("SA")
			for range 3 {
				j.in("A")
				j.out("A")
			}
			w.nfct = 0
			k := w.toHostPort(family, tcp, podA)
			k.inside.remote, k.outside.remote = at(client(family), clientPort+1), at(client(family), clientPort+1)
			k.establish()
		}, tracked, publishing(mapping(family, tcp, podA)))
	}
}

// On a kernel that does not show its entries, connections to ports of netfilter's helpers count as helped.
func TestPrivilegedNetfilterHelperPort(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		fx.each(t, pick(family, "ftp4", "ftp6"), func(w *walk) {
			j := w.opens(family, tcp, podA, keptPort, keptPort)
			j.inside.remote, j.outside.remote = at(client(family), 21), at(client(family), 21)
			j.out("S")
			j.in("SA")
			for range 3 {
				j.out("A")
				j.in("A")
			}
		}, tracked, masquerading(podA))
	}
}
