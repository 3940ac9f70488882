// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"
)

// Message types of RFC 792 and RFC 4443.
const (
	echoRequest4, echoReply4 = 8, 0
	echoRequest6, echoReply6 = 128, 129
)

// echoes describes ICMP echo of one family.
type echoes struct {
	network        string
	request, reply byte
}

func (f family) echo() echoes {
	if f.suffix == "4" {
		return echoes{"ip4:icmp", echoRequest4, echoReply4}
	}
	return echoes{"ip6:ipv6-icmp", echoRequest6, echoReply6}
}

// message builds an echo request; the kernel fills in the checksum of ICMPv6.
func (e echoes) message(id, seq uint16, payload []byte) []byte {
	b := append([]byte{e.request, 0, 0, 0}, binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, id), seq)...)
	b = append(b, payload...)
	if e.request == echoRequest4 {
		binary.BigEndian.PutUint16(b[2:], internetChecksum(b))
	}
	return b
}

// internetChecksum is RFC 1071's.
func internetChecksum(b []byte) uint16 {
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

// await reads raw ICMP messages until one of a type and payload comes, and
// returns who sent it with which identifier.
func await(pc net.PacketConn, kind byte, payload []byte) (from netip.Addr, id uint16, err error) {
	if err := pc.SetReadDeadline(time.Now().Add(patience)); err != nil {
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

// ping sends one echo request and waits for its reply.
func ping(ns place, fam family, to netip.Addr, id, seq uint16) error {
	e := fam.echo()
	pc, err := ns.ListenPacket(e.network, fam.any)
	if err != nil {
		return err
	}
	defer pc.Close()
	payload := fmt.Appendf(nil, "ping %s %d %d", to, id, seq)
	if _, err := pc.WriteTo(e.message(id, seq, payload), &net.IPAddr{IP: to.AsSlice()}); err != nil {
		return err
	}
	from, gotID, err := await(pc, e.reply, payload)
	if err != nil {
		return err
	}
	if from != to || gotID != id {
		return fmt.Errorf("reply from %s with identifier %d, want %s, %d", from, gotID, to, id)
	}
	return nil
}

// Echo requests of a pod leave with the node's address, and the replies find
// back to the pod that asked, even when two use one identifier.
func TestPrivilegedMasqueradeEcho(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(net0())
	pods := []*pod{w.add(rt, "a"), w.add(rt, "b")}
	eachFamily(t, func(t *testing.T, fam family) {
		e := fam.echo()
		ear, err := w.Client().ListenPacket(e.network, fam.any)
		if err != nil {
			t.Fatal(err)
		}
		defer ear.Close()
		for seq := range uint16(longTalk) {
			for _, p := range pods {
				if err := ping(p, fam, fam.client(w.Client()), 4711, seq); err != nil {
					t.Fatalf("%s, ping %d: %v", p.Name, seq, err)
				}
				payload := fmt.Appendf(nil, "ping %s %d %d", fam.client(w.Client()), 4711, seq)
				from, _, err := await(ear, e.request, payload)
				if err != nil {
					t.Fatal(err)
				}
				if from != fam.node(w.Client()) {
					t.Fatalf("%s, ping %d: the client saw %s, want %s", p.Name, seq, from, fam.node(w.Client()))
				}
			}
		}
	})
}

// Everybody else may ping as well: the client the node, the node the pod, the
// client the pod, the pod its gateway and a sibling.
func TestPrivilegedEcho(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(net0())
	a, b := w.add(rt, "a", tcp(8080, 80)), w.add(rt, "b")
	eachFamily(t, func(t *testing.T, fam family) {
		tests := []struct {
			name string
			from place
			to   netip.Addr
		}{
			{"client to node", w.Client(), fam.node(w.Client())},
			{"client to pod", w.Client(), fam.pod(a)},
			{"node to client", w.Node, fam.client(w.Client())},
			{"node to pod", w.Node, fam.pod(a)},
			{"pod to node", a, fam.node(w.Client())},
			{"pod to gateway", a, netip.MustParseAddr(fam.gw)},
			{"pod to pod", a, fam.pod(b)},
		}
		for i, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				for seq := range uint16(5) {
					if err := ping(tt.from, fam, tt.to, uint16(100+i), seq); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	})
}
