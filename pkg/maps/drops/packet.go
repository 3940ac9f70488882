// SPDX-License-Identifier: Apache-2.0

package drops

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/ipproto"
)

// Packet is what the first bytes of a packet say. Zero fields: it does not say.
type Packet struct {
	Src, Dst netip.AddrPort // port 0 without one
	Proto    uint8          // of the header behind IPv6 extension headers
	Header   ipproto.Header // that one
}

// DecodePacket reads a frame. b has its first bytes, behind l2 bytes of link header. Tags of VLANs are passed over.
func DecodePacket(b []byte, l2 int) Packet {
	if l2 >= 14 && len(b) >= 14 {
		for len(b) >= l2+4 && isVLAN(binary.BigEndian.Uint16(b[l2-2:])) {
			l2 += 4
		}
	}
	if len(b) < l2+1 {
		return Packet{}
	}
	b = b[l2:]
	switch {
	case b[0]>>4 == 4 && len(b) >= 20:
		return decode4(b)
	case b[0]>>4 == 6 && len(b) >= 40:
		return decode6(b)
	}
	return Packet{}
}

func isVLAN(ethertype uint16) bool {
	return ethertype == unix.ETH_P_8021Q || ethertype == unix.ETH_P_8021AD
}

func decode4(b []byte) Packet {
	p := Packet{Proto: b[9]}
	src, dst := netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	later := binary.BigEndian.Uint16(b[6:])&0x1fff != 0
	return p.transport(src, dst, b[min(len(b), int(b[0]&15)*4):], later)
}

func decode6(b []byte) Packet {
	src, dst := netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	next, later := b[6], false
	b = b[40:]
	for len(b) >= 8 && !later {
		size := 8
		switch next {
		case unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_DSTOPTS:
			size = (int(b[1]) + 1) * 8
		case unix.IPPROTO_AH:
			size = (int(b[1]) + 2) * 4
		case unix.IPPROTO_FRAGMENT:
			later = binary.BigEndian.Uint16(b[2:])&^7 != 0
		default:
			return Packet{Proto: next}.transport(src, dst, b, false)
		}
		next, b = b[0], b[min(len(b), size):]
	}
	return Packet{Proto: next}.transport(src, dst, b, later)
}

// transport adds addresses and what the header of the protocol says; later: a fragment that has none.
func (p Packet) transport(src, dst netip.Addr, b []byte, later bool) Packet {
	p.Src, p.Dst = netip.AddrPortFrom(src, 0), netip.AddrPortFrom(dst, 0)
	switch {
	case later:
		p.Header.Fragment = true
	case (p.Proto == unix.IPPROTO_ICMP || p.Proto == unix.IPPROTO_ICMPV6) && len(b) >= 2:
		p.Header.ICMP = &ipproto.ICMP{Type: b[0], Code: b[1]}
	case ipproto.HasPorts(p.Proto) && len(b) >= 4:
		p.Src = netip.AddrPortFrom(src, binary.BigEndian.Uint16(b))
		p.Dst = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(b[2:]))
		if p.Proto == unix.IPPROTO_TCP && len(b) >= 14 {
			p.Header.TCP = ipproto.TCPFlags(b[13])
		}
	}
	return p
}
