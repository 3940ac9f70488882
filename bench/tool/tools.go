// SPDX-License-Identifier: Apache-2.0

package tool

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

// Iperf3Line is the command of the client.
func Iperf3Line(to netip.AddrPort, flows int, d time.Duration) []string {
	return []string{Iperf3, "-c", to.Addr().String(), "-p", fmt.Sprint(to.Port()), "-t", seconds(d), "-P", fmt.Sprint(flows), "-C", "cubic", "-J"}
}

// RunIperf3 sends TCP streams from the client to the server.
func RunIperf3(ctx context.Context, e Ends, flows int, d time.Duration) (r Result, err error) {
	server := []string{Iperf3, "-s", "-1", "-p", fmt.Sprint(e.Listen)}
	cpu, err := withServer(ctx, e, server, func() error {
		r, err = run(ctx, e.Client, d, Iperf3Line(e.Target, flows, d), parseIperf3)
		return err
	})
	r.CPU += cpu
	return r, err
}

func parseIperf3(out []byte) (Result, error) {
	var report struct {
		Error string `json:"error"`
		End   struct {
			Received struct {
				Bytes float64 `json:"bytes"`
				Rate  float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return Result{}, fmt.Errorf("iperf3: no JSON: %w", err)
	}
	if report.Error != "" {
		return Result{}, fmt.Errorf("iperf3: %s", report.Error)
	}
	got := report.End.Received
	if got.Bytes <= 0 || got.Rate <= 0 {
		return Result{}, errors.New("iperf3: nothing was received")
	}
	return Result{Rate: got.Rate, Count: got.Bytes}, nil
}

// WrkScript prints what wrk's own output lacks: the 99.9th percentile, and errors of each kind.
const WrkScript = `done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('\nsluice {"requests":%d,"us":%d,"p50":%d,"p99":%d,"p999":%d,"errors":%d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99), latency:percentile(99.9),
    e.connect + e.read + e.write + e.status + e.timeout))
end
`

// WrkLine is the command. script is the path of a file with WrkScript.
func WrkLine(to netip.AddrPort, flows int, again bool, d time.Duration, script string) []string {
	line := []string{Wrk, "-t", fmt.Sprint(min(2, flows)), "-c", fmt.Sprint(flows), "-d", seconds(d) + "s", "-s", script}
	if again {
		line = append(line, "-H", "Connection: close")
	}
	return append(line, fmt.Sprintf("http://%s/", to))
}

// RunWrk asks an HTTP server that is there already. again makes a connection for each request.
func RunWrk(ctx context.Context, e Ends, flows int, again bool, d time.Duration) (Result, error) {
	dir, err := os.MkdirTemp("", "sluice-wrk-")
	if err != nil {
		return Result{}, err
	}
	defer os.RemoveAll(dir)
	script := filepath.Join(dir, "report.lua")
	if err := os.WriteFile(script, []byte(WrkScript), 0o600); err != nil {
		return Result{}, err
	}
	return run(ctx, e.Client, d, WrkLine(e.Target, flows, again, d, script), parseWrk)
}

func parseWrk(out []byte) (Result, error) {
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		text, ok := bytes.CutPrefix(s.Bytes(), []byte("sluice "))
		if !ok {
			continue
		}
		var got struct {
			Requests, US, Errors float64
			P50, P99, P999       int64 // us
		}
		if err := json.Unmarshal(text, &got); err != nil {
			return Result{}, fmt.Errorf("wrk: %q: %w", text, err)
		}
		if got.Errors > 0 || got.Requests <= 0 || got.US <= 0 {
			return Result{}, fmt.Errorf("wrk: %.0f requests in %.0f us, %.0f errors", got.Requests, got.US, got.Errors)
		}
		us := func(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
		return Result{Rate: got.Requests / got.US * 1e6, Count: got.Requests, P50: us(got.P50), P99: us(got.P99), P999: us(got.P999)}, nil
	}
	return Result{}, fmt.Errorf("wrk: no summary in %q", out)
}

// SockperfLine is the command of the client.
func SockperfLine(to netip.AddrPort, d time.Duration) []string {
	return []string{Sockperf, "ping-pong", "--tcp", "--full-rtt", "-i", to.Addr().String(), "-p", fmt.Sprint(to.Port()), "-t", seconds(d)}
}

// RunSockperf has one TCP connection ask and answer, 14 bytes each.
func RunSockperf(ctx context.Context, e Ends, d time.Duration) (r Result, err error) {
	server := []string{Sockperf, "server", "--tcp", "-i", "0.0.0.0", "-p", fmt.Sprint(e.Listen)}
	cpu, err := withServer(ctx, e, server, func() error {
		r, err = run(ctx, e.Client, d, SockperfLine(e.Target, d), parseSockperf)
		return err
	})
	r.CPU += cpu
	return r, err
}

var (
	sockperfColour  = regexp.MustCompile("\x1b\\[[0-9;]*m")
	sockperfTotal   = regexp.MustCompile(`(?m)^sockperf: \[Total Run\] RunTime=([0-9.]+) sec;.* ReceivedMessages=(\d+)`)
	sockperfPercent = regexp.MustCompile(`(?m)percentile ([0-9.]+) =\s*([0-9.]+)`)
)

func parseSockperf(out []byte) (Result, error) {
	out = sockperfColour.ReplaceAll(out, nil)
	total := sockperfTotal.FindSubmatch(out)
	if total == nil {
		return Result{}, fmt.Errorf("sockperf: no total in %q", out)
	}
	took, err := strconv.ParseFloat(string(total[1]), 64)
	if err != nil {
		return Result{}, fmt.Errorf("sockperf: RunTime: %w", err)
	}
	count, err := strconv.ParseFloat(string(total[2]), 64)
	if err != nil || count <= 0 || took <= 0 {
		return Result{}, fmt.Errorf("sockperf: %s messages in %s s", total[2], total[1])
	}
	r := Result{Count: count, Rate: count / took}
	found := 0
	for _, m := range sockperfPercent.FindAllSubmatch(out, -1) {
		into := map[string]*time.Duration{"50.000": &r.P50, "99.000": &r.P99, "99.900": &r.P999}[string(m[1])]
		if into == nil {
			continue
		}
		us, err := strconv.ParseFloat(string(m[2]), 64)
		if err != nil {
			return Result{}, fmt.Errorf("sockperf: percentile %s: %w", m[1], err)
		}
		*into = time.Duration(us * 1e3)
		found++
	}
	if found != 3 {
		return Result{}, fmt.Errorf("sockperf: %d of 3 percentiles in %q", found, out)
	}
	return r, nil
}
