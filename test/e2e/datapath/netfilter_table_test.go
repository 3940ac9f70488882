// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// Netfilter's entry of a fast connection is one that a stateful firewall can rely on while the connection is idle, and it is over when the
// connection is. test/e2e/stateful compares rule sets with upstream; this runs on every kernel.
func TestPrivilegedNetfilterTable(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	e2etest.LoadNFT(t, w.Node, dropInvalidRules)
	w.Configure(`{"relearnSeconds": 1}`)
	rt := w.Runtime(e2etest.Net0())
	web, app := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)), w.AddPod(rt, "app")
	e2etest.Serve(t, web, "web", ":80")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	talks := forwardedTalks(t, w, web, app)
	for round := range 3 { // young, and relearned
		for name, c := range talks {
			if err := c.SendRounds(e2etest.LongTalk); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		for name, c := range talks {
			if !c.UDP {
				wantEntry(t, w, fmt.Sprintf("%s, round %d", name, round), c, "ESTABLISHED", 3600)
			}
		}
		time.Sleep(1100 * time.Millisecond)
	}
	for name, c := range talks {
		if c.UDP {
			wantEntry(t, w, name, c, "", 60) // a stream, since it is older than two seconds
		}
	}
	if c := w.Counters(t, web); c.RxFast == 0 || c.TxFast == 0 {
		t.Fatalf("no packet took the fast path: %+v", c)
	}
	for name, c := range talks {
		if tcp, ok := c.Conn.(*net.TCPConn); ok && strings.Contains(name, "IPv6") {
			if err := tcp.SetLinger(0); err != nil { // a RST
				t.Fatal(err)
			}
		}
		if err := c.Close(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	time.Sleep(500 * time.Millisecond)
	for name, c := range talks {
		if state, _ := tableEntry(t, w, c); !c.UDP && (state == "ESTABLISHED" || state == "SYN_RECV") {
			t.Errorf("%s: after the end netfilter has it as %s", name, state)
		}
	}
}

func wantEntry(t *testing.T, w *e2etest.World, name string, c *e2etest.Talk, want string, atLeast int) {
	t.Helper()
	if state, seconds := tableEntry(t, w, c); state != want || seconds < atLeast {
		t.Errorf("%s: netfilter has it as %q for %d s, want %q for at least %d s", name, state, seconds, want, atLeast)
	}
}

// tableEntry returns the state and the rest of life that the node's table has for the connection that c opened.
func tableEntry(t *testing.T, w *e2etest.World, c *e2etest.Talk) (state string, seconds int) {
	t.Helper()
	local, err := netip.ParseAddrPort(c.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	table, err := w.Conntrack()
	if err != nil {
		t.Fatal(err)
	}
	proto := map[bool]string{true: "udp", false: "tcp"}[c.UDP]
	for _, e := range table {
		if e.Proto == proto && e.Original.Port() == local.Port() {
			return e.State, e.Seconds
		}
	}
	return "", 0
}
