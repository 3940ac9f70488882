// SPDX-License-Identifier: Apache-2.0

package attachments

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A full file system stops ADDs, but not the DELs that would make room.
func TestPrivilegedRemoveFullDisk(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the mount namespace ends with the thread
	if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
		t.Fatalf("mounts of its own (this test needs root): %v", err)
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	d := Open(filepath.Join(dir, "attachments"))
	ref := ID{Network: "net", ContainerID: "pod1", IfName: "eth0"}
	for _, plugin := range []string{"bridge", "portmap", "firewall"} {
		if err := d.Complete(ref, plugin, plugin); err != nil {
			t.Fatal(err)
		}
	}
	fill := filepath.Join(dir, "fill")
	if err := os.WriteFile(fill, []byte(strings.Repeat("x", 1<<17)), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill the file system: %v", err)
	}
	if err := d.Complete(ref, "tuning", "tuning"); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a new section in a full file system: %v", err)
	}
	for _, step := range []struct{ plugin, left string }{{"firewall", "portmap"}, {"portmap", "bridge"}, {"bridge", ""}} {
		if err := Open(d.Path()).Remove(ref, step.plugin); err != nil {
			t.Errorf("remove %s: %v", step.plugin, err)
		}
		rec, err := d.Load(ref)
		if step.left == "" {
			if !errors.Is(err, ErrNotExist) {
				t.Errorf("after the last: %+v, %v", rec, err)
			}
			break
		}
		if err != nil || rec.Corrupt {
			t.Fatalf("without %s: %+v, %v", step.plugin, rec, err)
		}
		if has, err := rec.Section(step.plugin, nil); has || err != nil {
			t.Errorf("%s is still there: %v", step.plugin, err)
		}
		var data string
		if has, err := rec.Section(step.left, &data); !has || err != nil || data != step.left {
			t.Errorf("%s: %t %q %v", step.left, has, data, err)
		}
	}
	// With room again, the file is written as before.
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	if err := d.Complete(ref, "bridge", "bridge"); err != nil {
		t.Error(err)
	}
}
