// SPDX-License-Identifier: Apache-2.0

package e2etest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// AnswerTimeout is how long one answer may take. It covers a lost first packet of TCP:
// the kernel repeats it after a second.
var AnswerTimeout = netlab.Patient(4 * time.Second)

// NoAnswerTimeout is how long to wait for an answer that must not come.
const NoAnswerTimeout = 300 * time.Millisecond

// LongTalk is enough rounds for a connection to be learned by the fast path, and then to
// use it.
const LongTalk = 50

// Place is somewhere to open sockets: a pod, a client, the node.
type Place interface {
	Listen(network, addr string) (net.Listener, error)
	ListenPacket(network, addr string) (net.PacketConn, error)
	DialContext(ctx context.Context, network, addr string) (net.Conn, error)
	DialFrom(ctx context.Context, network, local, addr string) (net.Conn, error)
}

// Answer is what a server of Serve says about a request.
type Answer struct {
	Server string         // of the server
	Peer   netip.AddrPort // the source it saw
}

// Serve answers on TCP and UDP in both families, until the test ends. It sends its name
// and the peer's address as it sees it, then copies back what it gets. Each family has a
// socket of its own: Go decides once for a process whether dual-stack sockets work, in
// the namespace that asks first.
func Serve(t testing.TB, ns Place, name, addr string) {
	t.Helper()
	for _, suffix := range []string{"4", "6"} {
		ServeFamily(t, ns, suffix, name, addr)
	}
}

// ServeFamily is Serve for one family: suffix is "4" or "6".
func ServeFamily(t testing.TB, ns Place, suffix, name, addr string) {
	t.Helper()
	l, err := ns.Listen("tcp"+suffix, addr)
	if err != nil {
		t.Fatal(err)
	}
	pc, err := ns.ListenPacket("udp"+suffix, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = l.Close(), pc.Close() })
	go serveTCP(l, name)
	go ServeUDP(pc, name)
}

func serveTCP(l net.Listener, name string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			if _, err := fmt.Fprintf(c, "%s %s\n", name, Unmapped(c.RemoteAddr())); err == nil {
				_, _ = io.Copy(c, c)
			}
		}()
	}
}

// ServeUDP answers each datagram as Serve does, until pc is closed.
func ServeUDP(pc net.PacketConn, name string) {
	buf := make([]byte, 1<<16)
	for {
		n, peer, err := pc.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_, _ = pc.WriteTo(fmt.Appendf(nil, "%s %s\n%s", name, Unmapped(peer), buf[:n]), peer)
		}
	}
}

// Unmapped is an address without zone; a v4-mapped one becomes IPv4.
func Unmapped(a net.Addr) netip.AddrPort {
	ap := netip.MustParseAddrPort(a.String())
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
}

// Dial opens a conversation with a server of Serve. network is "tcp4", "udp6" and so on;
// local is "" for any.
func Dial(ns Place, network, local, addr string) (*Talk, error) {
	return DialWithin(AnswerTimeout, ns, network, local, addr)
}

// DialWithin is Dial with a limit, for the connection and for each answer.
func DialWithin(limit time.Duration, ns Place, network, local, addr string) (*Talk, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var c net.Conn
	var err error
	if local == "" {
		c, err = ns.DialContext(ctx, network, addr)
	} else {
		c, err = ns.DialFrom(ctx, network, local, addr)
	}
	if err != nil {
		return nil, err
	}
	return NewTalk(c, limit)
}

// DialFromSharedPort is Dial from a local port that other conversations of the namespace
// use too.
func DialFromSharedPort(t testing.TB, ns *netlab.NS, network, local, addr string) *Talk {
	t.Helper()
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
	}}
	if network == "udp" {
		d.LocalAddr = net.UDPAddrFromAddrPort(netip.MustParseAddrPort(local))
	} else {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.MustParseAddrPort(local))
	}
	var c net.Conn
	err := ns.Do(func() (err error) {
		c, err = d.Dial(network, addr)
		return err
	})
	if err != nil {
		t.Fatalf("%s from %s to %s: %v", network, local, addr, err)
	}
	k, err := NewTalk(c, AnswerTimeout)
	if err != nil {
		t.Fatalf("%s from %s to %s: %v", network, local, addr, err)
	}
	t.Cleanup(func() { _ = k.Close() })
	return k
}

// Talk is a conversation with a server of Serve.
type Talk struct {
	net.Conn
	Reader  *bufio.Reader
	UDP     bool
	Timeout time.Duration // of one answer
	Answer  Answer
}

// NewTalk begins a conversation over a connection. It takes the server's greeting (TCP)
// or asks for one (UDP).
func NewTalk(c net.Conn, limit time.Duration) (*Talk, error) {
	_, isUDP := c.(*net.UDPConn)
	t := &Talk{Conn: c, Reader: bufio.NewReader(c), UDP: isUDP, Timeout: limit}
	if err := t.open(); err != nil {
		_ = c.Close()
		return nil, err
	}
	return t, nil
}

// open reads the greeting of TCP, or asks the first question of UDP.
func (t *Talk) open() error {
	if t.UDP {
		return t.Send("hello")
	}
	if err := t.SetDeadline(time.Now().Add(t.Timeout)); err != nil {
		return err
	}
	line, err := t.Reader.ReadString('\n')
	if err != nil {
		return fmt.Errorf("no greeting: %w", err)
	}
	return t.parseGreeting(line)
}

func (t *Talk) parseGreeting(line string) error {
	name, peer, _ := strings.Cut(strings.TrimSpace(line), " ")
	ap, err := netip.ParseAddrPort(peer)
	if err != nil {
		return fmt.Errorf("greeting %q: %w", line, err)
	}
	t.Answer = Answer{name, ap}
	return nil
}

// Send sends a word and wants it back. Over UDP it also updates Answer.
func (t *Talk) Send(word string) error {
	if err := t.SetDeadline(time.Now().Add(t.Timeout)); err != nil {
		return err
	}
	if !t.UDP {
		if _, err := t.Write([]byte(word + "\n")); err != nil {
			return err
		}
		line, err := t.Reader.ReadString('\n')
		if err != nil {
			return fmt.Errorf("echo of %q: %w", word, err)
		}
		if line != word+"\n" {
			return fmt.Errorf("echo is %q, want %q", line, word)
		}
		return nil
	}
	if _, err := t.Write([]byte(word)); err != nil {
		return err
	}
	buf := make([]byte, 1<<16)
	n, err := t.Read(buf)
	if err != nil {
		return fmt.Errorf("answer to %q: %w", word, err)
	}
	line, echo, _ := strings.Cut(string(buf[:n]), "\n")
	if echo != word {
		return fmt.Errorf("echo is %q, want %q", echo, word)
	}
	return t.parseGreeting(line)
}

// SendRounds sends n different words, one after the other.
func (t *Talk) SendRounds(n int) error {
	for i := range n {
		if err := t.Send(fmt.Sprintf("word %d", i)); err != nil {
			return fmt.Errorf("round %d of %d: %w", i+1, n, err)
		}
	}
	return nil
}

// Path is a way from one place to another that a test tries.
type Path struct {
	Name string
	From Place
	To   string
}

// LongerThanQueues is more bytes than the queues on the way hold.
const LongerThanQueues = 1 << 20

// SendLong sends a long word and wants it back, both at once: neither end can hold all of
// it. A failure ends the test.
func SendLong(t testing.TB, c *Talk, word string) {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(4 * AnswerTimeout)); err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write([]byte(word + "\n"))
		sent <- err
	}()
	line, err := c.Reader.ReadString('\n')
	if err != nil || line != word+"\n" {
		t.Fatalf("%d of %d bytes came back: %v", len(line), len(word)+1, err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}
