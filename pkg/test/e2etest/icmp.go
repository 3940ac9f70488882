// SPDX-License-Identifier: Apache-2.0

package e2etest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// Message types of RFC 792 and RFC 4443.
const (
	echoRequest4, echoReply4 = 8, 0
	echoRequest6, echoReply6 = 128, 129
)

// Echoes are the ICMP echo messages of one family: Network is that of net.ListenPacket.
type Echoes struct {
	Network        string
	Request, Reply byte
}

// Echo describes the family's ICMP echo messages.
func (f Family) Echo() Echoes {
	if f.Suffix == "4" {
		return Echoes{"ip4:icmp", echoRequest4, echoReply4}
	}
	return Echoes{"ip6:ipv6-icmp", echoRequest6, echoReply6}
}

// Message builds an echo request; the kernel fills in the checksum of ICMPv6.
func (e Echoes) Message(id, seq uint16, payload []byte) []byte {
	b := append([]byte{e.Request, 0, 0, 0}, binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, id), seq)...)
	b = append(b, payload...)
	if e.Request == echoRequest4 {
		binary.BigEndian.PutUint16(b[2:], InternetChecksum(b))
	}
	return b
}

// InternetChecksum is the checksum of RFC 1071, host byte order.
func InternetChecksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// AwaitEcho reads raw ICMP messages until one of a type and payload comes, and
// returns who sent it with which identifier.
func AwaitEcho(pc net.PacketConn, kind byte, payload []byte) (from netip.Addr, id uint16, err error) {
	if err := pc.SetReadDeadline(time.Now().Add(AnswerTimeout)); err != nil {
		return netip.Addr{}, 0, err
	}
	buf := make([]byte, 1<<16)
	for {
		n, peer, err := pc.ReadFrom(buf)
		if err != nil {
			return netip.Addr{}, 0, fmt.Errorf("await ICMP type %d: %w", kind, err)
		}
		if n >= 8 && buf[0] == kind && bytes.Equal(buf[8:n], payload) {
			addr, _ := netip.AddrFromSlice(peer.(*net.IPAddr).IP)
			return addr.Unmap(), binary.BigEndian.Uint16(buf[4:]), nil
		}
	}
}

// Ping sends one echo request and waits for its reply.
func Ping(ns Place, fam Family, to netip.Addr, id, seq uint16) error {
	e := fam.Echo()
	pc, err := ns.ListenPacket(e.Network, fam.Any)
	if err != nil {
		return err
	}
	defer pc.Close()
	payload := fmt.Appendf(nil, "ping %s %d %d", to, id, seq)
	if _, err := pc.WriteTo(e.Message(id, seq, payload), &net.IPAddr{IP: to.AsSlice()}); err != nil {
		return err
	}
	from, gotID, err := AwaitEcho(pc, e.Reply, payload)
	if err != nil {
		return err
	}
	if from != to || gotID != id {
		return fmt.Errorf("reply from %s with identifier %d, want %s, %d", from, gotID, to, id)
	}
	return nil
}
