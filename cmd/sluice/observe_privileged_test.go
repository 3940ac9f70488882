// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/flowevent"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// observeOf runs "observe" on a node until the test ends and returns what it prints.
func observeOf(t *testing.T, n *netlab.Node, args ...string) <-chan flowevent.Event {
	t.Helper()
	var errs bytes.Buffer
	cmd := exec.Command(os.Args[0], append([]string{"observe", "-o", "json", "--follow"}, args...)...)
	cmd.Env = append(os.Environ(), asTool+"=1")
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Start(cmd); err != nil {
		t.Fatal(err)
	}
	events := make(chan flowevent.Event, 1000)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer close(events)
		for s := bufio.NewScanner(out); s.Scan(); {
			var e flowevent.Event
			if err := json.Unmarshal(s.Bytes(), &e); err != nil {
				t.Errorf("%v in %s", err, s.Text())
			}
			events <- e
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		for range events { // its last lines
		}
		<-ended
		if err := cmd.Wait(); err != nil {
			t.Errorf("observe: %v: %s", err, &errs)
		}
	})
	return events
}

// await returns the first event that wanted likes. provoke runs each second until then.
func await(t *testing.T, events <-chan flowevent.Event, provoke func(), wanted func(flowevent.Event) bool) flowevent.Event {
	t.Helper()
	late, tick := time.After(30*time.Second), time.NewTicker(time.Second)
	defer tick.Stop()
	var others []flowevent.Event
	for {
		select {
		case e, ok := <-events:
			if !ok {
				t.Fatalf("the observer ended; before: %+v", others)
			}
			if wanted(e) {
				return e
			}
			others = append(others, e)
		case <-tick.C:
			provoke()
		case <-late:
			t.Fatalf("no such event among %+v", others)
		}
	}
}

// The life of real connections, and real drops, by the real table.
func TestPrivilegedObserve(t *testing.T) {
	l := netlab.NewT(t, netlab.Options{ForwardIPv4: true})
	t.Cleanup(func() { real(t, l.Node, "unload", "--force") })
	publish(t, l, webRef)
	dial := func() net.Conn {
		conn, err := l.Client().DialContext(t.Context(), "tcp", "192.0.2.1:8080")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	of := func(conn net.Conn, what string) func(flowevent.Event) bool {
		from := conn.LocalAddr().(*net.TCPAddr).AddrPort()
		return func(e flowevent.Event) bool { return e.Event == what && e.Source == from }
	}
	nothing := func() {}

	before := dial()
	ask(t, before)
	events := observeOf(t, l.Node, "--all", "--pod", "10.1.0.2")
	e := await(t, events, nothing, of(before, flowevent.Existing))
	if e.Verdict != flowevent.VerdictForwarded || e.Direction != flowevent.Ingress || e.Proto != "tcp" || e.Destination != netip.MustParseAddrPort("10.1.0.2:80") ||
		e.Outside != netip.MustParseAddrPort("192.0.2.1:8080") || e.Kind != "hostport" || e.Pod == nil || e.Pod.ContainerID != webRef.ContainerID || e.RxPackets == 0 {
		t.Errorf("%+v", e)
	}

	conn := dial()
	if e := await(t, events, nothing, of(conn, flowevent.New)); time.Since(e.Time) > time.Minute || e.Pod == nil || e.Pod.ContainerID != webRef.ContainerID {
		t.Errorf("%+v", e)
	}
	relearn := func() { real(t, l.Node, "conntrack", "relearn", "--pod", "10.1.0.2") }
	for range 3 {
		ask(t, conn)
	}
	if e := await(t, events, relearn, of(conn, flowevent.Changed)); e.State != "established" {
		t.Errorf("%+v", e)
	}
	conn.Close()
	// The datapath removes a hostPort's entry with the last packet, unless that is lost to it.
	if e := await(t, events, nothing, of(conn, flowevent.Ended)); e.Reason != flowevent.EndRemoved && e.Reason != flowevent.EndFIN || e.RxBytes == 0 || e.TxBytes == 0 {
		t.Errorf("%+v", e)
	}

	// One that is shorter than the pause between two walks is seen too, if its entry stays: a client's RST leaves it.
	short := dial()
	_ = short.(*net.TCPConn).SetLinger(0)
	short.Close()
	await(t, events, nothing, of(short, flowevent.New))
	if e := await(t, events, nothing, of(short, flowevent.Ended)); e.Reason != flowevent.EndRST {
		t.Errorf("%+v", e)
	}

	if _, errs, status := real(t, l.Node, "deny", "add", "192.0.2.2/32"); status != 0 {
		t.Fatal(errs)
	}
	denied := func() {
		go func() {
			if c, err := l.Client().DialContext(t.Context(), "tcp", "192.0.2.1:8080"); err == nil {
				_ = c.Close()
			}
		}()
	}
	drops := observeOf(t, l.Node, "--verdict", "dropped") // the second one: the first reads the records of drops
	await(t, drops, denied, func(e flowevent.Event) bool {
		return e.Event == flowevent.Lost && e.Reason == flowevent.LostBusy && e.Lost > 0
	})
}

// A dropped packet has its reason, its device and its pod, and no byte of its payload.
func TestPrivilegedObserveDrops(t *testing.T) {
	l := netlab.NewT(t, netlab.Options{ForwardIPv4: true})
	t.Cleanup(func() { real(t, l.Node, "unload", "--force") })
	publish(t, l, webRef)
	events := observeOf(t, l.Node, "--drop-reason", "spoofed-ip")
	e := await(t, events, func() {
		_ = l.Node.Do(func() error {
			_, err := netlab.Run("sh", "-c", "ip -n web addr replace 10.7.7.7/32 dev lo; ip netns exec web sysctl -qw net.ipv4.conf.all.arp_announce=2; ip netns exec web ping -c 1 -W 1 -p 7365637265747365 -I 10.7.7.7 192.0.2.2 >/dev/null 2>&1 || true")
			return err
		})
	}, func(e flowevent.Event) bool { return e.Event == flowevent.Dropped })
	if e.Reason != "spoofed-ip" || e.Verdict != flowevent.VerdictDropped || e.Device != "v0" || e.Direction != flowevent.Egress || e.Source.Addr() != netip.MustParseAddr("10.7.7.7") ||
		e.Header.String() != "type 8 code 0" || e.Pod == nil || e.Pod.ContainerID != webRef.ContainerID {
		t.Errorf("%+v", e)
	}
	if b, err := json.Marshal(e); err != nil || strings.Contains(string(b), "7365637265") || strings.Contains(string(b), "secret") {
		t.Errorf("%v: %s", err, b)
	}
}
