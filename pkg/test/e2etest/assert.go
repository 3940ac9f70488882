// SPDX-License-Identifier: Apache-2.0

package e2etest

import (
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Ask holds a conversation of LongTalk rounds and returns what the server saw. A failure
// ends the test.
func Ask(t testing.TB, ns Place, network, addr string) Answer {
	t.Helper()
	c, err := Dial(ns, network, "", addr)
	if err != nil {
		t.Fatalf("%s %s: %v", network, addr, err)
	}
	defer c.Close()
	if err := c.SendRounds(LongTalk); err != nil {
		t.Fatalf("%s %s: %v", network, addr, err)
	}
	return c.Answer
}

// AssertTalk sends three words over a connection and closes it. The server called name
// must answer.
func AssertTalk(t *testing.T, c net.Conn, name string) {
	t.Helper()
	k, err := NewTalk(c, AnswerTimeout)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	if err := k.SendRounds(3); err != nil || k.Answer.Server != name {
		t.Errorf("answered by %q, want %q: %v", k.Answer.Server, name, err)
	}
}

// AssertNoAnswer fails the test if a server answers, also after a second SYN.
func AssertNoAnswer(t testing.TB, ns Place, network, addr string) {
	t.Helper()
	// Long enough for a second SYN, should the first have been lost.
	c, err := DialWithin(1200*time.Millisecond, ns, network, "", addr)
	if err != nil {
		return
	}
	defer c.Close()
	t.Errorf("%s %s: answered by %q, want nobody", network, addr, c.Answer.Server)
}

// AssertDenied fails the test if a server answers within NoAnswerTimeout.
func AssertDenied(t testing.TB, ns Place, proto, addr string) {
	t.Helper()
	c, err := DialWithin(NoAnswerTimeout, ns, proto, "", addr)
	if err == nil {
		c.Close()
		t.Errorf("%s %s is answered", proto, addr)
	}
}

// AssertRefused fails the test unless the host of addr itself refuses: no server answers, and nothing is sent elsewhere.
func AssertRefused(t testing.TB, ns Place, network, addr string) {
	t.Helper()
	c, err := Dial(ns, network, "", addr)
	if err == nil {
		t.Errorf("%s %s: answered by %q, want nobody", network, addr, c.Answer.Server)
		_ = c.Close()
	} else if !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("%s %s: %v, want %v", network, addr, err, unix.ECONNREFUSED)
	}
}

// AssertHostPort wants the server called want at the node's port 8080: TCP and UDP, in
// both families, from the first client.
func AssertHostPort(t *testing.T, w *World, want string) {
	t.Helper()
	for _, fam := range Families() {
		for _, proto := range []string{"tcp", "udp"} {
			if got := Ask(t, w.Client(), proto, At(fam.Node(w.Client()), 8080)); got.Server != want {
				t.Errorf("%s %s: answered by %s, want %s", fam.Name, proto, got.Server, want)
			}
		}
	}
}
