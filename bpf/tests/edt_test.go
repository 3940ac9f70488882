// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfgen/objects"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
	"github.com/sluice-cni/sluice/pkg/maps/edt"
)

const (
	reasonRate = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_RATE)

	limitNumber = 7
	// 1 MB/s: 1 ns for a millibyte, 1 us a byte.
	perByte = 1000
	sec     = uint64(1e9)
	// noon is the time at which everything happens: far enough from 0 to look back.
	noon = 1000 * sec
)

// shaper is sl_edt with the clock in the test's hands.
type shaper struct {
	testing.TB
	prog   *ebpf.Program
	o      *programSet
	limits edt.Limits
	nets   edt.Nets
	ecn    byte // of what is sent by IPv4
}

// classOffset is that of tc_classid in struct __sk_buff. BPF_PROG_TEST_RUN does
// not let it be set, so the load becomes a constant.
const classOffset = 72

func newShaper(t testing.TB, l edt.Limit) *shaper {
	t.Helper()
	o := newObjects()
	spec, err := objects.LoadEdt()
	if err != nil {
		t.Fatal(err)
	}
	addSeams(spec)
	patched := 0
	for i, ins := range spec.Programs["sl_edt"].Instructions {
		if ins.OpCode.Class() == asm.LdXClass && ins.OpCode.Size() == asm.Word && ins.Offset == classOffset {
			number := asm.Mov.Imm(ins.Dst, limitNumber)
			number.Metadata = ins.Metadata
			spec.Programs["sl_edt"].Instructions[i] = number
			patched++
		}
	}
	if patched != 1 {
		t.Fatalf("%d loads of the class", patched)
	}
	o.load(t, spec, loadOptions{})
	s := &shaper{TB: t, o: o, prog: o.take(t, spec, "sl_edt"), limits: edt.NewLimits(o.views["sl_edt_limits"]), nets: edt.NewNets(o.views["sl_edt_cidrs"])}
	s.at(noon)
	s.put(l)
	return s
}

func (s *shaper) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *shaper) put(l edt.Limit) {
	s.Helper()
	if l.Rate == 0 {
		l.Rate = sec / perByte
	}
	if l.Horizon == 0 {
		l.Mark, l.Horizon = sec/4, sec/2
	}
	s.must(s.limits.Put(limitNumber, &l))
}

func (s *shaper) get() edt.Limit {
	s.Helper()
	all, err := s.limits.All()
	s.must(err)
	return all[limitNumber]
}

// at sets the time.
func (s *shaper) at(now uint64) {
	s.Helper()
	state := make([]byte, seamSize)
	binary.NativeEndian.PutUint64(state, now)
	s.must(s.o.maps[seamMap].Put(uint32(0), state))
}

// send runs a packet of length bytes and returns verdict and departure.
func (s *shaper) send(f frame, length uint32, wanted uint64) (verdict int32, departure uint64, out []byte) {
	s.Helper()
	ctx, got := skbContext{WireLen: length, Tstamp: wanted}, skbContext{}
	in := f.bytes(s.TB)
	if f.src.Addr().Is4() {
		in[15] = in[15]&^3 | s.ecn
	}
	opts := &ebpf.RunOptions{Data: in, DataOut: make([]byte, 2048), Context: &ctx, ContextOut: &got}
	ret, err := s.prog.Run(opts)
	s.must(err)
	return int32(ret), got.Tstamp, opts.DataOut
}

func udpFrame(src, dst string) frame {
	return frame{
		srcMAC: podA.mac, dstMAC: podA.gwMAC, src: netip.MustParseAddrPort(src), dst: netip.MustParseAddrPort(dst), proto: udp, ttl: 64,
		payload: make([]byte, 100),
	}
}

// One packet after another: when each may leave.
func TestPrivilegedDepartures(t *testing.T) {
	const frameLen = 1000
	ago := func(d uint64) uint64 { return -d }
	f := udpFrame("10.1.0.2:1000", "192.0.2.1:80")
	tests := []struct {
		name   string
		limit  edt.Limit
		len    uint32
		wanted uint64
		want   uint64 // departure, from noon on
		clock  uint64 // from noon on, may be negative
	}{
		{name: "at rest, no burst", len: frameLen, clock: frameLen * perByte},
		{name: "at rest, burst", limit: edt.Limit{Burst: sec / 10}, len: frameLen, clock: ago(sec/10 - frameLen*perByte)},
		{name: "behind others", limit: edt.Limit{Clock: noon + sec/5}, len: 5000, want: sec / 5, clock: sec/5 + 5000*perByte},
		{name: "at the horizon", limit: edt.Limit{Clock: noon + sec/2}, len: 5000, want: sec / 2, clock: sec/2 + 5000*perByte},
		{name: "paced by its socket", len: frameLen, wanted: noon + 3*sec, want: 3 * sec, clock: frameLen * perByte},
		{name: "a stamp of long ago", len: frameLen, wanted: noon - sec, clock: frameLen * perByte},
		{name: "a stamp of another clock", len: frameLen, wanted: 1_700_000_000 * sec, clock: frameLen * perByte},
		{name: "sparse", limit: edt.Limit{Clock: noon + sec/5}, len: frameLen, clock: sec/5 + frameLen*perByte},
		{name: "sparse, its share used", limit: edt.Limit{Clock: noon + sec/5, Sparse: noon + sec/100}, len: frameLen,
			want: sec / 100, clock: sec/5 + frameLen*perByte},
		{name: "sparse, its share used up", limit: edt.Limit{Clock: noon + sec/5, Sparse: noon + sec}, len: frameLen,
			want: sec / 5, clock: sec/5 + frameLen*perByte},
	}
	s := newShaper(t, edt.Limit{})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s.put(tt.limit)
			verdict, departure, _ := s.send(f, tt.len, tt.wanted)
			l := s.get()
			if verdict != pass || departure-noon != tt.want || l.Clock-noon != tt.clock {
				t.Errorf("verdict %d, departure %d, clock %d; want %d and %d", verdict, int64(departure-noon), int64(l.Clock-noon), tt.want, int64(tt.clock))
			}
			if l.Packets != 1 || l.Bytes != uint64(tt.len) || l.Drops != 0 {
				t.Errorf("counted %d packets, %d bytes, %d drops", l.Packets, l.Bytes, l.Drops)
			}
		})
	}
}

// At every rate, packets of any length leave exactly when the bytes before them are through: less than 1 ns a packet too early, which is
// what a division loses. That is 0.4 % for the shortest frames at 10 Gbit/s, and 0.02 % for full ones.
func TestPrivilegedDeparturesAtRates(t *testing.T) {
	const packets = 200
	s := newShaper(t, edt.Limit{})
	f := udpFrame("10.1.0.2:1000", "192.0.2.1:80")
	f.payload = nil // as short as the shortest
	for _, mbit := range []uint64{1, 10, 100, 1000, 10_000} {
		for _, length := range []uint32{64, 1514, 65_226} {
			rate := mbit * 1e6 / 8
			s.put(edt.Limit{Rate: rate, Horizon: 1 << 62, Mark: 1 << 62, Sparse: 1 << 62})
			for i := range uint64(packets) {
				verdict, departure, _ := s.send(f, length, 0)
				want := uint64(float64(i) * float64(length) * 1e9 / float64(rate))
				if at := departure - noon; verdict != pass || at > want || want-at > i {
					t.Fatalf("%d Mbit/s, %d bytes: packet %d has verdict %d and leaves at %d ns, want %d", mbit, length, i, verdict, at, want)
				}
			}
		}
	}
}

// A flow that was let past the queue never overtakes itself, and a busy one is
// not let past it.
func TestPrivilegedDeparturesOfOneFlow(t *testing.T) {
	s := newShaper(t, edt.Limit{Clock: noon + sec/5})
	f := udpFrame("10.1.0.2:1000", "192.0.2.1:80")
	last, waited := uint64(0), false
	for i := range 40 {
		_, departure, _ := s.send(f, 1500, 0)
		if departure < last {
			t.Fatalf("packet %d leaves at %d, the one before at %d", i, departure-noon, last-noon)
		}
		last = departure
		waited = waited || departure >= noon+sec/5
	}
	if !waited {
		t.Error("forty packets at once were all let past the queue")
	}
	if _, departure, _ := s.send(udpFrame("10.1.0.2:1001", "192.0.2.1:81"), 200, 0); departure >= noon+sec/5 {
		t.Errorf("another flow waits for %d ns", departure-noon)
	}
}

// overRate is the walk of that drop.
func overRate(w *walk, family, _ int) {
	s := newShaper(w.tb, edt.Limit{Clock: noon + sec/2 + 1})
	f := udpFrame("10.1.0.2:1000", "192.0.2.1:80")
	if family == 6 {
		f = udpFrame("[fd00:1::2]:1000", "[2001:db8::1]:80")
	}
	if verdict, _, _ := s.send(f, 5000, 0); verdict != shot {
		w.tb.Errorf("verdict %d", verdict)
	}
	n, err := drops.NewDrops(s.o.views["sl_drop_reasons"]).Get(reasonRate)
	l := s.get()
	if err != nil || n != (drops.Sum{ToPods: 1}) || l.Drops != 1 || l.Packets != 0 || l.Clock != noon+sec/2+1 {
		w.tb.Errorf("counted %+v (%v), limit %d drops, %d packets", n, err, l.Drops, l.Packets)
	}
}

// Senders that know ECN are told of a queue, others are not touched.
func TestPrivilegedCongestionMark(t *testing.T) {
	s := newShaper(t, edt.Limit{})
	for _, tt := range []struct {
		name      string
		wait      uint64
		ecn, want byte
	}{{"long, ECN", sec / 3, 2, 3}, {"long, no ECN", sec / 3, 0, 0}, {"short", sec / 5, 2, 2}} {
		s.put(edt.Limit{Clock: noon + tt.wait})
		s.ecn = tt.ecn
		_, _, out := s.send(udpFrame("10.1.0.2:1000", "192.0.2.1:80"), 5000, 0)
		if got := out[15] & 3; got != tt.want {
			t.Errorf("%s: ECN bits %d, want %d", tt.name, got, tt.want)
		}
	}
}

// The list is about the other end: the destination of what the pod sends, the
// source of what it gets.
func TestPrivilegedLimitedNetworks(t *testing.T) {
	s := newShaper(t, edt.Limit{})
	s.must(s.nets.Put(limitNumber, netip.MustParsePrefix("192.0.2.0/24")))
	s.must(s.nets.Put(limitNumber, netip.MustParsePrefix("2001:db8::/32")))
	s.must(s.nets.Put(limitNumber+1, netip.MustParsePrefix("0.0.0.0/0")))
	got, err := s.nets.Of(limitNumber)
	if err != nil || len(got) != 2 {
		t.Errorf("networks %v %v", got, err)
	}
	pod := map[bool]string{false: "10.1.0.2:1000", true: "[fd00:1::2]:1000"}
	in := map[bool]string{false: "192.0.2.9:80", true: "[2001:db8::9]:80"}
	beside := map[bool]string{false: "192.0.3.9:80", true: "[2001:db9::9]:80"}
	for _, flags := range []uint32{edt.FlagListed, edt.FlagUnlisted, edt.FlagListed | edt.FlagEgress, edt.FlagUnlisted | edt.FlagEgress} {
		for _, v6 := range []bool{false, true} {
			for listed, other := range map[bool]string{true: in[v6], false: beside[v6]} {
				s.put(edt.Limit{Flags: flags})
				f := udpFrame(other, pod[v6])
				if flags&edt.FlagEgress != 0 {
					f = udpFrame(pod[v6], other)
				}
				s.send(f, 1000, 0)
				if want := listed == (flags&edt.FlagListed != 0); (s.get().Packets == 1) != want {
					t.Errorf("flags %x, IPv6 %t, listed %t: limited %t", flags, v6, listed, !want)
				}
			}
		}
	}
	s.must(s.nets.Clear(limitNumber))
	if n, err := s.nets.Len(); err != nil || n != 1 {
		t.Errorf("%d networks left, %v", n, err)
	}
}

// A network of IPv6 that has the v4-mapped addresses too says nothing about IPv4.
func TestPrivilegedLimitedFamilies(t *testing.T) {
	s := newShaper(t, edt.Limit{})
	s.must(s.nets.Put(limitNumber, netip.MustParsePrefix("::/0")))
	for _, f := range []struct {
		frame  frame
		listed bool
	}{{udpFrame("192.0.2.9:80", "10.1.0.2:1000"), false}, {udpFrame("[2001:db8::9]:80", "[fd00:1::2]:1000"), true}} {
		s.put(edt.Limit{Flags: edt.FlagListed})
		s.send(f.frame, 1000, 0)
		if limited := s.get().Packets == 1; limited != f.listed {
			t.Errorf("limited %t, want %t: %+v", limited, f.listed, f.frame)
		}
	}
}

// A device without a number, or whose limit has gone, is left alone.
func TestPrivilegedNoLimit(t *testing.T) {
	s := newShaper(t, edt.Limit{})
	s.must(s.limits.Delete(limitNumber))
	f := udpFrame("10.1.0.2:1000", "192.0.2.1:80")
	if verdict, departure, _ := s.send(f, 1000, noon+5); verdict != pass || departure != noon+5 {
		t.Errorf("verdict %d, time %d", verdict, departure-noon)
	}
}

// Whatever arrives: what has left by any moment is within rate, burst, the longest
// packet, and what sparse flows may borrow.
func TestPrivilegedRateHolds(t *testing.T) {
	const burst, longest = 20_000, 9000
	s := newShaper(t, edt.Limit{})
	rng := rand.New(rand.NewPCG(1, 2))
	s.put(edt.Limit{Burst: burst * perByte})
	now, sent := noon, map[uint64]uint64{}
	for range 4000 {
		now += rng.Uint64N(6 * sec / 1000)
		s.at(now)
		f := udpFrame("10.1.0.2:1000", "192.0.2.1:80")
		f.src = netip.AddrPortFrom(f.src.Addr(), 1000+uint16(rng.IntN(50)))
		n := 200 + rng.Uint32N(longest)
		if verdict, departure, _ := s.send(f, n, 0); verdict == pass {
			sent[departure] += uint64(n)
		}
	}
	l := s.get()
	if l.Drops == 0 || l.Marks == 0 {
		t.Errorf("%d drops and %d marks: not enough traffic to prove anything", l.Drops, l.Marks)
	}
	total := uint64(0)
	for _, n := range sent {
		total += n
	}
	if diff := cmp.Diff(l.Bytes, total); diff != "" {
		t.Errorf("bytes counted: %s", diff)
	}
	// All that was admitted has been paid for: the clock is the sum, and the sum is the rate.
	allowed := (now-noon)/perByte + burst + longest + l.Horizon/perByte
	if total > allowed {
		t.Errorf("%d bytes were admitted in %d ns, at most %d may", total, now-noon, allowed)
	}
}
