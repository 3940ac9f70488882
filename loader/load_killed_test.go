// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/internal/programs"
)

// A process killed at any moment of its first load leaves what the next one repairs.
func TestPrivilegedKillWhileLoading(t *testing.T) {
	const seed, rounds = 7, 12
	random := rand.New(rand.NewPCG(seed, seed))
	e := newEnv(t)
	e.uplink()
	e.ok(os.MkdirAll(e.o.RunDir, 0o700))
	for range rounds {
		cmd := exec.Command(os.Args[0], "-test.run=^TestPrivilegedParallelOpen$")
		cmd.Env = append(os.Environ(), openerEnv+"="+filepath.Dir(e.o.RunDir))
		e.ok(cmd.Start())
		time.Sleep(time.Duration(random.IntN(150)) * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	d := e.open()
	e.ok(d.Enable(e.ctx, e.pod("pod1", "10.1.0.2/16"), FeaturePublish))
	k, err := programs.ConstantsOf(d.tree)
	e.ok(err)
	if diff := cmp.Diff([]string{pintree.BuildPrefix + k.Build()}, mustNames(t, d.tree.Paths.Progs())); diff != "" {
		t.Errorf("seed %d, programs: %s", seed, diff)
	}
	if got := hooksOf(e, d, e.index("eth0")); len(got) != 2 {
		t.Errorf("seed %d, uplink: %v", seed, got)
	}
	e.ok(d.Unload(e.ctx))
	if left := pins(e); len(left) != 0 {
		t.Errorf("seed %d, pins left: %v", seed, left)
	}
}
