// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// TestMain lets the test binary be the agent that Start runs, and a benchmark that is killed.
func TestMain(m *testing.M) {
	var err error
	switch {
	case slices.Contains(os.Args[1:], Arg):
		err = Main()
	case slices.Contains(os.Args[1:], benchArg):
		err = killed()
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func mustStart(t *testing.T, ns *netlab.NS) *Agent {
	t.Helper()
	a, err := Start(ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Stop(); err != nil {
			t.Error(err)
		}
	})
	return a
}

func TestPrivilegedTraffic(t *testing.T) {
	l := netlab.NewT(t)
	client := mustStart(t, l.Client().NS)
	for i, ip := range []netip.Addr{netlab.IP4(l.Client().Uplink.Node), netlab.IP6(l.Client().Uplink.Node)} {
		to := netip.AddrPortFrom(ip, uint16(7000+i))
		server := mustStart(t, l.Node.NS) // one address each
		if _, err := server.Call(Request{Op: "serve", Addr: to}); err != nil {
			t.Fatal(err)
		}
		rr, err := client.Call(Request{Op: "rr", Addr: to, For: 100 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		if rr.P50 < time.Microsecond || rr.P99 < rr.P50 || rr.P50 > 10*time.Millisecond {
			t.Errorf("%s: implausible round trips: %+v", to, rr)
		}
		crr, err := client.Call(Request{Op: "crr", Addr: to, For: 100 * time.Millisecond, Conns: 4})
		if err != nil {
			t.Fatal(err)
		}
		if crr.Rate < 100 {
			t.Errorf("%s: %f connections per second", to, crr.Rate)
		}
		stream, err := client.Call(Request{Op: "stream", Addr: to, For: 300 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		if stream.Rate < 1e7 {
			t.Errorf("%s: stream of %f bit/s", to, stream.Rate)
		}
	}
}

// A server for many clients has room for 32 at once, answers HTTP, and keeps connections until it is told to let go.
func TestPrivilegedManyFlows(t *testing.T) {
	l := netlab.NewT(t)
	client, server := mustStart(t, l.Client().NS), mustStart(t, l.Node.NS)
	to := netip.AddrPortFrom(netlab.IP4(l.Client().Uplink.Node), 7000)
	must := func(a *Agent, r Request) Reply {
		t.Helper()
		rep, err := a.Call(r)
		if err != nil {
			t.Fatal(err)
		}
		return rep
	}
	must(server, Request{Op: "serve", Addr: to, Conns: 40})
	for _, op := range []string{"rr", "crr", "stream"} {
		before := must(server, Request{Op: "cpu"}).CPU
		r := must(client, Request{Op: op, Addr: to, Conns: 32, For: 200 * time.Millisecond})
		if r.Rate <= 0 || r.Count == 0 || r.CPU <= 0 || r.P99 < r.P50 || r.P999 < r.P99 || (op != "stream") != (r.P50 > 0) {
			t.Errorf("%s in 32 flows: implausible: %+v", op, r)
		}
		if after := must(server, Request{Op: "cpu"}).CPU; after <= before {
			t.Errorf("%s: the server used no CPU time: %v and %v", op, before, after)
		}
	}
	for range 2 { // on one connection, then on new ones
		resp, err := l.Client().HTTPClient(5 * time.Second).Get("http://" + to.String() + "/")
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "x" || resp.StatusCode != http.StatusOK {
			t.Errorf("%v: status %d, %q", err, resp.StatusCode, body)
		}
		_ = resp.Body.Close()
	}
	const held = 300
	sources := []netip.Addr{netlab.IP4(l.Client().Uplink.Client)}
	must(server, Request{Op: "files", Conns: held})
	must(client, Request{Op: "hold", Addr: to, Sources: sources, Conns: 100})
	must(client, Request{Op: "hold", Addr: to, Sources: sources, Conns: held})
	must(client, Request{Op: "rr", Addr: to, Conns: 32, For: 20 * time.Millisecond}) // they take no thread of the server
	if n := must(client, Request{Op: "release"}).Count; n != held {
		t.Errorf("the client held %d, want %d", n, held)
	}
	if n := must(server, Request{Op: "release"}).Count; n != held {
		t.Errorf("the server held %d, want %d", n, held)
	}
	must(client, Request{Op: "hold", Addr: to, Sources: sources, Conns: 10}) // the same ports again
}

func TestPrivilegedErrorsAreTold(t *testing.T) {
	l := netlab.NewT(t)
	client := mustStart(t, l.Client().NS)
	nobody := netip.AddrPortFrom(netlab.IP4(l.Client().Uplink.Node), 7009)
	tests := []struct {
		name string
		req  Request
		want string
	}{
		{"rr refused", Request{Op: "rr", Addr: nobody, For: time.Minute}, "connection refused"},
		{"crr refused", Request{Op: "crr", Addr: nobody, For: time.Minute, Conns: 2}, "connection refused"},
		{"stream refused", Request{Op: "stream", Addr: nobody, For: time.Minute}, "connection refused"},
		{"hold refused", Request{Op: "hold", Addr: nobody, Conns: 1, Sources: []netip.Addr{netlab.IP4(l.Client().Uplink.Client)}}, "connection 1 of 1, from 192.0.2.2:10000: connect: connection refused"},
		{"hold without addresses", Request{Op: "hold", Addr: nobody, Conns: 1}, "1 connections from 0 addresses"},
		{"too many at once", Request{Op: "serve", Addr: nobody, Conns: 1000}, "1000 connections at once, at most 64"},
		{"too many clients", Request{Op: "rr", Addr: nobody, Conns: 65}, "65 connections at once, at most 64"},
		{"fewer than none", Request{Op: "crr", Addr: nobody, Conns: -1}, "-1 connections"},
		{"unknown", Request{Op: "fly"}, `unknown request "fly"`},
		{"bind", Request{Op: "serve", Addr: nobody}, "cannot assign requested address"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := client.Call(tt.req)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestPlacement(t *testing.T) {
	p, err := newPlacement()
	if err != nil {
		t.Fatal(err)
	}
	if p.one.Count() != 1 || p.all.Count() < 1 {
		t.Errorf("not one CPU of those there are: %+v", p)
	}
	for kind, want := range map[byte]*unix.CPUSet{kindRR: &p.one, kindStream: &p.one, kindCRR: &p.all} {
		if got := p.serverSet(kind); got != want {
			t.Errorf("server of %c on %v, want %v", kind, got, want)
		}
	}
}
