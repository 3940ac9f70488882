// SPDX-License-Identifier: Apache-2.0

package stateful

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

var (
	// openTimeout covers a second SYN, should the first be lost.
	openTimeout = netlab.Patient(1500 * time.Millisecond)
	// wordTimeout covers three retransmissions of TCP: at 0.2, 0.6 and 1.4 s.
	wordTimeout     = netlab.Patient(2500 * time.Millisecond)
	datagramTimeout = netlab.Patient(800 * time.Millisecond)
)

// datagramTries is how often a datagram is sent that does not arrive.
const datagramTries = 3

// ftpPort is FTP's control connection, the others are what a server announces on it.
const ftpPort, ftpDataPort, otherDataPort = 21, 2222, 2223

// hub joins the two ends of a conversation: whoever opens one sends its number first.
type hub struct {
	mu      sync.Mutex
	waiting map[string]chan *end
	next    atomic.Int64
}

// end is one side of a conversation.
type end struct {
	conn net.Conn // nil at the serving end of UDP
	r    *bufio.Reader

	pc    net.PacketConn
	peer  net.Addr
	words chan string
}

// newEnd is the end of a connection. The kernel says nothing on its own while the connection is idle.
func newEnd(c net.Conn) *end {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetKeepAlive(false)
	}
	return &end{conn: c, r: bufio.NewReader(c)}
}

func newHub() *hub { return &hub{waiting: map[string]chan *end{}} }

func (h *hub) expect() (id string, arrived chan *end) {
	id, arrived = fmt.Sprintf("c%d", h.next.Add(1)), make(chan *end, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting[id] = arrived
	return id, arrived
}

func (h *hub) take(id string) chan *end {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.waiting[id]
	delete(h.waiting, id)
	return c
}

// serve takes conversations at a port, TCP and UDP, both families.
func (h *hub) serve(t testing.TB, ns e2etest.Place, port int) {
	t.Helper()
	for _, suffix := range []string{"4", "6"} {
		addr := fmt.Sprintf(":%d", port)
		l, err := ns.Listen("tcp"+suffix, addr)
		if err != nil {
			t.Fatal(err)
		}
		pc, err := ns.ListenPacket("udp"+suffix, addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = l.Close(), pc.Close() })
		go h.acceptTCP(l)
		go h.acceptUDP(pc)
	}
}

func (h *hub) acceptTCP(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			e := newEnd(c)
			_ = c.SetReadDeadline(time.Now().Add(wordTimeout))
			line, err := e.r.ReadString('\n')
			arrived := h.take(strings.TrimSpace(line))
			if err != nil || arrived == nil {
				_ = c.Close()
				return
			}
			arrived <- e
		}()
	}
}

func (h *hub) acceptUDP(pc net.PacketConn) {
	known := map[string]*end{}
	buf := make([]byte, 2048)
	for {
		n, peer, err := pc.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		id, word, _ := strings.Cut(string(buf[:n]), " ")
		e := known[id]
		if e == nil {
			e = &end{pc: pc, peer: peer, words: make(chan string, 64)}
			known[id] = e
			if arrived := h.take(id); arrived != nil {
				arrived <- e
			}
			continue
		}
		select {
		case e.words <- word:
		default:
		}
	}
}

// talk is a conversation of which the test has both ends.
type talk struct {
	id             string
	proto          string
	client, server *end
	from           netip.AddrPort // of the client, in its own namespace
	said           int
}

// open begins a conversation from a place to an address. The verdict is a text in any case, and t is nil unless it is "opens".
func (h *hub) open(from e2etest.Place, network, addr string) (t *talk, verdict string) {
	return h.openWithin(openTimeout, from, network, addr)
}

// openWithin is open with a limit for the handshake.
func (h *hub) openWithin(limit time.Duration, from e2etest.Place, network, addr string) (t *talk, verdict string) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c, err := from.DialContext(ctx, network, addr)
	if err != nil {
		return nil, verdictOf(err)
	}
	id, arrived := h.expect()
	t = &talk{id: id, proto: network[:3], client: newEnd(c), from: e2etest.Unmapped(c.LocalAddr())}
	limit = wordTimeout
	first := id + "\n"
	if t.proto == "udp" {
		limit, first = datagramTries*datagramTimeout, id+" hello"
	}
	if _, err := c.Write([]byte(first)); err != nil {
		_ = c.Close()
		return nil, verdictOf(err)
	}
	refused := make(chan error, 1)
	if t.proto == "udp" {
		go func() { refused <- awaitError(c, limit) }()
	}
	again := time.NewTicker(datagramTimeout)
	defer again.Stop()
	for deadline := time.After(limit); ; {
		select {
		case <-again.C:
			if t.proto == "udp" {
				_, _ = c.Write([]byte(first))
			}
		case t.server = <-arrived:
			if t.proto == "udp" {
				_ = c.SetReadDeadline(time.Now()) // ends awaitError
				<-refused
			}
			return t, "opens"
		case err := <-refused:
			if err != nil {
				_ = c.Close()
				return nil, verdictOf(err)
			}
			refused = nil
		case <-deadline:
			_ = c.Close()
			return nil, "times out"
		}
	}
}

// awaitError waits for an ICMP error on a socket of UDP that gets nothing else.
func awaitError(c net.Conn, limit time.Duration) error {
	_ = c.SetReadDeadline(time.Now().Add(limit))
	_, err := c.Read(make([]byte, 1))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// verdictOf words an error of a socket.
func verdictOf(err error) string {
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return "refused"
	case errors.Is(err, unix.ECONNRESET):
		return "reset"
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH):
		return "prohibited"
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return "times out"
	}
	return err.Error()
}

// say sends a word from one end and waits for it at the other.
func (t *talk) say(fromServer bool) error {
	t.said++
	word := fmt.Sprintf("word%d", t.said)
	if t.proto == "udp" {
		return t.sayUDP(fromServer, word)
	}
	speaker, listener := t.client, t.server
	if fromServer {
		speaker, listener = t.server, t.client
	}
	_ = speaker.conn.SetWriteDeadline(time.Now().Add(wordTimeout))
	if _, err := speaker.conn.Write([]byte(word + "\n")); err != nil {
		return err
	}
	_ = listener.conn.SetReadDeadline(time.Now().Add(wordTimeout))
	for { // a word that was thought lost may still come
		line, err := listener.r.ReadString('\n')
		if err != nil {
			return err
		}
		if strings.TrimSpace(line) == word {
			return nil
		}
	}
}

// sayUDP repeats a word that does not arrive, as programs that use UDP do: what a busy machine loses is not lost by a rule.
func (t *talk) sayUDP(fromServer bool, word string) error {
	for range datagramTries {
		arrived, err := t.datagram(fromServer, word)
		if arrived || err != nil {
			return err
		}
	}
	return os.ErrDeadlineExceeded
}

func (t *talk) datagram(fromServer bool, word string) (arrived bool, err error) {
	if fromServer {
		if _, err := t.server.pc.WriteTo([]byte(word), t.server.peer); err != nil {
			return false, err
		}
		_ = t.client.conn.SetReadDeadline(time.Now().Add(datagramTimeout))
		for buf := make([]byte, 2048); ; {
			n, err := t.client.conn.Read(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return false, nil
			}
			if err != nil || string(buf[:n]) == word {
				return err == nil, err
			}
		}
	}
	if _, err := t.client.conn.Write([]byte(t.id + " " + word)); err != nil {
		return false, err
	}
	for deadline := time.After(datagramTimeout); ; {
		select {
		case got := <-t.server.words:
			if got == word {
				return true, nil
			}
		case <-deadline:
			return false, nil
		}
	}
}

// word is say as a text.
func (t *talk) word(fromServer bool) string {
	err := t.say(fromServer)
	if err == nil {
		return "arrives"
	}
	if verdict := verdictOf(err); verdict != "times out" {
		return verdict
	}
	return "lost"
}

// line sends a line of another protocol over TCP, and waits for it.
func (t *talk) line(fromServer bool, text string) {
	speaker, listener := t.client, t.server
	if fromServer {
		speaker, listener = t.server, t.client
	}
	_, _ = fmt.Fprintf(speaker.conn, "%s\n", text)
	_ = listener.conn.SetReadDeadline(time.Now().Add(wordTimeout))
	_, _ = listener.r.ReadString('\n')
}

// exchange speaks both ways for that long, a word each way every pause. It goes on after a word that is lost.
func (t *talk) exchange(d, pause time.Duration) (first error) {
	for late := time.Now().Add(d); time.Now().Before(late); time.Sleep(pause) {
		if err := errors.Join(t.say(false), t.say(true)); first == nil {
			first = err
		}
	}
	return first
}

// close ends a conversation in order: the client first, then the server, which waits for the client's end.
func (t *talk) close() {
	if t.proto == "udp" {
		_ = t.client.conn.Close()
		return
	}
	_ = t.client.conn.(*net.TCPConn).CloseWrite()
	_ = t.server.conn.SetReadDeadline(time.Now().Add(wordTimeout))
	drain(t.server)
	_ = t.server.conn.Close()
	_ = t.client.conn.SetReadDeadline(time.Now().Add(wordTimeout))
	drain(t.client)
	_ = t.client.conn.Close()
}

// abort ends a conversation at once, that of TCP by RST from the client.
func (t *talk) abort() {
	if t.proto == "udp" {
		t.close()
		return
	}
	_ = t.client.conn.(*net.TCPConn).SetLinger(0)
	_ = t.client.conn.Close()
	_ = t.server.conn.SetReadDeadline(time.Now().Add(wordTimeout))
	drain(t.server)
	_ = t.server.conn.Close()
}

// drain reads until the other end closes, or until the deadline.
func drain(e *end) {
	for {
		if _, err := e.r.ReadString('\n'); err != nil {
			return
		}
	}
}
