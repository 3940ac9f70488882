// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
)

const flowEnding = flowFinTX | flowFinRX | flowRST

// inject sends TCP packets to the uplink under the connection's outside tuple. delta is the distance from the byte that the
// pod expects next. What the program does with each packet is not checked.
func (j *journey) inject(kind string, deltas ...uint32) {
	j.tb.Helper()
	for _, d := range deltas {
		f := j.outside.rx(kind)
		f.seq, f.srcMAC, f.dstMAC = seqRemote+d, j.up.router, j.up.mac
		j.wire(f)
	}
}

func (j *journey) wire(f frame) {
	j.tb.Helper()
	j.unchecked(uplIngress, j.up.name, input{data: f.bytes(j.tb)})
}

// unchecked runs one program and takes its counters for right.
func (j *journey) unchecked(h hook, dev string, in input) {
	j.tb.Helper()
	if _, err := j.run(h, dev, in); err != nil {
		j.tb.Fatal(err)
	}
	*j.stats[j.pod] = j.readStats(j.pod)
}

// says has the pod send a packet with these numbers.
func (j *journey) says(kind string, seq, ack uint32) {
	j.tb.Helper()
	f := j.inside.tx(kind)
	f.seq, f.ack, f.srcMAC, f.dstMAC = seq, ack, j.pod.mac, j.pod.gwMAC
	j.unchecked(podEgress, j.pod.name, input{data: f.bytes(j.tb)})
}

// outOfPlace are distances of guesses: all over the space, and just behind what came in order, which may be one packet.
func outOfPlace() []uint32 {
	all := []uint32{13, 14, 100, 1 << 16, 1<<30 - 1, 1 << 30, 1<<30 + 1, 1 << 31, ^uint32(0), ^uint32(1)}
	for i := range uint32(256) {
		all = append(all, i<<24|0x1234)
	}
	return all
}

// longLived are established connections of each kind on the fast path.
var longLived = []struct {
	name string
	opt  func(family int) option
	open func(w *walk, family int) *journey
}{
	{"hostPort", func(f int) option { return publishing(mapping(f, tcp, podA)) }, func(w *walk, f int) *journey {
		j := w.toHostPort(f, tcp, podA)
		j.establish()
		return j
	}},
	{"masquerade", func(int) option { return masquerading(podA) }, func(w *walk, f int) *journey {
		j := w.opens(f, tcp, podA, keptPort, keptPort)
		j.answered()
		return j
	}},
	{"plain", func(int) option { return func(*walk) {} }, func(w *walk, f int) *journey {
		j := w.plain(f, tcp, podA, keptPort)
		j.answered()
		return j
	}},
}

func eachLongLived(t *testing.T, f func(j *journey)) {
	t.Helper()
	fx := newFixture(t, nil)
	for _, c := range longLived {
		for _, family := range families {
			fx.each(t, fmt.Sprintf("%s/%d", c.name, family), func(w *walk) {
				f(c.open(w, family))
			}, c.opt(family))
		}
	}
}

// A third party that guesses the tuple does not end a connection, with a RST or a FIN, before or after the pod is idle.
func TestPrivilegedBlindReset(t *testing.T) {
	for _, kind := range []string{"R", "RA", "FA", "F", "FPA"} {
		t.Run(kind, func(t *testing.T) {
			eachLongLived(t, func(j *journey) {
				before := j.wantFlow(proven, j.inside, j.record().Flags)
				j.inject(kind, outOfPlace()...)
				after := j.wantFlow(proven, j.inside, before.Flags)
				if after.Created != before.Created {
					t.Error("the entry is another one")
				}
				j.later(time.Hour)
				j.outFast("PA") // the pod speaks first
				j.inFast("PA")
			})
		})
	}
}

// A FIN of a third party and the pod's own do not close a connection either: the client's last packet is still to come.
func TestPrivilegedBlindResetHalfClosed(t *testing.T) {
	eachLongLived(t, func(j *journey) {
		j.outFast("FA")
		j.inject("FA", outOfPlace()...)
		j.inject("RA", outOfPlace()...)
		j.inject("A", outOfPlace()...)
		if f := j.record(); f.Flags&flowEnding != flowFinTX {
			t.Errorf("flags %#x, want the pod's FIN only", f.Flags)
		}
		j.later(100 * time.Second)
		j.inFast("PA")
		j.outFast("A")
	})
}

// With the right number they count, and what goes on afterwards takes them back.
func TestPrivilegedResetInPlace(t *testing.T) {
	eachLongLived(t, func(j *journey) {
		ends := func(when string, want uint32) {
			t.Helper()
			f, ok := j.lookup(proven, j.inside)
			if !ok {
				t.Fatalf("%s: the entry is gone", when)
			}
			if got := f.Flags & flowEnding; got != want {
				t.Errorf("%s: flags %#x, want %#x", when, got, want)
			}
		}
		j.inject("R", 0)
		ends("RST", flowRST) // not deleted: the pod may not believe it
		j.says("A", seqLocal, seqRemote)
		ends("challenge", 0)
		j.inject("PA", 0) // the pod has not acknowledged this
		j.inject("R", 5)
		ends("RST within the data", 0)
		j.inject("R", uint32(len("what is sent")))
		ends("RST behind the data", flowRST)
		j.says("A", seqLocal, seqRemote)
		j.inject("FA", uint32(len("what is sent")))
		ends("FIN behind the data", flowFinRX)
		j.inject("PA", uint32(len("what is sent"))) // the FIN was a third party's
		ends("data", 0)
	})
}

// A packet that was lost on its way to the node leaves a gap: the pod's acknowledgment closes it.
func TestPrivilegedSequenceGap(t *testing.T) {
	eachLongLived(t, func(j *journey) {
		j.inject("PA", 100)
		j.inject("RA", 112)
		if f := j.record(); f.Flags&flowEnding != 0 {
			t.Errorf("a RST behind a gap counts: flags %#x", f.Flags)
		}
		j.says("A", seqLocal, seqRemote+112)
		j.inject("RA", 112)
		if f := j.record(); f.Flags&flowRST == 0 {
			t.Error("the RST that answers the pod does not count")
		}
	})
}

// Sequence numbers wrap.
func TestPrivilegedSequenceWraps(t *testing.T) {
	eachLongLived(t, func(j *journey) {
		first := ^uint32(0) - 5
		f := j.record()
		f.TxAck, f.RxEnd = first, first
		j.put(proven, j.inside.tuple(), &f)
		j.inject("PA", first-seqRemote)
		if f = j.record(); f.TxAck != first || f.RxEnd != first+12 {
			t.Errorf("expects %#x to %#x, want %#x to %#x", f.TxAck, f.RxEnd, first, first+12)
		}
		j.inject("RA", first+12-seqRemote)
		if f = j.record(); f.Flags&flowRST == 0 {
			t.Error("the RST behind the wrap does not count")
		}
	})
}

// A RST refuses the pod's SYN only if it acknowledges it.
func TestPrivilegedBlindRefusal(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			j := w.opens(family, tcp, podA, keptPort, keptPort)
			j.out("S")
			for _, ack := range []uint32{0, seqLocal - 1, seqLocal + 1, 1 << 31} {
				f := j.outside.rx("RA")
				f.seq, f.ack, f.srcMAC, f.dstMAC = 0, ack, j.up.router, j.up.mac
				j.wire(f)
			}
			if f := j.record(); f.Flags&flowRST != 0 {
				t.Errorf("flags %#x after false refusals", f.Flags)
			}
			j.in("RA")
			if f := j.record(); f.Flags&flowRST == 0 {
				t.Error("the refusal does not count")
			}
		}, masquerading(podA))
	}
}

// Nor does a false acknowledgment, which the pod's socket answers with a RST, end a connection that is being opened.
func TestPrivilegedProvokedReset(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			j := w.toHostPort(family, tcp, podA)
			j.in("S")
			j.out("SA")
			f := j.outside.rx("A")
			f.seq, f.ack, f.srcMAC, f.dstMAC = 77, 1<<31, j.up.router, j.up.mac
			j.wire(f)
			j.says("R", 1<<31, 0)
			if f := j.wantFlow(unproven, j.inside, j.record().Flags); f.Flags&(flowRST|flowAssured) != 0 {
				t.Errorf("flags %#x", f.Flags)
			}
			j.inFast("A")
			j.outFast("PA")
		}, publishing(mapping(family, tcp, podA)))
	}
}

// An entry that was made in the middle of a connection believes nothing from outside before the pod spoke.
func TestPrivilegedBlindResetRelearned(t *testing.T) {
	fx := newFixture(t, nil)
	for _, family := range families {
		fx.each(t, fmt.Sprint(family), func(w *walk) {
			j := w.toHostPort(family, tcp, podA)
			j.establish()
			w.evict(j.inside)
			j.in("PA")
			j.inject("RA", append(outOfPlace(), 0)...)
			j.inject("FA", append(outOfPlace(), 0)...)
			j.out("PA")
			j.inFast("PA")
			j.inject("FA", 0)
			j.wantFlow(proven, j.inside, uint32(bpfgen.TypesSlCtFlagSL_CT_FIN_RX)|flowDNAT|flowDNATAny|flowConfirmed|flowReplied|flowAssured)
		}, publishing(mapping(family, tcp, podA)))
	}
}

// A header that claims to be longer than its packet moves nothing.
func TestPrivilegedSequenceFalseLength(t *testing.T) {
	eachLongLived(t, func(j *journey) {
		before := j.record()
		f := j.outside.rx("A")
		f.srcMAC, f.dstMAC = j.up.router, j.up.mac
		b := f.bytes(t)
		b[read(b).l4+12] = 15 << 4
		fixL4Sum(b)
		j.unchecked(uplIngress, j.up.name, input{data: b})
		if after := j.record(); after.RxEnd != before.RxEnd || after.Flags != before.Flags {
			t.Errorf("comes next %#x, want %#x", after.RxEnd, before.RxEnd)
		}
	})
}
