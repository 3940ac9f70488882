// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/ipproto"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
)

// Tuple are the ends of a packet. For ICMP echo, the port of the end that asks is the identifier.
type Tuple struct {
	Proto    uint8
	Src, Dst netip.AddrPort
}

func (t Tuple) is4() bool { return t.Dst.Addr().Is4() }

// reverse is the tuple of an answer.
func (t Tuple) reverse() Tuple { return Tuple{t.Proto, t.Dst, t.Src} }

// String is "tcp 10.1.0.2:40000 > 192.0.2.7:80".
func (t Tuple) String() string {
	if t.Proto == unix.IPPROTO_ICMP || t.Proto == unix.IPPROTO_ICMPV6 {
		return fmt.Sprintf("icmp %s > %s", t.Src.Addr(), t.Dst.Addr())
	}
	return fmt.Sprintf("%s %s > %s", ipproto.Name(t.Proto), t.Src, t.Dst)
}

const (
	etherLen = 14
	hops     = 64
)

// frame makes the first packet of a connection, or the first answer: a SYN or SYN-ACK, a datagram of 8 bytes, an echo request or reply.
func frame(t Tuple, answer bool, dst, src net.HardwareAddr) []byte {
	l4 := transport(t, answer)
	b := make([]byte, etherLen, etherLen+40+len(l4))
	setMACs(b, dst, src)
	s, d := t.Src.Addr().AsSlice(), t.Dst.Addr().AsSlice()
	if t.is4() {
		binary.BigEndian.PutUint16(b[12:], unix.ETH_P_IP)
		ip := make([]byte, 20)
		ip[0], ip[8], ip[9] = 0x45, hops, t.Proto
		binary.BigEndian.PutUint16(ip[2:], uint16(20+len(l4)))
		binary.BigEndian.PutUint16(ip[6:], 0x4000) // do not fragment
		copy(ip[12:], s)
		copy(ip[16:], d)
		binary.BigEndian.PutUint16(ip[10:], checksum(ip))
		b = append(b, ip...)
	} else {
		binary.BigEndian.PutUint16(b[12:], unix.ETH_P_IPV6)
		ip := make([]byte, 8, 40)
		ip[0], ip[6], ip[7] = 0x60, t.Proto, hops
		binary.BigEndian.PutUint16(ip[4:], uint16(len(l4)))
		b = append(b, append(append(ip, s...), d...)...)
	}
	return append(b, l4...)
}

func transport(t Tuple, answer bool) []byte {
	var (
		l4  []byte
		sum int
	)
	switch t.Proto {
	case unix.IPPROTO_TCP:
		l4, sum = make([]byte, 20), 16
		ports(l4, t)
		binary.BigEndian.PutUint32(l4[4:], 1)
		l4[12], l4[13] = 5<<4, 0x02
		if answer {
			binary.BigEndian.PutUint32(l4[8:], 2)
			l4[13] = 0x12
		}
		binary.BigEndian.PutUint16(l4[14:], 0xffff)
	case unix.IPPROTO_UDP:
		l4, sum = make([]byte, 16), 6
		ports(l4, t)
		binary.BigEndian.PutUint16(l4[4:], 16)
	default:
		l4, sum = make([]byte, 16), 2
		kinds, id := map[bool]byte{false: 8, true: 0}, t.Src.Port()
		if t.Proto == unix.IPPROTO_ICMPV6 {
			kinds = map[bool]byte{false: 128, true: 129}
		}
		if answer {
			id = t.Dst.Port()
		}
		l4[0] = kinds[answer]
		binary.BigEndian.PutUint16(l4[4:], id)
		binary.BigEndian.PutUint16(l4[6:], 1)
		if t.Proto == unix.IPPROTO_ICMP { // has no pseudo header
			binary.BigEndian.PutUint16(l4[sum:], checksum(l4))
			return l4
		}
	}
	pseudo := append(append([]byte{}, t.Src.Addr().AsSlice()...), t.Dst.Addr().AsSlice()...)
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(l4)))
	pseudo = append(append(pseudo, 0, 0, 0, t.Proto), l4...)
	c := checksum(pseudo)
	if c == 0 {
		c = 0xffff
	}
	binary.BigEndian.PutUint16(l4[sum:], c)
	return l4
}

func ports(l4 []byte, t Tuple) {
	binary.BigEndian.PutUint16(l4, t.Src.Port())
	binary.BigEndian.PutUint16(l4[2:], t.Dst.Port())
}

// checksum is that of RFC 1071.
func checksum(b []byte) uint16 {
	var sum uint32
	for len(b) > 1 {
		sum += uint32(binary.BigEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

func setMACs(frame []byte, dst, src net.HardwareAddr) {
	copy(frame[:6], dst)
	copy(frame[6:12], src)
}

// read returns the tuple of a frame that frame has made, after programs have rewritten it. was is what it was before.
func read(b []byte, was Tuple) Tuple {
	p := drops.DecodePacket(b, etherLen)
	if !p.Src.Addr().IsValid() {
		return was
	}
	t := Tuple{Proto: p.Proto, Src: p.Src, Dst: p.Dst}
	if t.Proto != unix.IPPROTO_ICMP && t.Proto != unix.IPPROTO_ICMPV6 {
		return t
	}
	at := etherLen + 20
	if !t.is4() {
		at = etherLen + 40
	}
	if len(b) < at+6 {
		return t
	}
	id := binary.BigEndian.Uint16(b[at+4:])
	if kind := b[at]; kind == 8 || kind == 128 {
		t.Src, t.Dst = netip.AddrPortFrom(t.Src.Addr(), id), netip.AddrPortFrom(t.Dst.Addr(), 0)
	} else {
		t.Src, t.Dst = netip.AddrPortFrom(t.Src.Addr(), 0), netip.AddrPortFrom(t.Dst.Addr(), id)
	}
	return t
}
