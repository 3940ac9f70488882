// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// monitorOf runs "monitor" on a node until the test ends and returns the lines it prints.
func monitorOf(t *testing.T, n *netlab.Node, args ...string) <-chan dropEventView {
	t.Helper()
	r, w := io.Pipe()
	go func() {
		_ = n.Do(func() error {
			var errs strings.Builder
			status := newApp(w, &errs).run(t.Context(), append([]string{"monitor", "-o", "json"}, args...))
			_ = w.CloseWithError(fmt.Errorf("monitor ended with %d: %s", status, errs.String()))
			return nil
		})
	}()
	lines := make(chan dropEventView, 1000)
	go func() {
		defer close(lines)
		s := bufio.NewScanner(r)
		for s.Scan() {
			var v dropEventView
			if err := json.Unmarshal(s.Bytes(), &v); err == nil {
				lines <- v
			}
		}
	}()
	return lines
}

// wait repeats provoke until a line comes that wanted likes.
func wait(t *testing.T, lines <-chan dropEventView, provoke func(), wanted func(dropEventView) bool) dropEventView {
	t.Helper()
	late := time.After(20 * time.Second)
	for {
		provoke()
		again := time.After(300 * time.Millisecond)
		for waiting := true; waiting; {
			select {
			case v, ok := <-lines:
				if !ok {
					t.Fatal("the monitor ended")
				}
				if wanted(v) {
					return v
				}
			case <-again:
				waiting = false
			case <-late:
				t.Fatal("no such line")
			}
		}
	}
}

// Real drops: a spoofed source, and a client that is on the denylist.
func TestPrivilegedMonitor(t *testing.T) {
	l := netlab.NewT(t, netlab.Options{ForwardIPv4: true})
	t.Cleanup(func() { real(t, l.Node, "unload", "--force") })
	publish(t, l, webRef)
	lines := monitorOf(t, l.Node)

	spoof := func() {
		_, _ = netlab.Run("ip", "netns", "exec", "web", "true")
		_ = l.Node.Do(func() error {
			_, err := netlab.Run("sh", "-c", "ip -n web addr replace 10.7.7.7/32 dev lo; ip netns exec web sysctl -qw net.ipv4.conf.all.arp_announce=2; ip netns exec web ping -c 1 -W 1 -I 10.7.7.7 192.0.2.2 >/dev/null 2>&1 || true")
			return err
		})
	}
	v := wait(t, lines, spoof, func(v dropEventView) bool { return v.Reason == "spoofed-ip" })
	if v.Owner == nil || v.Owner.ContainerID != webRef.ContainerID || v.Device != "v0" || v.Program != "sl_from_pod" ||
		v.Proto != "icmp" || v.Source.Addr() != netip.MustParseAddr("10.7.7.7") || v.Dest.Addr() != netip.MustParseAddr("192.0.2.2") ||
		v.Detail != "type 8 code 0" || v.Len != 98 || len(v.Data) != 2*98 {
		t.Errorf("%+v", v)
	}
	if d := time.Since(v.Time); d < 0 || d > time.Minute {
		t.Errorf("dropped %v ago", d)
	}
	if _, errs, status := real(t, l.Node, "monitor", "--limit", "1"); status == 0 || !strings.Contains(errs, "busy") {
		t.Errorf("a second monitor: %d, %s", status, errs)
	}

	if _, errs, status := real(t, l.Node, "deny", "add", "192.0.2.2/32"); status != 0 {
		t.Fatal(errs)
	}
	v = wait(t, lines, func() {
		ctx := t.Context()
		go func() {
			if c, err := l.Client().DialContext(ctx, "tcp", "192.0.2.1:8080"); err == nil {
				_ = c.Close()
			}
		}()
	}, func(v dropEventView) bool { return v.Reason == "denied" })
	if v.Program != "sl_xdp_denylist" || v.Dest != netip.MustParseAddrPort("192.0.2.1:8080") || v.Detail != "S" {
		t.Errorf("%+v", v)
	}
	wantCounted(t, l.Node)
}

func wantCounted(t *testing.T, n *netlab.Node) {
	t.Helper()
	seen := map[string]dropCountView{}
	for _, v := range realJSON[[]dropCountView](t, n, "drops") {
		seen[v.Reason] = v
	}
	for reason, device := range map[string]string{"spoofed-ip": "v0", "denied": ""} {
		v := seen[reason]
		if v.Packets == 0 || v.Advice == "" || len(v.Places) != 1 || v.Places[0].Packets != v.Packets {
			t.Errorf("%s: %+v", reason, v)
			continue
		}
		p := v.Places[0]
		if device != "" && (p.Device != device || p.Owner == nil || p.Owner.ContainerID != webRef.ContainerID) {
			t.Errorf("%s: %+v", reason, p)
		}
	}
}

// A connection goes on after "flows flush", is as fast again, and is not known after "nat flush".
func TestPrivilegedFlush(t *testing.T) {
	l := netlab.NewT(t, netlab.Options{ForwardIPv4: true})
	t.Cleanup(func() { real(t, l.Node, "unload", "--force") })
	publish(t, l, webRef)
	conn, err := l.Client().DialContext(t.Context(), "tcp", "192.0.2.1:8080")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fast := func() bool {
		flows := realJSON[[]flowView](t, l.Node, "nat", "list")
		return len(flows) == 1 && flows[0].Fast
	}
	for range 3 {
		ask(t, conn)
	}
	if !fast() {
		t.Error("not learned")
	}
	if v := realJSON[flushView](t, l.Node, "conntrack", "relearn", "--pod", "10.1.0.2"); v.Flows != 1 {
		t.Errorf("%d flows", v.Flows)
	}
	if fast() {
		t.Error("still learned")
	}
	for range 3 {
		ask(t, conn)
	}
	if !fast() {
		t.Error("not learned again")
	}
	if v := realJSON[flushView](t, l.Node, "nat", "flush", "--all"); v.Flows != 1 {
		t.Errorf("%d flows", v.Flows)
	}
	// The client's last acknowledgement may come only now, and make the flow anew.
	if flows := realJSON[[]flowView](t, l.Node, "nat", "list"); len(flows) > 1 || len(flows) == 1 && flows[0].RxPackets > 1 {
		t.Errorf("%+v", flows)
	}
	ask(t, conn) // its next packet is for the published port, and makes the flow anew
	if flows := realJSON[[]flowView](t, l.Node, "nat", "list"); len(flows) != 1 {
		t.Errorf("%+v", flows)
	}
}

// ask asks the web server once over conn.
func ask(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: web\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4096)
	if n, err := conn.Read(b); err != nil || !strings.HasPrefix(string(b[:n]), "HTTP/1.1 404") {
		t.Fatalf("%q %v", b[:n], err)
	}
}
