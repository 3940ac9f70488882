// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// unreadable makes every read of a file fail as that of a damaged disk does.
func (b *bench) unreadable(name string) {
	b.t.Helper()
	runtime.LockOSThread() // never unlocked: the mount namespace ends with the thread
	path := filepath.Join(b.data, "net", name)
	err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("/proc/self/mem", path, "", unix.MS_BIND, "")) // nothing is mapped at its beginning
	if err != nil {
		b.t.Fatalf("mounts of its own (this test needs root): %v", err)
	}
	b.t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
}

// One file that cannot be read costs its own address, as with upstream, and not the node's pods.
func TestPrivilegedUnreadableReservation(t *testing.T) {
	b := newBench(t, onePool)
	b.put("10.1.0.2", "lost\r\neth0")
	b.put("10.1.0.3", "old\r\neth0")
	b.unreadable("10.1.0.2")
	if got := b.mustAdd("pod"); got[0] != "10.1.0.4/29" {
		t.Errorf("got %v", got)
	}
	_, err := b.add("pod", "eth0")
	wantCode(t, err, 103, "10.1.0.4")
	wantCode(t, b.plugin().Check(context.Background(), b.call("pod", "eth0")), 0)
	wantCode(t, b.plugin().Status(context.Background(), b.call("", "")), 0)
	b.mustDel("old")
	b.mustDel("old") // again: nothing of it is left
	// GC removes what it can, and tells of the one that it cannot judge.
	err = b.plugin().GC(context.Background(), b.call("", "", `,"cni.dev/valid-attachments":[]`))
	wantCode(t, err, 101, "10.1.0.2")
	b.reboot("boot-2", b.node.Booted)
	b.mustAdd("next")
	if err := unix.Unmount(filepath.Join(b.data, "net", "10.1.0.2"), unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"10.1.0.2": "lost\r\neth0", "10.1.0.5": "next\r\neth0", "last_reserved_ip.0": "10.1.0.5"}
	if diff := cmp.Diff(want, b.files()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	b.mustDel("lost") // it can be read again, and no index has forgotten it
	delete(want, "10.1.0.2")
	if diff := cmp.Diff(want, b.files()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
