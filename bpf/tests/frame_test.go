// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// Protocols of the walks. An echo is ICMP or ICMPv6, by the family of its addresses.
const (
	tcp  = 6
	udp  = 17
	echo = 1
)

// frame describes a whole Ethernet frame. bytes builds it from layers; what a
// program should have made of it is the same description with some fields changed.
type frame struct {
	srcMAC, dstMAC net.HardwareAddr
	src, dst       netip.AddrPort // ports are not used by echo
	proto          int
	ttl            uint8

	flags   string // TCP: letters of SAFRP
	seq     uint32 // TCP
	ack     uint32
	id      uint16 // echo identifier
	reply   bool   // echo reply, not request
	noSum   bool   // UDP checksum 0
	options []byte // IPv4 options, a multiple of 4 bytes
	payload []byte
}

// routed returns f one hop later, between other stations.
func (f frame) routed(src, dst net.HardwareAddr) frame {
	f.ttl--
	f.srcMAC, f.dstMAC = src, dst
	return f
}

func (f frame) bytes(tb testing.TB) []byte {
	tb.Helper()
	eth := &layers.Ethernet{SrcMAC: f.srcMAC, DstMAC: f.dstMAC}
	var (
		network gopacket.NetworkLayer
		stack   []gopacket.SerializableLayer
	)
	if f.src.Addr().Is4() {
		eth.EthernetType = layers.EthernetTypeIPv4
		v4 := &layers.IPv4{
			Version: 4, TTL: f.ttl, Id: 0x1234, Flags: layers.IPv4DontFragment,
			SrcIP: f.src.Addr().AsSlice(), DstIP: f.dst.Addr().AsSlice(), Protocol: layers.IPProtocol(f.proto),
		}
		network, stack = v4, []gopacket.SerializableLayer{eth, v4}
	} else {
		eth.EthernetType = layers.EthernetTypeIPv6
		proto := layers.IPProtocol(f.proto)
		if f.proto == echo {
			proto = layers.IPProtocolICMPv6
		}
		v6 := &layers.IPv6{
			Version: 6, HopLimit: f.ttl, TrafficClass: 0x20, FlowLabel: 0xabcde,
			SrcIP: f.src.Addr().AsSlice(), DstIP: f.dst.Addr().AsSlice(), NextHeader: proto,
		}
		network, stack = v6, []gopacket.SerializableLayer{eth, v6}
	}
	stack = append(stack, f.transport(tb, network)...)
	stack = append(stack, gopacket.Payload(f.payload))
	buf := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buf, opts, stack...); err != nil {
		tb.Fatal(err)
	}
	b := buf.Bytes()
	b = b[:read(b).end()] // the builder pads short frames, as a wire does; a veth does not
	if f.noSum {
		off := len(b) - len(f.payload) - 2
		b[off], b[off+1] = 0, 0
	}
	if len(f.options) > 0 {
		b = withIPOptions(b, f.options)
	}
	return b
}

func (f frame) transport(tb testing.TB, network gopacket.NetworkLayer) []gopacket.SerializableLayer {
	tb.Helper()
	switch f.proto {
	case tcp:
		l := &layers.TCP{
			SrcPort: layers.TCPPort(f.src.Port()), DstPort: layers.TCPPort(f.dst.Port()),
			Seq: f.seq, Ack: f.ack, Window: 512,
		}
		for _, c := range f.flags {
			switch c {
			case 'S':
				l.SYN = true
			case 'A':
				l.ACK = true
			case 'F':
				l.FIN = true
			case 'R':
				l.RST = true
			case 'P':
				l.PSH = true
			}
		}
		mustPseudo(tb, l, network)
		return []gopacket.SerializableLayer{l}
	case udp:
		l := &layers.UDP{SrcPort: layers.UDPPort(f.src.Port()), DstPort: layers.UDPPort(f.dst.Port())}
		mustPseudo(tb, l, network)
		return []gopacket.SerializableLayer{l}
	case echo:
		return f.echo(tb, network)
	}
	tb.Fatalf("no layers for protocol %d", f.proto)
	return nil
}

func (f frame) echo(tb testing.TB, network gopacket.NetworkLayer) []gopacket.SerializableLayer {
	tb.Helper()
	if f.src.Addr().Is4() {
		kind := uint8(layers.ICMPv4TypeEchoRequest)
		if f.reply {
			kind = layers.ICMPv4TypeEchoReply
		}
		return []gopacket.SerializableLayer{&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(kind, 0), Id: f.id, Seq: 7}}
	}
	kind := uint8(layers.ICMPv6TypeEchoRequest)
	if f.reply {
		kind = layers.ICMPv6TypeEchoReply
	}
	l := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(kind, 0)}
	mustPseudo(tb, l, network)
	return []gopacket.SerializableLayer{l, &layers.ICMPv6Echo{Identifier: f.id, SeqNumber: 7}}
}

type pseudoHeader interface {
	SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
}

// mustPseudo gives l the addresses its checksum covers.
func mustPseudo(tb testing.TB, l pseudoHeader, network gopacket.NetworkLayer) {
	tb.Helper()
	if err := l.SetNetworkLayerForChecksum(network); err != nil {
		tb.Fatal(err)
	}
}

// withIPOptions inserts options behind the IPv4 header of a frame.
func withIPOptions(b, options []byte) []byte {
	const end = ethLen + 20
	out := append([]byte{}, b[:end]...)
	out = append(out, options...)
	out = append(out, b[end:]...)
	out[ethLen] = 4<<4 | uint8(5+len(options)/4)
	total := len(out) - ethLen
	out[ethLen+2], out[ethLen+3] = uint8(total>>8), uint8(total)
	fixIPv4Sum(out)
	return out
}

// conn is a connection with a pod of the node, as one side of a translation sees
// it: local is the pod, or the node in its place. For an echo the local port is
// the identifier.
type conn struct {
	proto         int
	local, remote netip.AddrPort
	remoteAsks    bool // echo: the remote end sends the requests
}

// as returns the connection with another local end.
func (c conn) as(local netip.AddrPort) conn {
	c.local = local
	return c
}

// tx is a packet from the local end. kind: TCP flags, ignored otherwise.
func (c conn) tx(kind string) frame {
	f := c.frame(kind)
	f.src, f.dst, f.reply = c.local, c.remote, c.remoteAsks
	f.number(!c.remoteAsks)
	return f
}

// rx is a packet toward the local end.
func (c conn) rx(kind string) frame {
	f := c.frame(kind)
	f.src, f.dst, f.reply = c.remote, c.local, !c.remoteAsks
	f.number(c.remoteAsks)
	return f
}

// The byte that each end sends next. Nothing that a connection sends counts: each packet begins there again,
// a SYN before it. The letter f in the flags acknowledges a FIN.
const (
	seqLocal  = 0x01020304
	seqRemote = 0x0a0b0c0d
)

func (f *frame) number(local bool) {
	f.seq, f.ack = seqRemote, seqLocal
	if local {
		f.seq, f.ack = seqLocal, seqRemote
	}
	if strings.Contains(f.flags, "S") {
		f.seq--
	}
	if strings.Contains(f.flags, "f") {
		f.ack++
	}
}

func (c conn) frame(kind string) frame {
	f := frame{proto: c.proto, ttl: 64, flags: kind, id: c.local.Port()}
	if c.proto != tcp || kind == "PA" {
		f.payload = []byte("what is sent")
	}
	return f
}
