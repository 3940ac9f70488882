// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseInts(t *testing.T) {
	tests := []struct {
		in   string
		want []int
		ok   bool
	}{
		{"2,250", []int{2, 250}, true},
		{"1", []int{1}, true},
		{"", nil, false},
		{"0", nil, false},
		{"2,", nil, false},
		{"two", nil, false},
		{"2,250,2", nil, false}, // samples of two worlds under one name
	}
	for _, tt := range tests {
		got, err := parseInts(tt.in)
		if d := cmp.Diff(tt.want, got); d != "" || (err == nil) != tt.ok {
			t.Errorf("%q: %v %s", tt.in, err, d)
		}
	}
}

// A peer that a command cannot measure is refused: left out, or measured as another one, it would stand in the report for nothing.
func TestPeersRefused(t *testing.T) {
	for _, tt := range []struct {
		run   func(context.Context, []string) error
		peers string
		want  string
	}{
		{runQuick, "direct,slice", `unknown peer "slice"`},
		{runQuick, "sluice,direct,sluice", `peer "sluice" twice`},
		{runAdd, "reference,sluice-direct", `cannot compare peer "sluice-direct"`},
		{runAdd, "reference,sluice-observed", `cannot compare peer "sluice-observed"`},
		{runChurn, "direct,sluice", `cannot compare peer "direct"`},
		{runProfile, "routed", `cannot compare peer "routed"`},
	} {
		if err := tt.run(t.Context(), []string{"-peers", tt.peers, "-sluice-bin", "nowhere"}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %s", tt.peers, err, tt.want)
		}
	}
}

// What a virtual machine has not, or would not be told, is refused before it boots.
func TestGuestRefused(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"-guest", "6.12"}, "leave it out of -peers"},
		{[]string{"-guest", "6.12", "-peers", "direct,sluice", "-sluice-bin", "bin"}, "-sluice-bin has no effect beside -guest"},
		{[]string{"-guest", "6.12", "-peers", "direct,sluice", "-out", "x.json"}, "-out has no effect beside -guest"},
	} {
		if err := runQuick(t.Context(), tt.args); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %s", tt.args, err, tt.want)
		}
	}
}

// An interrupt may come between two plugins: the next is not started, and that is an error like any other.
func TestTimerInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	timer := &timer{}
	if _, err := timer.ExecPlugin(ctx, "/bin/true", nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	if calls := timer.take(); len(calls) != 0 {
		t.Errorf("%v was never started", calls)
	}
}

// What a flood is for has to happen: a peer that nothing gets through to is no figure of 0.
func TestRate(t *testing.T) {
	if got, err := rate(3e6, 2*time.Second); err != nil || got != 1.5 {
		t.Errorf("got %v (%v), want 1.5 million a second", got, err)
	}
	if got, err := rate(0, time.Second); err == nil {
		t.Errorf("no packet at all: %v", got)
	}
	if got, err := rate(1, 0); err == nil {
		t.Errorf("in no time: %v", got)
	}
}

// What -json prints is JSON and nothing else.
func TestPrivilegedBandwidthJSON(t *testing.T) {
	out, err := printed(t, func() error {
		return runBandwidth(t.Context(), []string{"-json", "-rates", "none", "-reference-bin", t.TempDir()})
	})
	if err == nil || !strings.Contains(err.Error(), `rate "none"`) {
		t.Error(err)
	}
	if out != "" {
		t.Errorf("before the results there is %q", out)
	}
}

// printed returns what f writes to the standard output.
func printed(t *testing.T, f func() error) (string, error) {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	stdout := os.Stdout
	os.Stdout = out
	failed := f()
	os.Stdout = stdout
	text, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(text), failed
}

// Networks of the pods of bench churn are valid, however many there are.
func TestVLANNets(t *testing.T) {
	nets := withVLANs([]string{mixedList("bridge", "", "", 1), mixedList("ptp", "", "", 2), mixedList("macvlan", "", "", 3)}, 800)
	if len(nets) < 800 {
		t.Errorf("%d networks for 800 pods", len(nets))
	}
	vlans := map[float64]bool{}
	for _, text := range nets {
		var list struct {
			Plugins []struct {
				Type   string
				VlanID float64
				IPAM   struct{ Ranges [][]struct{ Subnet string } }
			}
		}
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		p := list.Plugins[0]
		for _, r := range p.IPAM.Ranges {
			if _, err := netip.ParsePrefix(r[0].Subnet); err != nil {
				t.Fatal(err)
			}
		}
		if p.Type == "vlan" && vlans[p.VlanID] {
			t.Errorf("VLAN %v twice", p.VlanID)
		}
		if p.Type == "vlan" {
			vlans[p.VlanID] = true
		}
	}
	if len(vlans) != 200 {
		t.Errorf("%d VLANs, want one for every fourth pod", len(vlans))
	}
}

func TestSummarise(t *testing.T) {
	calls := []call{
		{"bridge", "ADD", 3, 1, 1}, {"bridge", "ADD", 9, 2, 2}, {"bridge", "ADD", 5, 3, 3},
		{"bridge", "DEL", 100, 0, 0}, {"portmap", "ADD", 7, 0, 0},
	}
	want := call{"bridge", "ADD", 5 * time.Nanosecond, 2, 2}
	if d := cmp.Diff(want, summarise(calls, "bridge", "ADD"), cmp.AllowUnexported(call{})); d != "" {
		t.Error(d)
	}
	if got := summarise(calls, "firewall", "ADD").wall; got != 0 {
		t.Errorf("no calls, but %s", got)
	}
}
