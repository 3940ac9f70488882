// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// A node whose only uplink has gone for a while lives: another namespace on the same bpffs leaves its tree alone.
func TestPrivilegedGCNamespaceWithoutUplink(t *testing.T) {
	require.TCX(t)
	e := newEnv(t)
	e.uplink()
	first := e.open()
	e.ok(first.Enable(e.ctx, e.pod("pod1", "10.1.0.2/16"), FeaturePublish))
	runs := exec.Command("sleep", "60")
	e.ok(runs.Start())
	t.Cleanup(func() {
		_ = runs.Process.Kill()
		_ = runs.Wait()
	})
	e.ip("link", "del", "eth0")
	e.ok(unix.Unshare(unix.CLONE_NEWNET))
	e.netlink()
	e.uplink()
	second := e.open()
	e.ok(second.GC(e.ctx, func(uint64) bool { return true }))
	if !pintree.Exists(first.tree.Paths.MapPin(pintree.MapEndpoints)) {
		t.Errorf("the tree of a living namespace is gone")
	}
}
