// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// killer starts plugins as libcni does and kills one of a chain's processes
// with SIGKILL after a time.
type killer struct {
	invoke.DefaultExec
	victim string        // the plugin to kill, at ADD
	after  time.Duration // how long it may run
	fired  bool
}

func newKiller(victim string, after time.Duration) *killer {
	k := &killer{victim: victim, after: after}
	k.DefaultExec = invoke.DefaultExec{RawExec: &invoke.RawExec{}, PluginDecoder: version.PluginDecoder{}}
	return k
}

func (k *killer) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	if !strings.HasSuffix(path, "/"+k.victim) || !slices.Contains(env, "CNI_COMMAND=ADD") {
		return k.DefaultExec.ExecPlugin(ctx, path, stdin, env)
	}
	var stdout bytes.Buffer
	cmd := exec.Command(path)
	cmd.Stdin, cmd.Stdout, cmd.Env = bytes.NewReader(stdin), &stdout, env
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	timer := time.AfterFunc(k.after, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	timer.Stop()
	if err != nil {
		k.fired = true
		return nil, errors.New("killed")
	}
	return stdout.Bytes(), nil
}

// A plugin that is killed in the middle of ADD leaves nothing that DEL or GC
// cannot find, at whatever moment it dies. The two take turns.
func TestPrivilegedKilledDuringAdd(t *testing.T) {
	t.Parallel()
	for _, victim := range []string{"bridge", "tuning", "portmap", "firewall"} {
		t.Run(victim, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			before := w.Warmup(w.Runtime(fullChain()), somePorts()...)
			killed := 0
			// Up to the time that a whole ADD of the plugin takes here.
			steps := time.Duration(netlab.Fewer(8, 4))
			for after := 200 * time.Microsecond; ; after += after/steps + netlab.Patient(150*time.Microsecond) {
				if !killOnce(t, w, before, victim, []string{"DEL", "GC"}[killed%2], after) {
					break
				}
				killed++
				if after > 10*time.Second {
					t.Fatal("ADD never ends")
				}
			}
			t.Logf("%d kills", killed)
			assertNoAttachments(w)
			// The node still works.
			p := w.AddPod(w.Runtime(fullChain()), "web", somePorts()...)
			e2etest.Serve(t, p, "web", ":80")
			e2etest.AssertHostPort(t, w, "web")
		})
	}
}

// killOnce makes an attachment whose ADD is killed, and cleans up after it. It
// reports whether the plugin was still running when its time was over.
func killOnce(t *testing.T, w *e2etest.World, before netlab.Snapshot, victim, how string, after time.Duration) bool {
	t.Helper()
	k := newKiller(victim, after)
	rt, err := w.Node.CNI(netlab.CNIOptions{Path: []string{e2etest.Programs.Dir}, Conflist: fullChain().Conflist(t), Exec: k})
	if err != nil {
		t.Fatal(err)
	}
	p := w.NewPod(rt, fmt.Sprintf("victim-%d", after.Microseconds()), somePorts()...)
	addErr := p.TryAdd()
	if how == "DEL" || addErr == nil {
		if err := p.TryDel(); err != nil {
			t.Fatalf("DEL after a kill at %s: %v", after, err)
		}
	} else if err := rt.GC(t.Context(), nil); err != nil {
		t.Fatalf("GC after a kill at %s: %v", after, err)
	}
	if d := netlab.DiffSoon(before, w.SyncedSnapshot); d != "" {
		t.Fatalf("killed after %s, then %s: the node differs:\n%s", after, how, d)
	}
	if err := p.Delete(); err != nil {
		t.Fatal(err)
	}
	return k.fired
}
