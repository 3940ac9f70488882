// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"testing"
	"time"
)

// relearnUnits is a cfg_relearn of about a second. unit is what it counts in.
const (
	relearnUnits = 1000
	unit         = time.Duration(1 << 20)
)

// openerUnits is the age at which the end that opened a connection begins to confirm it again.
const openerUnits = relearnUnits - relearnUnits/4

// A connection takes the slow path again when its time is over, and the fast path only after both hooks of each direction have seen
// it once more.
func TestPrivilegedRelearn(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_relearn": relearnUnits})
	// again confirms a connection twice. The opener's packets take the first two functions, the answers the others.
	again := func(j *journey, asked, askedFast, answered, answeredFast func(kind string)) {
		for range 2 {
			j.later(relearnUnits * unit)
			asked("PA")
			asked("PA") // the other direction is not confirmed yet
			answered("PA")
			j.later((openerUnits - 1) * unit)
			askedFast("PA")
			answeredFast("PA")
			j.later(unit)
			answeredFast("PA") // nothing that the opener has not shown first
			asked("PA")
			answered("PA")
			askedFast("PA")
			j.later((relearnUnits - 1) * unit)
			answeredFast("PA") // the opener is silent
			j.later(unit)
			answered("PA")
			answered("PA")
			asked("PA")
			askedFast("PA")
			answeredFast("PA")
		}
	}
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		j := w.opens(family, proto, podA, keptPort, keptPort)
		j.answered()
		again(j, j.out, j.outFast, j.in, j.inFast)
	}, masquerading(podA))
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		j := w.toHostPort(family, proto, podA)
		j.establish()
		again(j, j.in, j.inFast, j.out, j.outFast)
	})
}

// Where the stack drops a connection's packets, no packet of it takes the fast path any more.
func TestPrivilegedRelearnDropped(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_relearn": relearnUnits})
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		j := w.opens(family, proto, podA, keptPort, keptPort)
		j.answered()
		for range 3 {
			j.later(relearnUnits*unit - 2)
			for range 2 {
				j.later(2)
				sent := j.inside.tx("PA")
				sent.srcMAC, sent.dstMAC = podA.mac, podA.gwMAC
				w.step(podEgress, podA.name, sent.bytes(t), passes(sent.bytes(t)))
				j.in("PA")
			}
		}
	}, masquerading(podA))
}

// The two entries of a connection between pods begin together: the fast packets of one direction must not keep the other slow.
func TestPrivilegedRelearnPodToPod(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_relearn": relearnUnits})
	pairCases(t, fx, func(p *pair) {
		p.establish()
		for range 2 {
			p.later((openerUnits - 1) * unit)
			p.fast("PA")
			p.back().fast("PA")
			p.later(unit)
			p.back().fast("PA")
			p.slow("PA")
			p.back().slow("PA")
			p.fast("PA")
			p.back().fast("PA")
			p.later(relearnUnits * unit)
			p.back().slow("PA")
			p.slow("PA")
			p.back().fast("PA")
			p.fast("PA")
		}
	})
}

// A deadline that no program of this configuration has written counts as over: it is from an earlier one, or of an older layout.
func TestPrivilegedRelearnForeignDeadline(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_relearn": relearnUnits})
	for _, at := range []uint32{0, 1500, 1 << 31, 1<<32 - 1} {
		eachProtocol(t, fx, func(w *walk, family, proto int) {
			j := w.opens(family, proto, podA, keptPort, keptPort)
			j.answered()
			v := j.record()
			v.RelearnAt = at
			w.put(proven, j.inside.tuple(), &v)
			j.out("PA")
			j.in("PA")
			j.outFast("PA")
		}, masquerading(podA))
	}
}

// A hostPort connection of "immediate" is not confirmed at all.
func TestPrivilegedRelearnImmediate(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_relearn": relearnUnits, "cfg_fast_path": 2})
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		j := w.toHostPort(family, proto, podA)
		j.inFast("S")
		j.outFast("SA")
		j.later(2 * relearnUnits * unit)
		j.inFast("PA")
		j.outFast("PA")
	})
}
