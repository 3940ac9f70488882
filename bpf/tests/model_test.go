// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
)

// A second reader of packets, which shares no code with the builder (gopacket)
// nor with the programs: it says what a frame is, and sums checksums by RFC 1071.

const (
	ethLen    = 14
	typeIPv4  = 0x0800
	typeIPv6  = 0x86dd
	protoICMP = 1
	protoTCP  = 6
	protoUDP  = 17
	protoICM6 = 58
	protoSCTP = 132
)

// depth is how much of a frame concerns the datapath.
type depth int

const (
	notIP  depth = iota // nothing
	onlyIP              // the addresses
	whole               // the whole tuple
)

// kind is what the full parser makes of a frame that the first one leaves.
type kind int

const (
	opaque  kind = iota // nothing to translate
	tuple               // the whole tuple, also without ports
	later               // a fragment without the L4 header
	failure             // an ICMP error
)

// packet is a frame as the model reads it.
type packet struct {
	depth    depth
	kind     kind
	family   int
	src, dst netip.Addr
	proto    uint8
	l4       int // offset of the L4 header
	fragment bool
	raw      []byte // without what pads a short frame
}

// read applies the rules of docs/dev/design/overview.md, "What passes untouched".
func read(raw []byte) packet {
	p := packet{raw: raw}
	if len(raw) < ethLen {
		return p
	}
	switch binary.BigEndian.Uint16(raw[12:]) {
	case typeIPv4:
		p.readIPv4()
	case typeIPv6:
		p.readIPv6()
	}
	return p
}

func (p *packet) readIPv4() {
	b := p.raw[ethLen:]
	if len(b) < 20 || b[0]>>4 != 4 || b[0]&15 < 5 {
		return
	}
	p.depth, p.family, p.proto = onlyIP, 4, b[9]
	p.src, p.dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	p.l4 = ethLen + int(b[0]&15)*4
	p.cut(int(binary.BigEndian.Uint16(b[2:])))
	flags := binary.BigEndian.Uint16(b[6:])
	if p.fragment = flags&0x3fff != 0; !p.fragment {
		p.readL4()
	}
	p.classify(flags&0x1fff != 0)
}

// classify says what the full parser makes of a packet whose L4 header, if it has one, is known.
func (p *packet) classify(isLater bool) {
	b := p.raw[min(p.l4, len(p.raw)):]
	switch {
	case isLater:
		p.kind = later
	case p.isError():
		p.kind = failure
	case p.proto == protoICMP || p.proto == protoICM6:
		if p.isEcho(b) {
			p.kind = tuple
		}
	case p.proto == protoTCP && len(b) < 20, (p.proto == protoUDP || p.proto == protoSCTP) && len(b) < 8:
	default:
		p.kind = tuple
	}
}

func (p *packet) isEcho(b []byte) bool {
	return len(b) >= 8 && (p.proto == protoICMP && p.family == 4 && (b[0] == 0 || b[0] == 8) ||
		p.proto == protoICM6 && p.family == 6 && (b[0] == 128 || b[0] == 129))
}

func (p *packet) readIPv6() {
	b := p.raw[ethLen:]
	if len(b) < 40 || b[0]>>4 != 6 {
		return
	}
	p.depth, p.family, p.proto, p.l4 = onlyIP, 6, b[6], ethLen+40
	p.cut(40 + int(binary.BigEndian.Uint16(b[4:])))
	if p.src.Is4In6() || p.dst.Is4In6() {
		p.depth = notIP
		return
	}
	p.src, p.dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	p.readL4()
	if !slices.Contains(extensions, p.proto) {
		p.classify(false)
		return
	}
	p.readExtensions()
}

// extensions are the headers of RFC 8200 that may come before L4: hop-by-hop,
// routing, fragment, authentication, destination options.
var extensions = []uint8{0, 43, 44, 51, 60}

// readExtensions leaves the packet opaque where they end early, are more than seven, or
// say that the destination is not the last one.
func (p *packet) readExtensions() {
	isLater := false
	for range 8 {
		if isLater || !slices.Contains(extensions, p.proto) {
			p.classify(isLater)
			return
		}
		b := p.raw[min(p.l4, len(p.raw)):]
		if len(b) < 8 {
			return
		}
		size := 8 * (1 + int(b[1]))
		switch p.proto {
		case 43:
			if b[3] != 0 {
				return
			}
		case 44:
			detail := binary.BigEndian.Uint16(b[2:])
			isLater, p.fragment, size = detail>>3 != 0, detail&0xfff9 != 0, 8
		case 51:
			size = 4 * (2 + int(b[1]))
		}
		p.proto, p.l4 = b[0], p.l4+size
	}
	if isLater {
		p.kind = later
	}
}

// cut takes off what is behind the end that the header names: padding.
func (p *packet) cut(length int) {
	if n := max(ethLen+length, p.l4); n < len(p.raw) {
		p.raw = p.raw[:n]
	}
}

// end is the length of the frame without padding.
func (p packet) end() int { return len(p.raw) }

func (p *packet) readL4() {
	b := p.raw[min(p.l4, len(p.raw)):]
	switch {
	case p.proto == protoTCP && len(b) >= 20,
		p.proto == protoUDP && len(b) >= 8,
		p.proto == protoICMP && p.family == 4 && len(b) >= 8 && (b[0] == 0 || b[0] == 8),
		p.proto == protoICM6 && p.family == 6 && len(b) >= 8 && (b[0] == 128 || b[0] == 129):
		p.depth = whole
	}
}

// summed says whether the whole packet is there, with a checksum that we know.
func (p *packet) summed() bool {
	known := p.proto == protoTCP || p.proto == protoUDP || p.proto == protoICMP || p.proto == protoICM6
	return p.depth == whole || p.kind == failure || p.kind == tuple && known && !p.fragment
}

// isError says whether an ICMP or ICMPv6 message is an error that carries a packet.
func (p *packet) isError() bool {
	b := p.raw[min(p.l4, len(p.raw)):]
	switch {
	case p.fragment || len(b) < 8:
		return false
	case p.proto == protoICMP && p.family == 4:
		return b[0] == 3 || b[0] == 4 || b[0] == 11 || b[0] == 12
	}
	return p.proto == protoICM6 && p.family == 6 && b[0] >= 1 && b[0] <= 4
}

// sum adds up 16-bit words in one's complement, most significant byte first.
func sum(total uint32, b []byte) uint32 {
	for i := 0; i+1 < len(b); i += 2 {
		total += uint32(b[i])<<8 | uint32(b[i+1])
	}
	if len(b)%2 == 1 {
		total += uint32(b[len(b)-1]) << 8
	}
	for total>>16 != 0 {
		total = total&0xffff + total>>16
	}
	return total
}

// headerSum is 0xffff for a valid IPv4 header. IPv6 has none: 0xffff.
func (p *packet) headerSum() uint32 {
	if p.family != 4 {
		return 0xffff
	}
	return sum(0, p.raw[ethLen:min(ethLen+4*int(p.raw[ethLen]&15), len(p.raw))])
}

// sumOffset is where the L4 checksum is in the frame.
func (p *packet) sumOffset() int {
	switch p.proto {
	case protoTCP:
		return p.l4 + 16
	case protoUDP:
		return p.l4 + 6
	}
	return p.l4 + 2
}

// noChecksum reports a UDP checksum of 0: none was made.
func (p *packet) noChecksum() bool {
	return p.proto == protoUDP && p.depth != notIP && len(p.raw) >= p.l4+8 && binary.BigEndian.Uint16(p.raw[p.sumOffset():]) == 0
}

// l4Sum is 0xffff for a valid L4 checksum.
func (p *packet) l4Sum() uint32 {
	body := p.raw[p.l4:]
	if p.proto == protoICMP {
		return sum(0, body)
	}
	total := sum(0, p.src.AsSlice())
	total = sum(total, p.dst.AsSlice())
	total = sum(total, []byte{0, p.proto})
	total = sum(total, []byte{uint8(len(body) >> 8), uint8(len(body))})
	return sum(total, body)
}

// checkSums returns what is wrong with the checksums of a whole frame.
func checkSums(raw []byte) error {
	p := read(raw)
	if p.depth == notIP {
		return nil
	}
	if got := p.headerSum(); got != 0xffff {
		return fmt.Errorf("IPv4 header checksum is off: sum %#04x", got)
	}
	if !p.summed() || p.noChecksum() {
		return nil
	}
	if got := p.l4Sum(); got != 0xffff {
		return fmt.Errorf("checksum of protocol %d is off: sum %#04x", p.proto, got)
	}
	return nil
}

// fixIPv4Sum writes the header checksum anew.
func fixIPv4Sum(raw []byte) {
	end := min(ethLen+int(raw[ethLen]&15)*4, len(raw))
	raw[ethLen+10], raw[ethLen+11] = 0, 0
	binary.BigEndian.PutUint16(raw[ethLen+10:], ^uint16(sum(0, raw[ethLen:end])))
}

// route plays the stack between two hooks: one hop less, other MACs. It returns a new frame.
func route(raw []byte, src, dst []byte) []byte {
	out := append([]byte{}, raw...)
	copy(out, dst)
	copy(out[6:], src)
	if binary.BigEndian.Uint16(out[12:]) == typeIPv6 {
		out[ethLen+7]--
		return out
	}
	out[ethLen+8]--
	fixIPv4Sum(out)
	return out
}

// fixL4Sum writes the L4 checksum anew.
func fixL4Sum(raw []byte) {
	p := read(raw)
	off := p.sumOffset()
	p.raw[off], p.raw[off+1] = 0, 0
	binary.BigEndian.PutUint16(p.raw[off:], ^uint16(p.l4Sum()))
}
