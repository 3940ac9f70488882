// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/bench/report"
	"github.com/sluice-cni/sluice/bench/subject"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// "bench add" times ADD and DEL of every plugin that this kernel has devices for.
// Where upstream's plugins lie beside it, it times them too: that is how
// "bench add -guest" runs.
func TestPrivilegedAdd(t *testing.T) {
	bin, err := testbin.Build()
	if err != nil {
		t.Fatal(err)
	}
	defer bin.Close()
	out := filepath.Join(t.TempDir(), "add.json")
	args := []string{"-peers", subject.Sluice, "-cycles", "1"}
	if _, err := os.Stat(guestReference); err == nil {
		args = []string{"-reference-bin", guestReference, "-cycles", "15"}
	}
	if err := runAdd(t.Context(), append(args, "-sluice-bin", bin.Dir, "-out", out)); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var rows []report.Row
	if err := json.Unmarshal(raw, &rows); err != nil {
		t.Fatal(err)
	}
	for _, plugin := range []string{"bridge", "ptp", "host-device"} { // they need nothing but veths
		for _, m := range report.Verbs {
			if !slices.ContainsFunc(rows, func(r report.Row) bool {
				return r.Scenario == plugin && r.Peer == subject.Sluice && r.Metric == m.Name && r.Value > 0
			}) {
				t.Errorf("no %s of %s in %s", m.Name, plugin, raw)
			}
		}
	}
}

// The figures are those of a node with so many pods.
func TestPrivilegedAddPods(t *testing.T) {
	bin, err := testbin.Build()
	if err != nil {
		t.Fatal(err)
	}
	defer bin.Close()
	out := filepath.Join(t.TempDir(), "add.json")
	if err := runAdd(t.Context(), []string{"-peers", subject.Sluice, "-sluice-bin", bin.Dir, "-plugins", "ptp", "-cycles", "1", "-pods", "1,3", "-out", out}); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"pods": 1,`, `"pods": 3,`} {
		if !strings.Contains(string(raw), want) {
			t.Errorf("no %s in %s", want, raw)
		}
	}
	if err := runAdd(t.Context(), []string{"-plugins", "ptp,host-device", "-pods", "3"}); err == nil || !strings.Contains(err.Error(), "host-device") {
		t.Errorf("three pods and one device: %v", err)
	}
}

// More pods than a bridge has room for are on several, with addresses of their own.
func TestNetworksOfManyPods(t *testing.T) {
	chain := fullChains()[0]
	if got := chain.perNetwork(); got != subject.BridgePods {
		t.Errorf("%d pods on a bridge, want %d", got, subject.BridgePods)
	}
	for n, want := range []string{`"bridge":"cni0"`, `"bridge":"cni1"`} {
		list, err := chain.conflist(n, true)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{want, fmt.Sprintf("10.%d.0.0/16", n+1), fmt.Sprintf("fd00:10:%d::/64", n+1)} {
			if !strings.Contains(string(list), want) {
				t.Errorf("network %d: no %s in %s", n, want, list)
			}
		}
	}
}

// A name that no plugin has is an error, not a run of nothing.
func TestAddUnknownPlugin(t *testing.T) {
	out := filepath.Join(t.TempDir(), "add.json")
	err := runAdd(t.Context(), []string{"-peers", subject.Sluice, "-plugins", "ptp,birdge", "-out", out})
	if err == nil || !strings.Contains(err.Error(), `"birdge"`) {
		t.Error(err)
	}
}

// Beside no reference there is nothing to compare a move with.
func TestWriteMoveAlone(t *testing.T) {
	a := &adds{}
	a.run.Add("host-device", oneMove, 1, report.Add, 14.4)
	var out strings.Builder
	if err := a.writeMove(&out, interfacePlugin{name: "host-device"}); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); !strings.Contains(got, "14.4 ms") || strings.Contains(got, "reference") {
		t.Error(got)
	}
	a.run.Add("host-device", subject.Reference, 1, report.Add, 28.8)
	if err := a.writeMove(&out, interfacePlugin{name: "host-device"}); err != nil || !strings.Contains(out.String(), "0.50x the reference's ADD") {
		t.Error(err, out.String())
	}
}

// A flag that would be lost on the way into a machine is refused. Without upstream there is none.
func TestAddGuestFlags(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want []string
	}{
		{[]string{"-plugins", "vlan", "-cycles", "3"}, []string{"-plugins", "-cycles", "-peers sluice"}},
		{[]string{"-peers", subject.Sluice, "-sluice-bin", "bin"}, []string{"-sluice-bin"}},
	} {
		err := runAdd(t.Context(), append(tc.args, "-guest", "6.12"))
		for _, want := range tc.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want %s", tc.args, err, want)
			}
		}
	}
	f := flag.NewFlagSet("", flag.ContinueOnError)
	f.String("plugins", "", "")
	f.String("guest", "", "")
	if err := f.Parse([]string{"-guest", "6.12", "-plugins", "ptp,tap"}); err != nil {
		t.Fatal(err)
	}
	line, err := commandLine("add", f)
	if got := strings.Join(line, " "); err != nil || got != "add -sluice-bin /sluice/bin -out /tmp/out.json -plugins='ptp,tap'" {
		t.Error(got, err)
	}
}
