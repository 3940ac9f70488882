// SPDX-License-Identifier: Apache-2.0

package subject

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/sluice-cni/sluice/bench/traffic"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// TestMain lets the test binary be the agent that a World starts.
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

// Every bridge has the same chain, a network and addresses of its own, and the backend that the suite asks for.
func TestConflist(t *testing.T) {
	for _, masq := range []bool{false, true} {
		for i, want := range []string{"bench", "bench1"} {
			w := &World{Options: Options{Masquerade: masq, Suite: Suite{Tables: "nftables"}}}
			text, err := w.conflist(i)
			if err != nil {
				t.Fatal(err)
			}
			list, err := libcni.NetworkConfFromBytes(text)
			if err != nil {
				t.Fatal(err)
			}
			var chain []string
			for _, p := range list.Plugins {
				chain = append(chain, p.Network.Type)
			}
			if got := strings.Join(append(chain, list.Plugins[0].Network.IPAM.Type), " "); got != "bridge portmap firewall host-local" {
				t.Errorf("chain: %s", got)
			}
			for _, part := range []string{fmt.Sprintf(`"cni%d"`, i), fmt.Sprintf(`"10.%d.0.0/16"`, 88+i), `"ipMasqBackend":"nftables"`, `"backend":"nftables"`, fmt.Sprintf(`"ipMasq":%v`, masq)} {
				if !strings.Contains(string(text), part) {
					t.Errorf("no %s in %s", part, text)
				}
			}
			if list.Name != want {
				t.Errorf("network %q, want %q", list.Name, want)
			}
		}
	}
	if text, err := (&World{}).conflist(0); err != nil || strings.Contains(string(text), "ackend") {
		t.Errorf("%v: no backend was asked for: %s", err, text)
	}
}

func TestSuitesNameWhatIsMissing(t *testing.T) {
	if _, err := ReferenceSuite(t.Context(), t.TempDir(), t.TempDir(), Plugins); err == nil || !strings.Contains(err.Error(), "bridge") {
		t.Errorf("reference without plugins: %v", err)
	}
	if _, err := SluiceSuite(t.Context(), t.TempDir(), t.TempDir(), Plugins); err == nil || !strings.Contains(err.Error(), "make build") {
		t.Errorf("sluice without a binary: %v", err)
	}
}

// fakePlugins are scripts that answer like plugins and do nothing; fail names
// the verb one of them refuses.
func fakePlugins(t *testing.T, fail string) Suite {
	t.Helper()
	dir := t.TempDir()
	script := fmt.Sprintf(`#!/bin/sh
cat >/dev/null
if [ "$CNI_COMMAND" = %q ]; then echo '{"code":11,"msg":"not today"}'; exit 1; fi
[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion":"1.0.0"}'
exit 0
`, fail)
	for _, p := range Plugins {
		if err := os.WriteFile(filepath.Join(dir, p), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return Suite{Name: "fake", BinDir: dir}
}

func TestPrivilegedFailuresEndTheRun(t *testing.T) {
	tests := []struct {
		name, fail, want string
	}{
		{"ADD fails", "ADD", "not today"},
		{"traffic does not pass", "", "first traffic"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w, err := Build(t.Context(), Options{Suite: fakePlugins(t, tt.fail), Pods: 2}, func(int) {})
			if err == nil {
				_ = w.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// The peers without plugins carry all three kinds of traffic.
func TestPrivilegedBare(t *testing.T) {
	for _, name := range bare {
		t.Run(name, func(t *testing.T) {
			if name == Floor || name == FloorLearned {
				require.TCX(t)
			}
			testBare(t, name)
		})
	}
}

func testBare(t *testing.T, name string) {
	w, err := Build(context.Background(), Options{Suite: Suite{Name: name}, Pods: 2}, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	if w.HasChain() {
		t.Error("there are plugins to time")
	}
	if p50, p99, err := w.RR(20 * time.Millisecond); err != nil || p50 <= 0 || p99 < p50 {
		t.Errorf("RR: %v %v %v", p50, p99, err)
	}
	if rate, err := w.CRR(20 * time.Millisecond); err != nil || rate <= 0 {
		t.Errorf("CRR: %v %v", rate, err)
	}
	if rate, err := w.Stream(time.Second); err != nil || rate <= 0 {
		t.Errorf("stream: %v %v", rate, err)
	}
}
