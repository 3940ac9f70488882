// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"net/netip"
	"strings"
)

// journey is a connection between a pod and a host behind an uplink, from both
// sides of the translation. Without one, outside is inside.
type journey struct {
	*walk
	pod             *pod
	up              *uplink
	inside, outside conn
	mark            uint32 // what our hooks add to the packets of the journey

	options []byte // IPv4 options of every packet
	noSum   bool   // UDP checksum 0 in every packet
	size    int    // bytes of payload of every packet + 1; 0 = some

	shift [2]uint32 // how far the local and the remote end of a TCP connection have come
}

func (j *journey) dress(f frame) frame {
	f.options, f.noSum = j.options, j.noSum
	if f.proto == tcp {
		local, remote := j.shift[0], j.shift[1]
		if f.src != j.inside.local && f.src != j.outside.local {
			local, remote = remote, local
		}
		f.seq += local
		f.ack += remote
	}
	if j.size > 0 {
		f.payload = make([]byte, j.size-1)
		for i := range f.payload {
			f.payload[i] = byte(i*7 + 1)
		}
		if f.proto == tcp && strings.Contains(f.flags, "SA") {
			f.ack += uint32(len(f.payload)) // the SYN had as much
		}
	}
	return f
}

// out sends a packet of the pod by the slow path.
func (j *journey) out(kind string) {
	j.tb.Helper()
	sent := j.dress(j.inside.tx(kind))
	sent.srcMAC, sent.dstMAC = j.pod.mac, j.pod.gwMAC
	w := passes(sent.bytes(j.tb))
	w.mark = j.mark
	b := j.step(podEgress, j.pod.name, sent.bytes(j.tb), w)
	j.leave(kind, b, sent)
}

// leave takes a packet that left the pod through the stack and out.
func (j *journey) leave(kind string, b []byte, sent frame) {
	j.tb.Helper()
	b = route(b, j.up.mac, j.up.router)
	j.step(uplEgress, j.up.name, b, passes(j.left(kind, sent).bytes(j.tb)))
}

// left is what the router gets of a packet by the slow path.
func (j *journey) left(kind string, sent frame) frame {
	f := j.dress(j.outside.tx(kind))
	f.ttl = sent.ttl
	return f.routed(j.up.mac, j.up.router)
}

// outFast sends a packet of the pod that must take the fast path.
func (j *journey) outFast(kind string) {
	j.tb.Helper()
	sent := j.dress(j.inside.tx(kind))
	sent.srcMAC, sent.dstMAC = j.pod.mac, j.pod.gwMAC
	b := sent.bytes(j.tb)
	w := j.byFastPath(kind, len(b)-ethLen)
	w.mark = j.mark
	j.step(podEgress, j.pod.name, b, w)
}

// byFastPath is how a packet of the pod leaves by the fast path: while the flow's last way holds for IP packets of that length by a plain
// redirect, else by way of the neighbour, which writes the MACs later.
func (j *journey) byFastPath(kind string, length int) want {
	j.tb.Helper()
	left := j.dress(j.outside.tx(kind))
	if f := j.record(); f.NexthopLen > 0 && j.clock < f.NexthopUntil && length <= int(f.NexthopLen) {
		return toLink(j.up, left.routed(j.up.mac, j.up.router).bytes(j.tb))
	}
	return toNeigh(j.up, left.routed(j.pod.mac, j.pod.gwMAC).bytes(j.tb))
}

// in brings a packet from the uplink to the pod by the slow path.
func (j *journey) in(kind string) {
	j.tb.Helper()
	arrived := j.dress(j.outside.rx(kind))
	arrived.srcMAC, arrived.dstMAC = j.up.router, j.up.mac
	translated := j.dress(j.inside.rx(kind))
	translated.srcMAC, translated.dstMAC = j.up.router, j.up.mac
	w := passes(translated.bytes(j.tb))
	w.mark = j.mark
	b := j.step(uplIngress, j.up.name, arrived.bytes(j.tb), w)
	b = route(b, j.pod.gwMAC, j.pod.mac)
	j.step(podIngress, j.pod.name, b, passes(translated.routed(j.pod.gwMAC, j.pod.mac).bytes(j.tb)))
}

// inFast brings a packet that must take the fast path.
func (j *journey) inFast(kind string) {
	j.tb.Helper()
	arrived := j.dress(j.outside.rx(kind))
	arrived.srcMAC, arrived.dstMAC = j.up.router, j.up.mac
	got := j.dress(j.inside.rx(kind)).routed(j.pod.gwMAC, j.pod.mac)
	j.step(uplIngress, j.up.name, arrived.bytes(j.tb), toPeer(j.pod, got.bytes(j.tb)))
}

// ignored checks that the uplink's program leaves a packet from outside alone.
func (j *journey) ignored(kind string) {
	j.tb.Helper()
	arrived := j.dress(j.outside.rx(kind))
	arrived.srcMAC, arrived.dstMAC = j.up.router, j.up.mac
	b := arrived.bytes(j.tb)
	j.step(uplIngress, j.up.name, b, untouched(b))
}

// at is an address and port.
func at(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

// client returns the client's address of a family.
func client(family int) netip.Addr { return pick(family, client4, client6) }

// families and protocols of the tables.
var (
	families  = []int{4, 6}
	protocols = []struct {
		name  string
		proto int
	}{{"tcp", tcp}, {"udp", udp}, {"echo", echo}}
)
