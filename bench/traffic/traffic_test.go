// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
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
