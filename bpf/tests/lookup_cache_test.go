// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
)

// recentHold is how long what a program has read is believed (SL_CACHE_TTL).
const recentHold = 10 * time.Millisecond

// oneCPU keeps the node's thread where it is: what programs remember is of one CPU.
func (w *walk) oneCPU() {
	w.tb.Helper()
	err := w.do(func() error {
		var set, one unix.CPUSet
		if err := unix.SchedGetaffinity(0, &set); err != nil {
			return err
		}
		for cpu := 0; one.Count() == 0; cpu++ {
			if set.IsSet(cpu) {
				one.Set(cpu)
			}
		}
		return unix.SchedSetaffinity(0, &one)
	})
	if err != nil {
		w.tb.Fatal(err)
	}
}

// A port's new owner is found at once when the loader says that something has changed, else after 10 ms.
func TestPrivilegedLookupCachePort(t *testing.T) {
	fx := newFixture(t, nil)
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		w.oneCPU()
		j := w.toHostPort(family, proto, podA)
		j.establish()
		m := mapping(family, proto, podB)
		m.gen = 2
		w.untold = true
		w.publish(m)
		w.later(recentHold - 1)
		j.inFast("PA")
		w.later(1)
		k := w.toHostPort(family, proto, podB)
		k.in("PA")

		w.untold = false
		m.pod, m.gen = podA, 3
		w.publish(m)
		j.in("PA")
		w.remove("sl_hostports", m.key())
		j.ignored("PA")
	})
}

// So is an endpoint's change.
func TestPrivilegedLookupCachePod(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		w.oneCPU()
		j := w.plain(family, proto, podA, keptPort)
		j.answered()
		other := func(_ int, v *bpfgen.TypesSlEndpoint) { v.Mac[5] ^= 1 }
		spoofed := func() {
			w.tb.Helper()
			sent := j.inside.tx("PA")
			sent.srcMAC, sent.dstMAC = podA.mac, podA.gwMAC
			w.step(podEgress, podA.name, sent.bytes(w.tb), wantDrop(reasonMAC, podA))
		}
		w.untold = true
		w.changeEndpoint(podA, other)
		w.later(recentHold - 1)
		j.outFast("PA")
		w.later(1)
		spoofed()
		w.untold = false
		w.changeEndpoint(podA, other)
		j.outFast("PA")
		w.changeEndpoint(podA, other)
		spoofed()
	})
}

// Ports that are remembered at one place do not get each other's pods, nor does a packet that is for none of them, and a mapping with conditions is asked about
// each packet.
func TestPrivilegedLookupCacheShared(t *testing.T) {
	fx := newFixture(t, nil)
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		w.oneCPU()
		const sharing, neither = hostPort ^ 0x3f3f, hostPort ^ 0x4141 // both bytes differ by the same bits
		m := mapping(family, proto, podB)
		m.host = at(unspecified(family), sharing)
		w.publish(m)
		j, k, n := w.toHostPort(family, proto, podA), w.toHostPort(family, proto, podB), w.toHostPort(family, proto, podB)
		k.outside.local, n.outside.local = at(upl0.addr(family), sharing), at(upl0.addr(family), neither)
		j.establish()
		k.establish()
		for range 3 {
			j.inFast("PA")
			n.ignored("S")
			k.inFast("PA")
			n.ignored("PA")
		}

		m = mapping(family, proto, podA)
		m.host, m.gen = at(upl0.addr(family), hostPort), 2
		m.conditions = hostport.Conditions{Source: netOf(far(family))}
		w.publish(m)
		f := w.toHostPort(family, proto, podA)
		f.inside.remote, f.outside.remote = at(far(family), clientPort), at(far(family), clientPort)
		f.in("S")
		for range 2 {
			j.inFast("PA") // by the mapping without hostIP
			f.in("S")
			if got := f.record().HostportGeneration; got != 2 {
				w.tb.Errorf("by the mapping of generation %d, want the one with conditions", got)
			}
		}
	})
}
