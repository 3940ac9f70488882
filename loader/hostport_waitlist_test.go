// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
)

// A run directory that is full stops who takes a port over, but not those that give theirs up: they are what makes room.
func TestPrivilegedComesBackFullDisk(t *testing.T) {
	e := newEnv(t)
	e.ok(os.MkdirAll(e.o.RunDir, 0o755))
	e.ok(unix.Mount("tmpfs", e.o.RunDir, "tmpfs", 0, "size=64k,mode=755"))
	t.Cleanup(func() { _ = unix.Unmount(e.o.RunDir, unix.MNT_DETACH) })
	d := e.open()
	var owners []uint64
	publish := func(i int) error {
		addr := fmt.Sprintf("10.1.0.%d", i+2)
		ep := e.pod(fmt.Sprint("pod", i), addr+"/16")
		e.ok(d.Enable(e.ctx, ep, FeaturePublish))
		owners = append(owners, ep.Ref.Owner())
		return d.SetHostPorts(e.ctx, ep.Ref.Owner(), nil, []hostport.Mapping{port(8080, addr, 80)})
	}
	const first, second, third, fourth = 0, 1, 2, 3
	for i := range fourth {
		e.ok(publish(i))
	}
	fill := filepath.Join(e.o.RunDir, "fill")
	if err := os.WriteFile(fill, []byte(strings.Repeat("x", 1<<17)), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill the file system: %v", err)
	}
	if err := publish(fourth); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a takeover in a full file system: %v", err)
	}
	for _, step := range []struct{ gives, has int }{{third, second}, {second, first}} {
		if err := d.RemoveHostPorts(e.ctx, owners[step.gives], nil); err != nil {
			t.Errorf("DEL of %d: %v", step.gives, err)
		}
		if got := e.published(d)[8080].Owner; got != owners[step.has] {
			t.Errorf("held by %x, want %x", got, owners[step.has])
		}
	}
	e.ok(d.RemoveHostPorts(e.ctx, owners[first], nil))
	if left := e.published(d); len(left) != 0 || pintree.Exists(d.tree.Paths.Waiting) {
		t.Errorf("left: %+v, and who waits: %t", left, pintree.Exists(d.tree.Paths.Waiting))
	}
}
