// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// A message has the number of its connection and its own, the port of its client, and its length, each in 4 bytes, and then bytes that depend
// on its number.
const headerSize = 16

func newMessage(c *conn, step, size int) []byte {
	b := make([]byte, headerSize, headerSize+size)
	for i, n := range []int{c.id, step, int(c.port), size} {
		binary.BigEndian.PutUint32(b[4*i:], uint32(n))
	}
	for i := range size {
		b = append(b, byte(step+i))
	}
	return b
}

type message struct {
	conn, step int
	clientPort uint16
	size       int
}

// parseHeader reads the header of a message.
func parseHeader(b []byte) (message, bool) {
	if len(b) < headerSize {
		return message{}, false
	}
	n := func(i int) int { return int(binary.BigEndian.Uint32(b[4*i:])) }
	return message{n(0), n(1), uint16(n(2)), n(3)}, true
}

// whole reports whether the bytes behind a header are those that were sent.
func (m message) whole(b []byte) bool {
	for i := range b {
		if b[i] != byte(m.step+i) {
			return false
		}
	}
	return len(b) == m.size
}

// said adds a message that came to where.
func (l *lab) said(m message, payload []byte, where string) {
	if !m.whole(payload) {
		where += fmt.Sprintf(", with %d bytes that were not sent", len(payload))
	}
	l.note(messageKey(m.step), where)
}

func (l *lab) readServer(pc *net.UDPConn, at, where string) {
	buf, control := make([]byte, 1<<16), make([]byte, 256)
	for {
		n, hops, from, err := readUDP(pc, buf, control)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		m, ok := parseHeader(buf[:n])
		if err != nil || !ok {
			continue
		}
		l.mu.Lock()
		l.peers[m.conn], l.at[m.conn] = peer{pc, from}, at
		l.mu.Unlock()
		l.said(m, buf[headerSize:n], where+" from "+l.source(m.conn, from, from.Port() == m.clientPort)+hops.word(pc, from.Addr()))
	}
}

// header is what the IP header of a datagram said.
type header struct{ hops, class int }

// word is empty for the hops between two pods of a bridge: with br_netfilter the bridge itself carries a packet that was translated to
// another of its pods, and takes no hop, while the fast path takes one.
func (h header) word(pc *net.UDPConn, from netip.Addr) string {
	to := e2etest.Unmapped(pc.LocalAddr()).Addr()
	for _, n := range networks {
		for _, p := range n.Subnets {
			if subnet := netip.MustParsePrefix(p); n.Main != "ptp" && subnet.Contains(from) && subnet.Contains(to) {
				return fmt.Sprintf(", class %d", h.class)
			}
		}
	}
	return fmt.Sprintf(", class %d, %d hops left", h.class, h.hops)
}

// readUDP reads a datagram.
func readUDP(pc *net.UDPConn, buf, control []byte) (n int, h header, from netip.AddrPort, err error) {
	n, size, _, from, err := pc.ReadMsgUDPAddrPort(buf, control)
	if err != nil {
		return 0, h, from, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:size])
	if err != nil {
		return 0, h, from, err
	}
	for _, c := range messages {
		v := int(c.Data[0])
		if len(c.Data) >= 4 {
			v = int(binary.NativeEndian.Uint32(c.Data))
		}
		switch {
		case c.Header.Level == unix.IPPROTO_IP && c.Header.Type == unix.IP_TTL, c.Header.Level == unix.IPPROTO_IPV6 && c.Header.Type == unix.IPV6_HOPLIMIT:
			h.hops = v
		case c.Header.Level == unix.IPPROTO_IP && c.Header.Type == unix.IP_TOS, c.Header.Level == unix.IPPROTO_IPV6 && c.Header.Type == unix.IPV6_TCLASS:
			h.class = v
		}
	}
	return n, h, netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), nil
}

// askHeader has a socket tell what readUDP reads, and gives it a traffic class.
func askHeader(pc *net.UDPConn, v6 bool, class int) error {
	raw, err := pc.SyscallConn()
	if err != nil {
		return err
	}
	return errors.Join(err, raw.Control(func(fd uintptr) {
		set := func(level, option, value int) {
			err = errors.Join(err, unix.SetsockoptInt(int(fd), level, option, value))
		}
		if v6 {
			set(unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1)
			set(unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1)
			set(unix.IPPROTO_IPV6, unix.IPV6_TCLASS, class)
		} else {
			set(unix.IPPROTO_IP, unix.IP_RECVTTL, 1)
			set(unix.IPPROTO_IP, unix.IP_RECVTOS, 1)
			set(unix.IPPROTO_IP, unix.IP_TOS, class)
		}
	}), err)
}

func (l *lab) accept(ln net.Listener, at, where string) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go l.readTCP(c.(*net.TCPConn), at, where)
	}
}

// readTCP reads messages until the end. A server, which is at a place, learns from the first one which connection it is.
func (l *lab) readTCP(c *net.TCPConn, at, where string) {
	server := at != ""
	conn := -1
	header := make([]byte, headerSize)
	for {
		_, err := io.ReadFull(c, header)
		m, _ := parseHeader(header)
		if err == nil {
			payload := make([]byte, m.size)
			if _, err = io.ReadFull(c, payload); err == nil {
				if conn = m.conn; server {
					from := e2etest.Unmapped(c.RemoteAddr())
					l.mu.Lock()
					l.tcp[conn], l.at[conn] = c, at
					l.mu.Unlock()
					l.said(m, payload, fmt.Sprintf("%s from %s", where, l.source(conn, from, from.Port() == m.clientPort)))
				} else {
					l.said(m, payload, where)
				}
				continue
			}
		}
		if conn >= 0 && !errors.Is(err, net.ErrClosed) {
			end := endOf(err)
			if end == "end" && stateOf(c) == unix.BPF_TCP_CLOSE { // a writer was told of the RST
				end = "reset"
			}
			l.note(endKey(conn, server), end)
		}
		if conn < 0 && server {
			_ = c.Close()
		}
		return
	}
}

// readEcho reads echo requests and replies.
func (l *lab) readEcho(p *place, family int, pc net.PacketConn) {
	e := e2etest.Families()[family].Echo()
	buf := make([]byte, 1<<16)
	for {
		n, from, err := pc.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n < 8 || buf[0] != e.Request && buf[0] != e.Reply {
			continue
		}
		m, ok := parseHeader(buf[8:n])
		if !ok {
			continue
		}
		addr := netip.MustParseAddr(from.String()).WithZone("")
		id := binary.BigEndian.Uint16(buf[4:])
		if buf[0] == e.Request {
			l.said(m, buf[8+headerSize:n], fmt.Sprintf("%s from %s", p.name, l.source(m.conn, netip.AddrPortFrom(addr, id), id == m.clientPort)))
		} else {
			l.note(replyKey(m.step), fmt.Sprintf("%s from %s, its own identifier: %v", p.name, addr, id == m.clientPort))
		}
	}
}

// clientEnd is the client's end of a connection in one lab.
type clientEnd struct {
	udp    *net.UDPConn
	tcp    *net.TCPConn      // valid after get
	ready  chan *net.TCPConn // what comes of the handshake
	cancel context.CancelFunc
}

// openUDP binds the client's socket.
func (l *lab) openUDP(c *conn) (e clientEnd, err error) {
	p := l.places[c.from]
	err = p.ns.Do(func() error {
		pc, err := net.ListenPacket("udp"+c.suffix(), e2etest.At(p.addrs[c.family], c.port))
		if err != nil {
			return err
		}
		e.udp = pc.(*net.UDPConn)
		return askHeader(e.udp, c.family == 1, c.class)
	})
	if err != nil {
		return e, err
	}
	go func() {
		buf, control := make([]byte, 1<<16), make([]byte, 256)
		for {
			n, hops, from, err := readUDP(e.udp, buf, control)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if m, ok := parseHeader(buf[:n]); err == nil && ok {
				l.said(m, buf[headerSize:n], "its client from "+c.answerFrom(from)+hops.word(e.udp, l.serverAddr(c)))
			}
		}
	}()
	return e, nil
}

// answerFrom words the source of what a client got. A masquerade draws the port where the answer begins a connection.
func (c *conn) answerFrom(from netip.AddrPort) string {
	if from.Port() == c.to.Port() || slices.Contains(serverPorts, from.Port()) {
		return from.String()
	}
	return fmt.Sprintf("%s, another port", from.Addr())
}

// dial begins a handshake, and notes how it ends. first is sent as soon as it has.
func (l *lab) dial(c *conn, first []byte) clientEnd {
	ctx, cancel := context.WithCancel(context.Background())
	p := l.places[c.from]
	d := net.Dialer{
		LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(p.addrs[c.family], c.port)), KeepAlive: -1,
		Control: func(_, _ string, raw syscall.RawConn) error {
			return raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
		},
	}
	ready := make(chan *net.TCPConn, 1)
	go func() {
		var tcp net.Conn
		err := p.ns.Do(func() (err error) {
			tcp, err = d.DialContext(ctx, "tcp"+c.suffix(), c.to.String())
			return err
		})
		if err != nil {
			ready <- nil
			if ctx.Err() == nil {
				l.note(openKey(c.id), endOf(err))
			}
			return
		}
		ready <- tcp.(*net.TCPConn)
		l.note(openKey(c.id), "open")
		_, _ = tcp.Write(first)
		l.readTCP(tcp.(*net.TCPConn), "", "its client")
	}()
	return clientEnd{ready: ready, cancel: cancel}
}

// get returns the connection, nil if the handshake has failed. Its caller has waited for the handshake or has cancelled it.
func (e *clientEnd) get() *net.TCPConn {
	if e.ready != nil {
		e.tcp, e.ready = <-e.ready, nil
	}
	return e.tcp
}

func (e *clientEnd) abort() {
	if e.udp != nil {
		_ = e.udp.Close()
	}
	if e.cancel != nil {
		e.cancel()
		abort(e.get())
	}
}

// abort ends a connection by a RST.
func abort(c *net.TCPConn) {
	if c != nil {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
}

// server returns the server's end, nil if there is none.
func (l *lab) server(c *conn) *net.TCPConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tcp[c.id]
}

// stateOf is the state that the kernel has of a connection, 0 if it does not say.
func stateOf(c *net.TCPConn) (state uint8) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			state = info.State
		}
	})
	return state
}

// idle waits until everything that TCP has sent is acknowledged, so no packet of it is on its way when something changes.
func idle(c *net.TCPConn) {
	if c == nil {
		return
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
		busy := false
		if raw.Control(func(fd uintptr) {
			info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			busy = err == nil && info.State != unix.BPF_TCP_CLOSE && (info.Unacked > 0 || info.Notsent_bytes > 0)
		}) != nil || !busy {
			return
		}
	}
}
