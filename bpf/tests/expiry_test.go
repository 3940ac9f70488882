// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
)

// Idle times of bpf/lib/conntrack/conntrack_table.h, to the nanosecond: an entry that is as old as its
// time allows does not exist any more, and one that is younger does.
var lives = []struct {
	name  string
	proto []int
	reach func(j *journey) // brings a masqueraded flow into the state
	idle  time.Duration
}{
	{"unanswered", []int{udp, echo}, func(j *journey) { j.out("") }, 30 * time.Second},
	{"answered", []int{udp, echo}, func(j *journey) { j.answered() }, 180 * time.Second},
	{"opening", []int{tcp}, func(j *journey) { j.out("S") }, 60 * time.Second},
	{"established", []int{tcp}, func(j *journey) { j.answered() }, 24 * time.Hour},
	{"FIN of the pod", []int{tcp}, func(j *journey) { j.answered(); j.outFast("FA") }, 120 * time.Second},
	{"FIN of the client", []int{tcp}, func(j *journey) { j.answered(); j.inFast("FA") }, 120 * time.Second},
	{"closed", []int{tcp}, func(j *journey) { j.answered(); j.inFast("FA"); j.outFast("FA") }, 10 * time.Second},
	{"reset by the pod", []int{tcp}, func(j *journey) { j.answered(); j.outFast("R") }, 10 * time.Second},
	{"reset by the client", []int{tcp}, func(j *journey) { j.answered(); j.inFast("R") }, 10 * time.Second},
}

func eachLife(t *testing.T, fx *fixture, f func(j *journey, idle time.Duration)) {
	t.Helper()
	for _, life := range lives {
		for _, family := range families {
			for _, proto := range life.proto {
				fx.each(t, fmt.Sprintf("%s/%d/%d", life.name, proto, family), func(w *walk) {
					j := w.opens(family, proto, podA, keptPort, keptPort)
					life.reach(j)
					f(j, life.idle)
				}, masquerading(podA))
			}
		}
	}
}

func TestPrivilegedExpiry(t *testing.T) {
	fx := newFixture(t, nil)
	t.Run("alive", func(t *testing.T) {
		eachLife(t, fx, func(j *journey, idle time.Duration) {
			created := j.record().Created
			j.later(idle - 1)
			arrived := j.outside.rx("A")
			arrived.srcMAC, arrived.dstMAC = j.up.router, j.up.mac
			r, err := j.run(uplIngress, j.up.name, input{data: arrived.bytes(t)})
			if err != nil {
				t.Fatal(err)
			}
			if got := read(r.out).dst; got != podA.addr(read(r.out).family) {
				t.Errorf("the answer went to %s", got)
			}
			if j.record().Created != created {
				t.Error("a live flow was made anew")
			}
		})
	})
	t.Run("expired for the answer", func(t *testing.T) {
		eachLife(t, fx, func(j *journey, idle time.Duration) {
			j.later(idle)
			j.ignored("A")
		})
	})
	t.Run("expired for the pod", func(t *testing.T) {
		eachLife(t, fx, func(j *journey, idle time.Duration) {
			j.later(idle)
			j.out("S")
			if f := j.record(); f.Created != j.clock || f.TxPackets != 1 || f.RxPackets != 0 {
				t.Errorf("an expired flow goes on: %+v", f)
			}
		})
	})
}

// record returns the entry of the journey's flow from either table.
func (j *journey) record() bpfgen.TypesSlCtEntry {
	j.tb.Helper()
	for _, name := range []string{proven, unproven} {
		if f, ok := j.lookup(name, j.inside); ok {
			return f
		}
	}
	j.tb.Fatalf("no record of %s:\n%s", tupleText(j.inside.tuple()), j.dump())
	return bpfgen.TypesSlCtEntry{}
}

// A hostPort's flow that has expired begins anew with the client's next packet.
func TestPrivilegedExpiryHostPort(t *testing.T) {
	fx := newFixture(t, nil)
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		j := w.toHostPort(family, proto, podA)
		j.establish()
		w.later(24 * time.Hour)
		j.in("PA")
		if f := j.record(); f.Created != w.clock || f.RxPackets != 1 || f.Flags&(flowReplied|flowAssured) != 0 {
			t.Errorf("an expired flow goes on: %+v", f)
		}
		j.out("PA")
		j.inFast("PA")
	})
}

// A clock that another CPU read a little later than ours is not an age.
func TestPrivilegedExpiryClockSkew(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		j := w.opens(family, proto, podA, keptPort, keptPort)
		j.answered()
		created := j.record().Created
		w.later(-time.Millisecond)
		j.inFast("PA")
		j.outFast("PA")
		if j.record().Created != created {
			t.Error("a flow from the future was made anew")
		}
	}, masquerading(podA))
}
