// SPDX-License-Identifier: Apache-2.0

package e2e

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

// patience is how long one answer may take. It covers a lost first packet of
// TCP, which the kernel repeats after a second.
var patience = netlab.Patient(4 * time.Second)

// place is somewhere to open sockets: a pod, a client, the node.
type place interface {
	Listen(network, addr string) (net.Listener, error)
	ListenPacket(network, addr string) (net.PacketConn, error)
	DialContext(ctx context.Context, network, addr string) (net.Conn, error)
	DialFrom(ctx context.Context, network, local, addr string) (net.Conn, error)
}

// answer is what a server of serve says about a request.
type answer struct {
	name string         // of the server
	peer netip.AddrPort // the source it saw
}

// serve answers on TCP and UDP, in both families, with its name and the peer it
// sees, and copies back what follows, until the test ends. The families have a
// socket each: whether Go's dual-stack ones work is decided once for a whole
// process, by whichever namespace asks first.
func serve(t testing.TB, ns place, name, addr string) {
	t.Helper()
	for _, suffix := range []string{"4", "6"} {
		serveFamily(t, ns, suffix, name, addr)
	}
}

func serveFamily(t testing.TB, ns place, suffix, name, addr string) {
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
	go serveUDP(pc, name)
}

func serveTCP(l net.Listener, name string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			if _, err := fmt.Fprintf(c, "%s %s\n", name, unmapped(c.RemoteAddr())); err == nil {
				_, _ = io.Copy(c, c)
			}
		}()
	}
}

func serveUDP(pc net.PacketConn, name string) {
	buf := make([]byte, 1<<16)
	for {
		n, peer, err := pc.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_, _ = pc.WriteTo(fmt.Appendf(nil, "%s %s\n%s", name, unmapped(peer), buf[:n]), peer)
		}
	}
}

func unmapped(a net.Addr) netip.AddrPort {
	ap := netip.MustParseAddrPort(a.String())
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
}

// dial opens a conversation with a server of serve.
func dial(ns place, network, local, addr string) (*talk, error) {
	return dialWithin(patience, ns, network, local, addr)
}

func dialWithin(limit time.Duration, ns place, network, local, addr string) (*talk, error) {
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
	return newTalk(c, limit)
}

// talk is a conversation with a server of serve.
type talk struct {
	net.Conn
	r      *bufio.Reader
	udp    bool
	limit  time.Duration // of one answer
	answer answer
}

func newTalk(c net.Conn, limit time.Duration) (*talk, error) {
	_, isUDP := c.(*net.UDPConn)
	t := &talk{Conn: c, r: bufio.NewReader(c), udp: isUDP, limit: limit}
	if err := t.open(); err != nil {
		_ = c.Close()
		return nil, err
	}
	return t, nil
}

// open reads the greeting of TCP, or asks the first question of UDP.
func (t *talk) open() error {
	if t.udp {
		return t.say("hello")
	}
	if err := t.SetDeadline(time.Now().Add(t.limit)); err != nil {
		return err
	}
	line, err := t.r.ReadString('\n')
	if err != nil {
		return fmt.Errorf("no greeting: %w", err)
	}
	return t.greeting(line)
}

func (t *talk) greeting(line string) error {
	name, peer, _ := strings.Cut(strings.TrimSpace(line), " ")
	ap, err := netip.ParseAddrPort(peer)
	if err != nil {
		return fmt.Errorf("greeting %q: %w", line, err)
	}
	t.answer = answer{name, ap}
	return nil
}

// say sends a word and wants it back. Over UDP it also updates answer.
func (t *talk) say(word string) error {
	if err := t.SetDeadline(time.Now().Add(t.limit)); err != nil {
		return err
	}
	if !t.udp {
		if _, err := t.Write([]byte(word + "\n")); err != nil {
			return err
		}
		line, err := t.r.ReadString('\n')
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
	return t.greeting(line)
}

// rounds says n different words one after the other.
func (t *talk) rounds(n int) error {
	for i := range n {
		if err := t.say(fmt.Sprintf("word %d", i)); err != nil {
			return fmt.Errorf("round %d of %d: %w", i+1, n, err)
		}
	}
	return nil
}

// talkTo says a few words by a connection that is there, which the server called name should answer, and closes it.
func talkTo(t *testing.T, c net.Conn, name string) {
	t.Helper()
	k, err := newTalk(c, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	if err := k.rounds(3); err != nil || k.answer.name != name {
		t.Errorf("answered by %q, want %q: %v", k.answer.name, name, err)
	}
}

// longTalk is enough rounds for a flow to be learned and then used.
const longTalk = 50

// ask holds a conversation of longTalk rounds and returns what the server saw.
func ask(t testing.TB, ns place, network, addr string) answer {
	t.Helper()
	c, err := dial(ns, network, "", addr)
	if err != nil {
		t.Fatalf("%s %s: %v", network, addr, err)
	}
	defer c.Close()
	if err := c.rounds(longTalk); err != nil {
		t.Fatalf("%s %s: %v", network, addr, err)
	}
	return c.answer
}

// refused fails the test when anybody answers.
func refused(t testing.TB, ns place, network, addr string) {
	t.Helper()
	// Long enough for a second SYN, should the first have been lost.
	c, err := dialWithin(1200*time.Millisecond, ns, network, "", addr)
	if err != nil {
		return
	}
	defer c.Close()
	t.Errorf("%s %s: answered by %q, want nobody", network, addr, c.answer.name)
}

// reuse opens a conversation from a local port that other conversations of the same place have too.
func reuse(t testing.TB, ns *netlab.NS, network, local, addr string) *talk {
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
	k, err := newTalk(c, patience)
	if err != nil {
		t.Fatalf("%s from %s to %s: %v", network, local, addr, err)
	}
	t.Cleanup(func() { _ = k.Close() })
	return k
}
