// SPDX-License-Identifier: Apache-2.0

package tool

import (
	"fmt"
	"math"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/bench/traffic"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// TestMain lets the test binary be the agent that answers wrk.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == traffic.Arg {
		if err := traffic.Main(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What the programs of Debian 12 print is read.
func TestParse(t *testing.T) {
	r, err := parseIperf3(read(t, "iperf3.json"))
	if err != nil || r.Count != 415236096 || math.Abs(r.Rate-3190773503) > 1 {
		t.Errorf("iperf3: %+v (%v)", r, err)
	}
	r, err = parseSockperf(read(t, "sockperf.txt"))
	want := Result{Rate: 5643 / 1.001, P50: 18845, P99: 4078860, P999: 10243502, Count: 5643}
	if err != nil || r != want {
		t.Errorf("sockperf: %+v (%v), want %+v", r, err, want)
	}
	r, err = parseWrk([]byte("Running 1s test\n\nsluice {\"requests\":5000,\"us\":1000000,\"p50\":180,\"p99\":400,\"p999\":900,\"errors\":0}\n"))
	want = Result{Rate: 5000, P50: 180 * time.Microsecond, P99: 400 * time.Microsecond, P999: 900 * time.Microsecond, Count: 5000}
	if err != nil || r != want {
		t.Errorf("wrk: %+v (%v), want %+v", r, err, want)
	}
}

// An output without figures is an error that has it, and no figure of 0. So is a run in which requests failed.
func TestParseNothing(t *testing.T) {
	for name, parse := range map[string]func([]byte) (Result, error){Iperf3: parseIperf3, Wrk: parseWrk, Sockperf: parseSockperf} {
		for _, text := range []string{"", "{}", "connection refused", "sluice {}", "sockperf: [Total Run] RunTime=0 sec; ReceivedMessages=0"} {
			if r, err := parse([]byte(text)); err == nil || !strings.HasPrefix(err.Error(), name) {
				t.Errorf("%s of %q: %+v (%v)", name, text, r, err)
			}
		}
	}
	if _, err := parseIperf3([]byte(`{"error": "unable to connect"}`)); err == nil || !strings.Contains(err.Error(), "unable to connect") {
		t.Error(err)
	}
	if _, err := parseWrk([]byte("sluice {\"requests\":5000,\"us\":1000000,\"errors\":3}\n")); err == nil || !strings.Contains(err.Error(), "3 errors") {
		t.Error(err)
	}
	if _, err := parseSockperf([]byte("sockperf: [Total Run] RunTime=1.001 sec; ReceivedMessages=10\n")); err == nil || !strings.Contains(err.Error(), "0 of 3 percentiles") {
		t.Error(err)
	}
}

func TestListens(t *testing.T) {
	const table = "  sl  local_address rem_address   st\n   0: 00000000:1451 00000000:0000 0A 00000000\n   1: 0100007F:2B67 0100007F:1451 01 00000000\n"
	for port, want := range map[uint16]bool{5201: true, 11111: false, 145: false} {
		if got := listens([]byte(table), port); got != want {
			t.Errorf("port %d: %v", port, got)
		}
	}
}

// Every program runs between a client and a node, in 1 and in 32 flows, and says what it did.
func TestPrivilegedTools(t *testing.T) {
	l := netlab.NewT(t)
	node := netlab.IP4(l.Client().Uplink.Node)
	server, err := traffic.Start(l.Node.NS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	}()
	web := netip.AddrPortFrom(node, 8080)
	if _, err := server.Call(traffic.Request{Op: "serve", Addr: web, Conns: 40}); err != nil {
		t.Fatal(err)
	}
	ends := func(port uint16) Ends {
		return Ends{Client: l.Client().NS, Server: l.Node.NS, Listen: port, Target: netip.AddrPortFrom(node, port)}
	}
	for name, run := range map[string]func() (Result, error){
		"iperf3 1":  func() (Result, error) { return RunIperf3(t.Context(), ends(5201), 1, time.Second) },
		"iperf3 32": func() (Result, error) { return RunIperf3(t.Context(), ends(5201), 32, time.Second) },
		"wrk 1":     func() (Result, error) { return RunWrk(t.Context(), ends(8080), 1, false, time.Second) },
		"wrk 32":    func() (Result, error) { return RunWrk(t.Context(), ends(8080), 32, true, time.Second) },
		"sockperf":  func() (Result, error) { return RunSockperf(t.Context(), ends(11111), time.Second) },
	} {
		r, err := run()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if r.Rate <= 0 || r.Count <= 0 || r.CPU <= 0 || r.P99 < r.P50 || r.P999 < r.P99 {
			t.Errorf("%s: implausible: %+v", name, r)
		}
	}
	if _, err := RunIperf3(t.Context(), Ends{Client: l.Client().NS, Server: l.Node.NS, Listen: 5201, Target: netip.AddrPortFrom(node, 5299)}, 1, time.Second); err == nil || !strings.Contains(err.Error(), "5299") {
		t.Errorf("nobody listens there: %v", err)
	}
	for _, name := range Names() {
		if v, err := Version(t.Context(), name); err != nil || !strings.Contains(v, strings.TrimSuffix(name, "3")) || strings.Contains(v, "\n") {
			t.Errorf("%s: %q (%v)", name, v, err)
		}
	}
	if _, err := Version(t.Context(), "no-such-tool"); err == nil || !strings.Contains(err.Error(), "no-such-tool: not installed") {
		t.Error(err)
	}
}
