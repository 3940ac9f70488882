// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"errors"
	"fmt"
	"net"

	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// renewalConn sends from the leased address, by way of the pod's routes. It reads
// frames: an ACK comes to the address, but a NAK goes to everybody (RFC 2131
// 4.3.2), which a socket of one address does not get.
type renewalConn struct {
	net.PacketConn // of the frames
	out            *net.UDPConn
}

// newRenewalConn is to be called in the pod's namespace.
func newRenewalConn(dev *net.Interface, leased net.IP) (*renewalConn, error) {
	out, err := net.ListenUDP("udp4", &net.UDPAddr{IP: leased, Port: nclient4.ClientPort})
	if err != nil {
		return nil, fmt.Errorf("open a socket on the leased address: %w", err)
	}
	filter, err := toClientPort()
	if err != nil {
		return nil, errors.Join(err, out.Close())
	}
	frames, err := packet.Listen(dev, packet.Datagram, unix.ETH_P_IP, &packet.Config{Filter: filter})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open a socket on %s: %w", dev.Name, err), out.Close())
	}
	return &renewalConn{nclient4.NewBroadcastUDPConn(frames, &net.UDPAddr{Port: nclient4.ClientPort}), out}, nil
}

func (c *renewalConn) WriteTo(b []byte, to net.Addr) (int, error) { return c.out.WriteTo(b, to) }

func (c *renewalConn) Close() error { return errors.Join(c.PacketConn.Close(), c.out.Close()) }

// toClientPort keeps the pod's other traffic out of the socket. Offsets are from
// the IP header on.
func toClientPort() ([]bpf.RawInstruction, error) {
	return bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 9, Size: 1}, // protocol
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_UDP, SkipTrue: 5},
		bpf.LoadAbsolute{Off: 6, Size: 2}, // the rest of a fragment has no ports
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 0x1fff, SkipTrue: 3},
		bpf.LoadMemShift{Off: 0},
		bpf.LoadIndirect{Off: 2, Size: 2}, // UDP's destination port
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: nclient4.ClientPort, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: 1 << 16},
	})
}
