// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Messages of sock_diag, <linux/sock_diag.h> and <linux/inet_diag.h>.
const (
	sockDiagByFamily = 20
	sockDestroy      = 21

	sizeofInetDiagReq = 56 // struct inet_diag_req_v2
	sizeofInetDiagMsg = 72 // struct inet_diag_msg
	offInetDiagID     = 4  // of struct inet_diag_sockid in the answer; 8 in the request
	sizeofInetDiagID  = 48
)

// withPeer are the TCP states (include/net/tcp_states.h) of a socket that has a peer and belongs to a process: all but
// TIME_WAIT, CLOSE and LISTEN. A connected UDP socket is ESTABLISHED.
const withPeer = 1<<1 | 1<<2 | 1<<3 | 1<<4 | 1<<5 | 1<<8 | 1<<9 | 1<<11

// Socket is a TCP or UDP socket that has a peer.
type Socket struct {
	Local, Remote netip.AddrPort // IPv4 also for an IPv6 socket that talks IPv4
	Cookie        uint64         // as bpf_get_socket_cookie and SO_COOKIE
	id            [sizeofInetDiagID]byte
	family        uint8
}

// SocketsTo returns the sockets of the calling thread's network namespace whose peer is remote; proto is IPPROTO_TCP or
// IPPROTO_UDP. ErrNotSupported: the kernel has no sock_diag for them.
func SocketsTo(proto uint8, remote netip.AddrPort) ([]Socket, error) {
	families := []uint8{unix.AF_INET6}
	if remote.Addr().Unmap().Is4() {
		families = []uint8{unix.AF_INET, unix.AF_INET6} // the latter may hold v4-mapped ones
	}
	want := netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port())
	var out []Socket
	for _, family := range families {
		body := diagRequest(family, proto)
		binary.BigEndian.PutUint16(body[10:], remote.Port()) // the kernel filters by it
		msgs, err := dumpSockets(body)
		if err != nil {
			return nil, err
		}
		for _, m := range msgs {
			if s, ok := parseSocket(m); ok && s.Remote == want {
				out = append(out, s)
			}
		}
	}
	return out, nil
}

// DestroySocket closes s as if its connection had been reset: its owner reads ECONNABORTED. A socket that has gone is success.
// ErrNotSupported: the kernel was built without CONFIG_INET_DIAG_DESTROY.
func DestroySocket(proto uint8, s Socket) error {
	body := diagRequest(s.family, proto)
	copy(body[8:], s.id[:])
	return destroy(body)
}

func destroy(body []byte) error {
	req := vnl.NewNetlinkRequest(sockDestroy, unix.NLM_F_ACK)
	req.AddRawData(body)
	_, err := req.Execute(unix.NETLINK_SOCK_DIAG, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("destroy socket: %w", classify(err))
	}
	return nil
}

// diagRequest is a struct inet_diag_req_v2 for any socket of the family with a peer.
func diagRequest(family, proto uint8) []byte {
	b := make([]byte, sizeofInetDiagReq)
	b[0], b[1] = family, proto
	binary.NativeEndian.PutUint32(b[4:], withPeer)
	for i := 48; i < 56; i++ { // INET_DIAG_NOCOOKIE
		b[i] = 0xff
	}
	return b
}

// parseSocket reads a struct inet_diag_msg.
func parseSocket(m []byte) (Socket, bool) {
	if len(m) < sizeofInetDiagMsg {
		return Socket{}, false
	}
	s := Socket{family: m[0]}
	copy(s.id[:], m[offInetDiagID:])
	s.Local = netip.AddrPortFrom(diagAddr(s.family, s.id[4:20]), binary.BigEndian.Uint16(s.id[0:]))
	s.Remote = netip.AddrPortFrom(diagAddr(s.family, s.id[20:36]), binary.BigEndian.Uint16(s.id[2:]))
	s.Cookie = uint64(binary.NativeEndian.Uint32(s.id[40:])) | uint64(binary.NativeEndian.Uint32(s.id[44:]))<<32
	return s, true
}

func diagAddr(family uint8, b []byte) netip.Addr {
	if family == unix.AF_INET {
		return netip.AddrFrom4([4]byte(b[:4]))
	}
	return netip.AddrFrom16([16]byte(b[:16])).Unmap()
}

// States of sockets that wait for anybody. With any state besides LISTEN the kernel goes through its table of all connections too.
const (
	tcpListens = 1 << 10
	udpNoPeer  = 1 << 7 // CLOSE
)

const attrV6Only = 11 // INET_DIAG_SKV6ONLY

// Listener is a TCP or UDP socket without a peer.
type Listener struct {
	Local  netip.AddrPort
	V6Only bool // with an unspecified IPv6 address: it gets no IPv4
	Inode  uint32
}

// Listeners returns the sockets of the calling thread's network namespace that wait for anybody on a port, 0 for all ports; proto is
// IPPROTO_TCP or IPPROTO_UDP. ErrNotSupported: the kernel has no sock_diag for them.
func Listeners(proto uint8, port uint16) ([]Listener, error) {
	states := uint32(udpNoPeer)
	if proto == unix.IPPROTO_TCP {
		states = tcpListens
	}
	var out []Listener
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		body := diagRequest(family, proto)
		binary.NativeEndian.PutUint32(body[4:], states)
		binary.BigEndian.PutUint16(body[8:], port) // the kernel filters by it
		msgs, err := dumpSockets(body)
		if err != nil {
			return nil, err
		}
		for _, m := range msgs {
			if l, ok := parseListener(m); ok {
				out = append(out, l)
			}
		}
	}
	return out, nil
}

func dumpSockets(body []byte) ([][]byte, error) {
	req := vnl.NewNetlinkRequest(sockDiagByFamily, unix.NLM_F_DUMP)
	req.AddRawData(body)
	msgs, err := req.Execute(unix.NETLINK_SOCK_DIAG, sockDiagByFamily)
	if errors.Is(err, unix.ENOENT) { // no handler: the module is missing
		return nil, sentinelError{ErrNotSupported, fmt.Errorf("list sockets: %w", err)}
	}
	if err != nil {
		return nil, fmt.Errorf("list sockets: %w", classify(err))
	}
	return msgs, nil
}

func parseListener(m []byte) (Listener, bool) {
	s, ok := parseSocket(m)
	if !ok || s.Remote.Port() != 0 {
		return Listener{}, false
	}
	l := Listener{Local: s.Local, Inode: binary.NativeEndian.Uint32(m[sizeofInetDiagMsg-4:])}
	attrs, err := vnl.ParseRouteAttr(m[sizeofInetDiagMsg:])
	if err != nil {
		return Listener{}, false
	}
	for _, a := range attrs {
		if a.Attr.Type == attrV6Only && len(a.Value) > 0 {
			l.V6Only = a.Value[0] != 0
		}
	}
	return l, true
}
