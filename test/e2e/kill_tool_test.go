// SPDX-License-Identifier: Apache-2.0

package e2e

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
	if !strings.HasSuffix(path, "/"+s.victim) || !has(env, "CNI_COMMAND=ADD") {
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
func (w *world) killedWhileToolWaits(n network, slow *slowTool, ports ...mapping) netlab.Snapshot {
	w.t.Helper()
	rt, err := w.Node.CNI(netlab.CNIOptions{Path: []string{programs.Dir}, Conflist: n.conflist(w.t), Exec: slow})
	if err != nil {
		w.t.Fatal(err)
	}
	p := w.newPod(rt, "a", ports...)
	if err := p.tryAdd(); err == nil || !slow.has("waits") {
		w.t.Fatalf("ADD was not killed while its tool was waiting: %v", err)
	}
	deleted := make(chan error, 1)
	go func() { deleted <- p.tryDel() }()
	time.Sleep(netlab.Patient(500 * time.Millisecond)) // DEL does all that it does without the tool
	if err := os.WriteFile(filepath.Join(slow.dir, "go"), nil, 0o644); err != nil {
		w.t.Fatal(err)
	}
	if err := <-deleted; err != nil {
		w.t.Errorf("DEL: %v", err)
	}
	eventually(w.t, 10*time.Second, func() error {
		if !slow.has("done") {
			return errors.New("the tool has not ended")
		}
		return nil
	})
	return rules(w.snapshot())
}

// A tool that a killed plugin has started goes on without it. DEL must not pass it: what the tool writes after that nobody would
// remove, and the port would lead to whoever has the address next.
func TestPrivilegedKilledWhileAToolWaits(t *testing.T) {
	t.Parallel()
	tools := map[string]string{"nftables": "nft", "iptables-nft": "iptables-nft-restore", "iptables-legacy": "iptables-legacy-restore"}
	for _, b := range netfilterBackends() {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.use(b)
			n := network{noMasq: true, plugins: []string{"portmap"}}
			if left := w.killedWhileToolWaits(n, newSlowTool(t, tools[b.name], "portmap"), tcp(8080, 80)).Grep("8080"); len(left) > 0 {
				t.Errorf("after DEL there is:\n%s", left)
			}
		})
	}
	t.Run("macspoofchk", func(t *testing.T) {
		t.Parallel()
		require.NFTFamily(t, "bridge")
		w := newWorld(t)
		n := network{noMasq: true, plugins: []string{}, extra: attributes{"macspoofchk": true}}
		if left := w.killedWhileToolWaits(n, newSlowTool(t, "nft", "bridge")).Grep("cni-br-iface-"); len(left) > 0 {
			t.Errorf("after DEL there is:\n%s", left)
		}
	})
}
