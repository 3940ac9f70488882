// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/sluice-cni/sluice/pkg/maps/drops"
	"github.com/sluice-cni/sluice/pkg/maps/edt"
)

// newPolicer returns sl_edt at a host veth.
func newPolicer(t testing.TB, burst uint64) *shaper {
	t.Helper()
	return newShaper(t, edt.Limit{Flags: edt.FlagEgress | edt.FlagPolice, Burst: burst})
}

// police runs a packet of a pod and returns the verdict. ctx says more of the packet. A policer does not touch the time stamp.
func (s *shaper) police(data []byte, ctx skbContext) int32 {
	s.Helper()
	const stamp = 17
	got := skbContext{}
	ctx.Tstamp = stamp
	ret, err := s.prog.Run(&ebpf.RunOptions{Data: data, DataOut: make([]byte, 4096), Context: &ctx, ContextOut: &got})
	s.must(err)
	if got.Tstamp != stamp {
		s.Errorf("the time stamp is %d", got.Tstamp)
	}
	return int32(ret)
}

// departure is a packet that sl_edt let leave.
type departure struct {
	at   uint64
	data []byte
	segs uint32
}

// What leaves at its departure time always passes, with no more room than the longest packet and the sparse flows' share of the
// queue: full queues, bursts after pauses, GSO packets, floods of small flows, and every mix of them.
func TestPrivilegedPolicerPassesDepartures(t *testing.T) {
	const burst, headers, most = 20_000, 42, 1000
	var frames [100][]byte
	for i := range frames {
		f := udpFrame("10.1.0.2:1000", "192.0.2.1:80")
		f.src = netip.AddrPortFrom(f.src.Addr(), 1000+uint16(i))
		f.payload = make([]byte, 50+i*30)
		if i >= 60 { // small flows
			f.payload = f.payload[:20+i]
		}
		frames[i] = f.bytes(t)
	}
	for name, tt := range map[string]struct {
		cost uint64 // of a byte at the rate, ns
		gap  uint64 // mean, ns
		long uint32 // one packet of so many is a long one
		busy bool
	}{
		"overload":                       {cost: perByte, gap: sec / 10_000, busy: true},
		"twice the rate":                 {cost: perByte, gap: sec / 3000, busy: true},
		"half the rate":                  {cost: perByte, gap: sec / 800},
		"long packets":                   {cost: perByte, gap: sec / 600, long: 20, busy: true},
		"long packets at a low rate":     {cost: 10 * perByte, gap: sec / 60, long: 20, busy: true},
		"a long packet, then small ones": {cost: 10 * perByte, gap: sec / 30, long: 100, busy: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShaper(t, edt.Limit{Flags: edt.FlagEgress, Rate: sec / tt.cost, Burst: burst * tt.cost})
			rng := rand.New(rand.NewPCG(3, tt.gap))
			now, longest := noon, uint64(0)
			var all []departure
			overtook := false
			for i := range 6000 {
				now += rng.Uint64N(2 * tt.gap)
				if i%3000 == 2999 {
					now += sec / 2 // a pause
				}
				s.at(now)
				d := departure{data: frames[rng.IntN(len(frames))], segs: 1}
				if tt.long > 0 && rng.Uint32N(tt.long) == 0 {
					d.segs = 1 + rng.Uint32N(most)
				}
				length := uint32(len(d.data)) + (d.segs-1)*headers
				longest = max(longest, uint64(length))
				ctx, got := skbContext{WireLen: length, GsoSegs: d.segs}, skbContext{}
				ret, err := s.prog.Run(&ebpf.RunOptions{Data: d.data, DataOut: make([]byte, 4096), Context: &ctx, ContextOut: &got})
				s.must(err)
				if int32(ret) == pass {
					d.at = got.Tstamp
					overtook = overtook || len(all) > 0 && d.at < all[len(all)-1].at
					all = append(all, d)
				}
			}
			l := s.get()
			if tt.busy != (l.QueuedNs > 0 && overtook) {
				t.Errorf("%d drops, waited %d ns, overtaken %t: not the traffic that proves anything", l.Drops, l.QueuedNs, overtook)
			}
			slices.SortStableFunc(all, func(a, b departure) int { return cmp.Compare(a.at, b.at) })

			p := newPolicer(t, 0)
			p.put(edt.Limit{
				Flags: edt.FlagEgress | edt.FlagPolice, Rate: sec / tt.cost,
				Burst: (burst+longest)*tt.cost + (l.Horizon+longest*tt.cost)/4,
			})
			for i, d := range all {
				p.at(d.at)
				if verdict := p.police(d.data, skbContext{GsoSegs: d.segs}); verdict != pass {
					t.Fatalf("packet %d of %d at %d ns: verdict %d", i, len(all), d.at-noon, verdict)
				}
			}
			if got := p.get(); got.Bytes != l.Bytes || got.Packets != l.Packets {
				t.Errorf("%d bytes in %d packets, sl_edt had %d in %d", got.Bytes, got.Packets, l.Bytes, l.Packets)
			}
		})
	}
}

// What comes faster does not pass, however it is cut: no more than rate and burst, and one packet.
func TestPrivilegedPolicerHolds(t *testing.T) {
	const burst, longest = 20_000, 2000
	p := newPolicer(t, burst*perByte)
	rng := rand.New(rand.NewPCG(5, 6))
	now, passed, dropped := noon, uint64(0), uint64(0)
	for range 4000 {
		now += rng.Uint64N(sec / 1000)
		p.at(now)
		f := udpFrame("10.1.0.2:1000", "192.0.2.1:80")
		f.payload = make([]byte, 1+rng.IntN(longest-100))
		data := f.bytes(t)
		switch verdict := p.police(data, skbContext{}); verdict {
		case pass:
			passed += uint64(len(data))
		case shot:
			dropped++
		default:
			t.Fatalf("verdict %d", verdict)
		}
	}
	elapsed := (now - noon) / perByte
	if allowed := elapsed + burst + longest; passed > allowed || passed < elapsed*9/10 {
		t.Errorf("%d bytes passed in %d ns, at most %d may", passed, now-noon, allowed)
	}
	l := p.get()
	n, err := drops.NewDrops(p.o.views["sl_drop_reasons"]).Get(reasonRate)
	if err != nil || n != (drops.Sum{FromPods: dropped}) || l.Drops != dropped || l.Bytes != passed || dropped == 0 {
		t.Errorf("%d dropped, counted %+v (%v); the limit has %d drops and %d bytes of %d", dropped, n, err, l.Drops, l.Bytes, passed)
	}
}

// A GSO packet costs as many headers as it has segments: otherwise a pod could send short segments for the price of their payload.
func TestPrivilegedPolicerCountsSegments(t *testing.T) {
	p := newPolicer(t, sec)
	for _, tt := range []struct {
		name       string
		src, dst   string
		proto      int
		options    []byte
		size, segs uint32
		want       uint64 // bytes beside the packet's own
	}{
		{name: "no GSO", src: "10.1.0.2:1000", dst: "192.0.2.1:80", proto: tcp},
		{name: "one segment", src: "10.1.0.2:1000", dst: "192.0.2.1:80", proto: tcp, size: 1000, segs: 1},
		{name: "TCP", src: "10.1.0.2:1000", dst: "192.0.2.1:80", proto: tcp, size: 100, segs: 10, want: 9 * 54},
		{name: "TCP, IP options", src: "10.1.0.2:1000", dst: "192.0.2.1:80", proto: tcp, options: []byte{1, 1, 1, 0}, size: 100, segs: 10, want: 9 * 58},
		{name: "TCP, IPv6", src: "[fd00:1::2]:1000", dst: "[2001:db8::1]:80", proto: tcp, size: 100, segs: 10, want: 9 * 74},
		{name: "UDP", src: "10.1.0.2:1000", dst: "192.0.2.1:80", proto: udp, size: 100, segs: 10, want: 9 * 42},
		{name: "UDP, IPv6", src: "[fd00:1::2]:1000", dst: "[2001:db8::1]:80", proto: udp, size: 100, segs: 10, want: 9 * 62},
		{name: "number not known", src: "10.1.0.2:1000", dst: "192.0.2.1:80", proto: udp, size: 104, want: 9 * 42},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p.put(edt.Limit{Flags: edt.FlagEgress | edt.FlagPolice, Burst: sec})
			f := udpFrame(tt.src, tt.dst)
			f.proto, f.flags, f.options, f.payload = tt.proto, "A", tt.options, make([]byte, 1000)
			data := f.bytes(t)
			if verdict := p.police(data, skbContext{GsoSize: tt.size, GsoSegs: tt.segs}); verdict != pass {
				t.Fatalf("verdict %d", verdict)
			}
			// The clock loses 1 ns for each further segment: no more than sl_edt may have lost.
			l, want := p.get(), uint64(len(data))+tt.want
			lost := uint64(max(tt.segs, 1) - 1)
			if tt.segs == 0 && tt.size > 0 {
				lost = uint64(len(data))/uint64(tt.size) - 1
			}
			if cost := l.Clock - (noon - sec); l.Bytes != want || cost != want*perByte-lost {
				t.Errorf("%d bytes, %d ns; want %d bytes", l.Bytes, cost, want)
			}
		})
	}
}

// The list of networks is about the destination, as on the pod's own device.
func TestPrivilegedPolicerNetworks(t *testing.T) {
	p := newPolicer(t, 0)
	p.must(p.nets.Put(limitNumber, netip.MustParsePrefix("192.0.2.0/24")))
	p.must(p.nets.Put(limitNumber, netip.MustParsePrefix("2001:db8::/32")))
	for _, tt := range []struct {
		src, dst string
		listed   bool
	}{
		{"10.1.0.2:1000", "192.0.2.9:80", true},
		{"192.0.2.9:80", "10.1.0.2:1000", false},
		{"[fd00:1::2]:1000", "[2001:db8::9]:80", true},
		{"[2001:db8::9]:80", "[fd00:1::2]:1000", false},
	} {
		for flag, limited := range map[uint32]bool{edt.FlagListed: tt.listed, edt.FlagUnlisted: !tt.listed} {
			p.put(edt.Limit{Flags: edt.FlagEgress | edt.FlagPolice | flag, Clock: noon + sec})
			want := pass
			if limited {
				want = shot
			}
			if verdict := p.police(udpFrame(tt.src, tt.dst).bytes(t), skbContext{}); verdict != want {
				t.Errorf("%s to %s, flag %x: verdict %d, want %d", tt.src, tt.dst, flag, verdict, want)
			}
		}
	}
}
