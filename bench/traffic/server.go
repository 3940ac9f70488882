// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// The first byte a client sends says what the connection is for.
const (
	kindRR     = 'R' // each byte is answered by one byte
	kindCRR    = 'C' // one byte is answered by one byte, then the server closes
	kindStream = 'S' // everything is swallowed and counted until the client shuts down
	kindHTTP   = 'G' // of GET: each request gets a short answer
	kindHeld   = 'H' // kept open, until the server is told to let go

	// The same on any CPU, for several connections at once.
	kindManyRR     = 'r'
	kindManyStream = 's'
)

// acceptors is how many connections the server handles at once, a thread each:
// the four of a CRR run and room for stragglers of the one before.
const acceptors = 6

// maxAcceptors is how many it may be asked for: each has a Go processor.
const maxAcceptors = 64

// streamWarmup is how long a stream runs before its bytes count: slow start
// and the growth of the socket buffers.
const streamWarmup = 200 * time.Millisecond

// Serve listens on addr in the calling thread's network namespace and answers
// in threads of its own until the process ends. conns is how many connections
// there will be at once, 0 for acceptors; at most maxAcceptors.
func Serve(p *placement, h *held, addr netip.AddrPort, conns int) error {
	if conns == 0 {
		conns = acceptors
	}
	to := newSockaddr(addr)
	fd, err := unix.Socket(to.family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return fmt.Errorf("SO_REUSEADDR: %w", err)
	}
	if errno := bind(fd, to); errno != 0 {
		return fmt.Errorf("bind %s: %w", addr, errno)
	}
	if err := unix.Listen(fd, 1024); err != nil {
		return fmt.Errorf("listen on %s: %w", addr, err)
	}
	for range conns {
		go acceptLoop(p, h, fd)
	}
	return serveDatagrams(addr)
}

func acceptLoop(p *placement, h *held, listener int) {
	runtime.LockOSThread()
	buf := make([]byte, 256<<10)
	var last byte
	for {
		fd, errno := rawAccept(listener)
		if errno != 0 {
			continue // the client sees its connection fail; the listener stays
		}
		if kind, ok := readKind(fd, buf); ok {
			if kind != last {
				use(p.serverSet(kind))
				first(kind == kindStream)
				last = kind
			}
			if kind == kindHeld {
				_ = h.keep(fd, buf[:1]) // the client sees its connection closed, and fails
				continue
			}
			serveConn(fd, buf)
		}
		rawClose(fd)
	}
}

func readKind(fd int, buf []byte) (kind byte, ok bool) {
	if setOptions(fd) != 0 {
		return 0, false
	}
	n, errno := rawRead(fd, buf[:1])
	return buf[0], errno == 0 && n == 1
}

// serveConn handles a connection whose first byte is in buf.
func serveConn(fd int, buf []byte) {
	n, errno := 1, unix.Errno(0)
	switch buf[0] {
	case kindCRR:
		rawWrite(fd, buf[:1])
	case kindRR, kindManyRR:
		for n == 1 && errno == 0 {
			if _, errno = rawWrite(fd, buf[:1]); errno == 0 {
				n, errno = rawRead(fd, buf[:1])
			}
		}
	case kindStream, kindManyStream:
		serveStream(fd, buf)
	case kindHTTP:
		serveHTTP(fd, buf)
	}
}

// The answers to a request, and what asks for the second.
const (
	httpKeep  = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"
	httpClose = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx"
	askClose  = "Connection: close"
)

// serveHTTP answers requests without a body, as wrk sends them. The first byte
// of the first one is in buf. A client that asks for it is closed to.
func serveHTTP(fd int, buf []byte) {
	keep, last := []byte(httpKeep), []byte(httpClose)
	for have := 1; ; {
		end := bytes.Index(buf[:have], []byte("\r\n\r\n"))
		if end < 0 {
			if have == len(buf) {
				return
			}
			n, errno := rawRead(fd, buf[have:])
			if errno != 0 || n == 0 {
				return
			}
			have += n
			continue
		}
		if bytes.Contains(buf[:end+4], []byte(askClose)) {
			rawWrite(fd, last)
			return
		}
		if _, errno := rawWrite(fd, keep); errno != 0 {
			return
		}
		have = copy(buf, buf[end+4:have])
	}
}

// serveStream says that it is there, counts what arrives after streamWarmup and
// sends the client the number of bytes and the nanoseconds they took.
func serveStream(fd int, buf []byte) {
	rawWrite(fd, buf[:1])
	warm := time.Now().Add(streamWarmup)
	end := warm
	var total uint64
	for {
		n, errno := rawRead(fd, buf)
		if errno != 0 {
			return
		}
		if n == 0 {
			break
		}
		if now := time.Now(); now.After(warm) {
			total += uint64(n)
			end = now
		}
	}
	var reply [16]byte
	binary.BigEndian.PutUint64(reply[:8], total)
	binary.BigEndian.PutUint64(reply[8:], uint64(end.Sub(warm)))
	rawWrite(fd, reply[:])
}
