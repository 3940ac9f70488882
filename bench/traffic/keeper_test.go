// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Connections beyond the room of one process are open in others, and all are closed by release.
func TestHeldByKeepers(t *testing.T) {
	t.Parallel()
	const room, conns = 10, 35
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	h := &held{}
	if err := h.share(conns, room); err != nil {
		t.Fatal(err)
	}
	if len(h.keepers) != 3 {
		t.Fatalf("%d keepers for %d connections, %d in each process", len(h.keepers), conns, room)
	}
	hold := func() (net.Conn, error) {
		client, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		server, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		return client, h.keep(descriptor(t, server), []byte{'x'})
	}
	var clients []net.Conn
	for range conns {
		client, err := hold()
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, client)
	}
	for h.count() < 4*room {
		if _, err := hold(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := hold(); err == nil || !strings.Contains(err.Error(), "no more") {
		t.Errorf("one more than there is room for: %v", err)
	}
	for i, c := range clients {
		if b := make([]byte, 1); !reads(c, b) || b[0] != 'x' {
			t.Errorf("connection %d was not answered", i)
		}
	}
	if n, err := h.release(); n != 4*room || err != nil {
		t.Errorf("%d released, want %d: %v", n, 4*room, err)
	}
	for i, c := range clients {
		if _, err := io.ReadFull(c, make([]byte, 1)); err == nil || os.IsTimeout(err) {
			t.Errorf("connection %d is open after the release: %v", i, err)
		}
	}
	if err := h.share(1, 0); err == nil || !strings.Contains(err.Error(), "too few") {
		t.Errorf("no room: %v", err)
	}
}

func reads(c net.Conn, b []byte) bool {
	_, err := io.ReadFull(c, b)
	return err == nil
}

// descriptor is a connection's file in blocking mode, of its own.
func descriptor(t *testing.T, c net.Conn) int {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	fd := -1
	if cerr := raw.Control(func(own uintptr) { fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	return fd
}
