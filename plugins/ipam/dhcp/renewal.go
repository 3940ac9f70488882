// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"syscall"

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
	out, err := listenOn(dev, leased)
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

// listenOn opens a UDP socket on the leased address. In a VRF the address belongs to
// the VRF's table: the kernel finds it, and the routes there, only for a socket of
// the device. Elsewhere the pod's routes decide by which device a packet leaves.
func listenOn(dev *net.Interface, leased net.IP) (*net.UDPConn, error) {
	enslaved, err := hasMaster(dev.Index)
	if err != nil {
		return nil, err
	}
	var c net.ListenConfig
	if enslaved {
		c.Control = func(_, _ string, raw syscall.RawConn) error {
			var bound error
			err := raw.Control(func(fd uintptr) { bound = unix.BindToDevice(int(fd), dev.Name) })
			return errors.Join(err, bound)
		}
	}
	conn, err := c.ListenPacket(context.Background(), "udp4", net.JoinHostPort(leased.String(), strconv.Itoa(nclient4.ClientPort)))
	if err != nil {
		return nil, err
	}
	return conn.(*net.UDPConn), nil // what package net makes of "udp4"
}

// hasMaster reports that the device is a port of another one, such as a VRF.
func hasMaster(index int) (bool, error) {
	b, err := syscall.NetlinkRIB(unix.RTM_GETLINK, unix.AF_UNSPEC)
	if err != nil {
		return false, fmt.Errorf("list the pod's devices: %w", err)
	}
	messages, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		return false, fmt.Errorf("list the pod's devices: %w", err)
	}
	for _, m := range messages {
		if m.Header.Type != unix.RTM_NEWLINK || len(m.Data) < unix.SizeofIfInfomsg || int(int32(binary.NativeEndian.Uint32(m.Data[4:]))) != index { // a signed field
			continue
		}
		attrs, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			return false, fmt.Errorf("device %d of the pod: %w", index, err)
		}
		return slices.ContainsFunc(attrs, func(a syscall.NetlinkRouteAttr) bool { return a.Attr.Type == unix.IFLA_MASTER }), nil
	}
	return false, nil
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
