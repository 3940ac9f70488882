// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// slowTool is a netfilter tool that waits before it changes anything, as for a lock or on a node with many rules. It kills the plugin that
// has started it once it waits.
type slowTool struct {
	invoke.DefaultExec
	dir, victim string
}

// newSlowTool puts a script in front of the tool, for the victim's ADD.
func newSlowTool(t *testing.T, tool, victim string) *slowTool {
	t.Helper()
	path, err := exec.LookPath(tool)
	if err != nil {
		t.Fatal(err)
	}
	s := &slowTool{dir: t.TempDir(), victim: victim}
	s.DefaultExec = invoke.DefaultExec{RawExec: &invoke.RawExec{}, PluginDecoder: version.PluginDecoder{}}
	script := fmt.Sprintf(`#!/bin/sh
case "$*" in
*--noflush*|*"-f -") touch %[1]s/waits; while [ ! -e %[1]s/go ]; do sleep 0.02; done; %[2]s "$@"; touch %[1]s/done;;
*) exec %[2]s "$@";;
esac
`, s.dir, path)
	if err := os.WriteFile(filepath.Join(s.dir, tool), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *slowTool) has(file string) bool {
	_, err := os.Stat(filepath.Join(s.dir, file))
	return err == nil
}

// ExecPlugin kills the victim in ADD when its tool waits.
func (s *slowTool) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	if !strings.HasSuffix(path, "/"+s.victim) || !slices.Contains(env, "CNI_COMMAND=ADD") {
		return s.DefaultExec.ExecPlugin(ctx, path, stdin, env)
	}
	cmd := exec.CommandContext(ctx, path)
	cmd.Stdin, cmd.Env = bytes.NewReader(stdin), append(slices.Clone(env), "PATH="+s.dir+":"+os.Getenv("PATH"))
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	for !s.has("waits") && ctx.Err() == nil {
		time.Sleep(5 * time.Millisecond)
	}
	return nil, errors.Join(errors.New("killed"), cmd.Process.Kill(), cmd.Wait())
}

// killedWhileToolWaits kills ADD, lets DEL begin and then the tool go on, and returns what nftables and iptables hold when both have ended.
func killedWhileToolWaits(w *e2etest.World, n e2etest.Network, slow *slowTool, ports ...e2etest.PortMapping) netlab.Snapshot {
	w.T.Helper()
	rt, err := w.Node.CNI(netlab.CNIOptions{Path: []string{e2etest.Programs.Dir}, Conflist: n.Conflist(w.T), Exec: slow})
	if err != nil {
		w.T.Fatal(err)
	}
	p := w.NewPod(rt, "a", ports...)
	if err := p.TryAdd(); err == nil || !slow.has("waits") {
		w.T.Fatalf("ADD was not killed while its tool was waiting: %v", err)
	}
	deleted := make(chan error, 1)
	go func() { deleted <- p.TryDel() }()
	time.Sleep(netlab.Patient(500 * time.Millisecond)) // DEL does all that it does without the tool
	if err := os.WriteFile(filepath.Join(slow.dir, "go"), nil, 0o644); err != nil {
		w.T.Fatal(err)
	}
	if err := <-deleted; err != nil {
		w.T.Errorf("DEL: %v", err)
	}
	e2etest.Eventually(w.T, 10*time.Second, func() error {
		if !slow.has("done") {
			return errors.New("the tool has not ended")
		}
		return nil
	})
	return e2etest.NetfilterRules(w.Snapshot())
}

// A tool that a killed plugin has started goes on without it. DEL must not pass it: what the tool writes after that no verb would
// remove, and the port would lead to the next pod that has the address.
func TestPrivilegedKilledWhileAToolWaits(t *testing.T) {
	t.Parallel()
	tools := map[string]string{"nftables": "nft", "iptables-nft": "iptables-nft-restore", "iptables-legacy": "iptables-legacy-restore"}
	for _, b := range e2etest.NetfilterBackends() {
		t.Run(b.Name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			w.SetBackend(b)
			n := e2etest.Network{NoMasq: true, Plugins: []string{"portmap"}}
			if left := killedWhileToolWaits(w, n, newSlowTool(t, tools[b.Name], "portmap"), e2etest.TCP(8080, 80)).Grep("8080"); len(left) > 0 {
				t.Errorf("after DEL there is:\n%s", left)
			}
		})
	}
	t.Run("macspoofchk", func(t *testing.T) {
		t.Parallel()
		require.NFTFamily(t, "bridge")
		w := e2etest.NewWorld(t)
		w.SetBackend(e2etest.NetfilterBackends()[0])
		n := e2etest.Network{NoMasq: true, Plugins: []string{}, Extra: e2etest.Attributes{"macspoofchk": true}}
		if left := killedWhileToolWaits(w, n, newSlowTool(t, "nft", "bridge")).Grep("cni-br-iface-"); len(left) > 0 {
			t.Errorf("after DEL there is:\n%s", left)
		}
	})
}
