// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// What frame makes is what read reads, and its checksums are right.
func TestFrames(t *testing.T) {
	t.Parallel()
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 7}
	for _, ends := range [][2]string{{"10.1.0.2", "192.0.2.7"}, {"fd00:1::2", "2001:db8::7"}} {
		src, dst := netip.MustParseAddr(ends[0]), netip.MustParseAddr(ends[1])
		icmp := uint8(unix.IPPROTO_ICMP)
		if src.Is6() {
			icmp = unix.IPPROTO_ICMPV6
		}
		for _, answer := range []bool{false, true} {
			for _, want := range []Tuple{
				{unix.IPPROTO_TCP, netip.AddrPortFrom(src, 49152), netip.AddrPortFrom(dst, 443)},
				{unix.IPPROTO_UDP, netip.AddrPortFrom(src, 49152), netip.AddrPortFrom(dst, 53)},
				{icmp, netip.AddrPortFrom(src, 7), netip.AddrPortFrom(dst, 0)},
			} {
				if want.Proto == icmp && answer {
					want = want.reverse()
				}
				b := frame(want, answer, mac, mac)
				if got := read(b, Tuple{}); got != want {
					t.Errorf("%v, answer %t: read as %v", want, answer, got)
				}
				at := etherLen + 20
				pseudo := append(append([]byte{}, want.Src.Addr().AsSlice()...), want.Dst.Addr().AsSlice()...)
				if src.Is6() {
					at += 20
				} else if sum := checksum(b[etherLen:at]); sum != 0 {
					t.Errorf("%v: checksum of the IP header %#x", want, sum)
				}
				l4 := b[at:]
				pseudo = append(append(pseudo, 0, 0, 0, byte(len(l4)), 0, 0, 0, want.Proto), l4...)
				if want.Proto == unix.IPPROTO_ICMP {
					pseudo = l4
				}
				if sum := checksum(pseudo); sum != 0 {
					t.Errorf("%v: checksum %#x", want, sum)
				}
			}
		}
	}
	was := Tuple{Proto: 6}
	if got := read(make([]byte, 20), was); got != was {
		t.Errorf("no packet is read as %v", got)
	}
}

// The last line names what decides, and what could decide otherwise.
func TestLine(t *testing.T) {
	t.Parallel()
	end := Tuple{6, netip.MustParseAddrPort("192.0.2.1:61000"), netip.MustParseAddrPort("192.0.2.7:80")}
	sent := Path{Verdict: Sent, Device: "eth0", end: end, NotRehearsed: []string{"a", "b"}}
	stopped := Path{Verdict: Dropped, At: "sl_to_pod", Device: "veth1", Reason: "denied", Why: "why", Do: "do"}
	for want, r := range map[string]Result{
		"sent out of eth0 as 192.0.2.1:61000, if a, and b":                                                  {Path: sent},
		"dropped at sl_to_pod on veth1: denied: why: do":                                                    {Path: stopped},
		"sent out of eth0 as 192.0.2.1:61000; its answer is dropped at sl_to_pod on veth1: denied: why: do": {Path: sent, Answer: &stopped},
		"delivered to pod net/1/eth0 as 192.0.2.7:80":                                                       {Path: Path{Verdict: Delivered, At: "pod net/1/eth0", end: end}, Answer: &sent},
	} {
		if got := r.Line(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if r.Dropped() != (r.Verdict == Dropped || r.Answer != nil && r.Answer.Verdict == Dropped) {
			t.Errorf("%q: dropped %t", want, r.Dropped())
		}
	}
}
