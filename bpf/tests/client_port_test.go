// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
)

const flowRemap = uint32(bpfgen.TypesSlCtFlagSL_CT_CLIENT_PORT)

// twice is a client that reaches one port of podA by two addresses of the node from one
// port of its own. Toward the pod the second connection has another one, the first that is drawn.
func (w *walk) twice(family, proto int) (first, second *journey) {
	first, second = w.toHostPort(family, proto, podA), w.toHostPort(family, proto, podA)
	w.rolls(20)
	second.outside = second.outside.as(at(pick(family, second4, second6), hostPort))
	second.inside.remote = at(client(family), rolled(20))
	return first, second
}

func TestPrivilegedClientPort(t *testing.T) {
	fx := newFixture(t, nil)
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		j, k := w.twice(family, proto)
		j.establish()
		k.in("S")
		w.wantFlow(unproven, k.inside, flowDNAT|flowDNATAny|flowRemap|flowRXFirst|flowRXConfirm)
		w.wantIndex(unproven, k.outside, k.inside)
		k.in("S") // once more: the same port
		k.out("SA")
		k.inFast("A")
		w.wantIndex(proven, k.outside, k.inside)
		for range 3 {
			k.outFast("PA")
			k.inFast("PA")
			j.outFast("PA")
			j.inFast("PA")
		}
		w.wantFlows(3, 0)
		eachError(family, func(kind icmpKind, keep int) {
			k.errorInFast(kind, keep, "PA")
			k.errorOut(kind, keep, "PA", true)
			k.errorOut(kind, keep, "PA", false)
		})
		k.size = 201
		k.slowPath(func(raw []byte) [][]byte { return fragments(raw, 3) }, "PA", "PA")
	})
}

// A SYN sent twice is of the connection it has made, also when the one that was in its way has ended since.
func TestPrivilegedClientPortSYNTwice(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			j, k := w.twice(family, tcp)
			j.establish()
			k.in("S")
			j.outFast("R")
			w.wantNoFlow(j.inside)
			w.later(59 * time.Second)
			k.in("S")
			k.out("SA")
			k.inFast("A")
			w.wantIndex(proven, k.outside, k.inside)
			w.wantFlows(2, 0)
		}, publishing(mapping(family, tcp, podA)))
	}
}

// By two published ports, and a third connection: each has its own way.
func TestPrivilegedClientPortPorts(t *testing.T) {
	fx := newFixture(t, nil)
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		m := mapping(family, proto, podA)
		m.host = at(unspecified(family), hostPort+1)
		w.publish(m)
		j, k := w.twice(family, proto)
		l := *k
		l.outside = l.outside.as(at(upl0.addr(family), hostPort+1))
		l.inside.remote = at(client(family), rolled(21))
		j.establish()
		k.establish()
		l.establish()
		for _, x := range []*journey{j, k, &l} {
			x.outFast("PA")
			x.inFast("PA")
		}
	})
}

// When the first one has ended, a new connection by the second address has its own port again.
func TestPrivilegedClientPortNoMore(t *testing.T) {
	fx := newFixture(t, nil)
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		j, k := w.twice(family, proto)
		j.establish()
		if proto == tcp {
			j.inFast("FA")
			j.outFast("FA")
		} else {
			w.later(181 * time.Second)
		}
		k.inside.remote = k.outside.remote
		k.in("S")
		k.out("SA")
		k.inFast("A")
	})
}

// Lost halves: the pod's packet brings the index back, the client's the record; and the
// client's brings the index back where the ports are drawn by the tuple.
func TestPrivilegedClientPortLostHalves(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_snat_secret": secret})
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		j, k := w.twice(family, proto)
		k.inside.remote = at(client(family), drawn(k.outside.tuple(), 1))
		j.establish()
		k.establish()
		w.evict(k.outside)
		k.outFast("PA")
		k.inFast("PA")
		w.wantIndex(proven, k.outside, k.inside)
		w.evict(k.inside)
		k.in("PA")
		k.out("PA")
		k.inFast("PA")
		k.outFast("PA")
		w.evict(k.outside)
		k.in("PA")
		k.out("PA")
		k.inFast("PA")
		k.outFast("PA")
		j.inFast("PA")
	})
}

// A port that gets a new owner takes such flows with it.
func TestPrivilegedClientPortMoves(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		m := mapping(family, udp, podA)
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			j, k := w.twice(family, udp)
			j.establish()
			k.establish()
			m.pod, m.gen = podB, 2
			w.publish(m)
			moved := w.toHostPort(family, udp, podB)
			moved.outside = k.outside
			moved.in("")
			moved.out("")
			moved.inFast("")
		}, publishing(mapping(family, udp, podA)))
	}
}

// noPortLeft takes every port that a second connection could get.
func noPortLeft(w *walk, family, proto int) {
	w.tb.Helper()
	j, k := w.twice(family, proto)
	j.in("S")
	for i := range uint32(32) {
		c := j.inside
		c.remote = at(client(family), rolled(20+i))
		if i >= 16 {
			c.remote = at(client(family), uint16(snatMin2+(20+1+i)%(snatMax2-snatMin2+1)))
		}
		key := c.tuple()
		w.put(proven, &key, &bpfgen.TypesSlCtEntry{LastSeen: w.clock, Owner: podA.owner})
	}
	f := k.outside.rx("S")
	f.srcMAC, f.dstMAC = upl0.router, upl0.mac
	w.step(uplIngress, upl0.name, f.bytes(w.tb), wantDrop(reasonClash, podA))
}

// secret is the value of cfg_snat_secret where a test does without dice.
const secret = 0x5eed1234

// drawn is the port of attempt i, from 1 on, in the first range: snat_candidate() of bpf/lib/nat/port_alloc.h.
func drawn(key bpfgen.TypesSlTuple, i uint32) uint16 {
	raw, err := binary.Append(nil, binary.NativeEndian, &key)
	if err != nil {
		panic(err)
	}
	h := uint64(secret)
	for i := 0; i < len(raw); i += 8 {
		h = (h ^ binary.NativeEndian.Uint64(raw[i:])) * 0x9e3779b97f4a7c15
		h ^= h >> 32
	}
	const size = snatMax1 - snatMin1 + 1
	step := 1 + uint32(h>>32)%(size/16)
	return uint16(snatMin1 + (uint32(h)%size+i*step)%size)
}

// The record of a masqueraded flow is lost and the pod speaks first: its mapping is
// found again, whatever the port.
func TestPrivilegedMasqueradeLostRecordPodFirst(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_snat_secret": secret})
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		j := w.opens(family, proto, podA, movedPort, 0)
		j.outside = j.outside.as(at(upl0.addr(family), drawn(j.inside.tuple(), 1)))
		j.answered()
		for range 3 {
			w.evict(j.inside)
			j.out("PA")
			j.in("PA")
			if proto == tcp {
				j.out("PA") // see TestPrivilegedMasqueradeLostRecordKeptPort
			}
			j.outFast("PA")
			j.inFast("PA")
			w.wantFlows(2, 0)
		}
		// Not in the place of another connection, though: a SYN begins anew, and another pod's port is its own.
		k := w.opens(family, proto, podB, movedPort, 0)
		k.outside = k.outside.as(at(upl0.addr(family), drawn(k.inside.tuple(), 1)))
		k.answered()
		j.inFast("PA")
	}, masquerading(podA, podB))
}

// Its place in the row was not the first: TCP looks at all of them.
func TestPrivilegedMasqueradeLostRecordLaterPlace(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_snat_secret": secret})
	for _, family := range families {
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			j := w.opens(family, tcp, podA, movedPort, 0)
			key := j.inside.tuple()
			var release []func()
			for i := range uint32(12) {
				release = append(release, w.mustHostSocket(tcp, at(upl0.addr(family), drawn(key, 1+i)), at(client(family), serverTCP)))
			}
			j.outside = j.outside.as(at(upl0.addr(family), drawn(key, 13)))
			j.answered()
			for _, f := range release {
				f()
			}
			w.evict(j.inside)
			j.out("PA")
			j.in("PA")
		}, masquerading(podA))
	}
}

// The other protocols, for which every packet may be the first, look at four places. Beyond them the flow gets a port anew, and
// what comes for the old one has no owner.
func TestPrivilegedMasqueradeLostRecordFarPlace(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_snat_secret": secret})
	for _, family := range families {
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			j := w.opens(family, udp, podA, movedPort, 0)
			key := j.inside.tuple()
			var release []func()
			for i := range uint32(6) {
				release = append(release, w.mustHostSocket(udp, at(upl0.addr(family), drawn(key, 1+i)), at(client(family), serverTCP)))
			}
			j.outside = j.outside.as(at(upl0.addr(family), drawn(key, 7)))
			j.answered()
			for _, f := range release {
				f()
			}
			w.evict(j.inside)
			old := *j
			j.outside = j.outside.as(at(upl0.addr(family), drawn(key, 1)))
			j.out("")
			old.ignored("")
			j.in("")
			j.outFast("")
		}, masquerading(podA))
	}
}
