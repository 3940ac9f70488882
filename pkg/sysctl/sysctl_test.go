// SPDX-License-Identifier: Apache-2.0

package sysctl

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPath(t *testing.T) {
	t.Parallel()
	tests := []struct {
		key, want string
	}{
		{"net/ipv4/ip_forward", "/proc/sys/net/ipv4/ip_forward"},
		{"net/ipv4/conf/eth0.1/rp_filter", "/proc/sys/net/ipv4/conf/eth0.1/rp_filter"},
		{"../self/mem", ""},
		{"net/../../self", ""},
		{"", ""},
		{"..", ""},
	}
	for _, tc := range tests {
		got, err := Path(tc.key)
		if got != tc.want || (err != nil) != (tc.want == "") {
			t.Errorf("Path(%q) = %q, %v; want %q", tc.key, got, err, tc.want)
		}
	}
}

func TestEqual(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		a, b string
		want bool
	}{
		{"1", "1", true}, {"1\n", " 1", true}, {"4096\t87380\t6291456", "4096 87380 6291456", true},
		{"1", "01", false}, {"1 2", "1", false}, {"", "", true},
	} {
		if got := Equal(tc.a, tc.b); got != tc.want {
			t.Errorf("Equal(%q, %q) = %t", tc.a, tc.b, got)
		}
	}
}

func TestGetMissing(t *testing.T) {
	t.Parallel()
	if _, err := Get("net/no/such/key"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("err = %v, want fs.ErrNotExist", err)
	}
	for name, set := range map[string]func(key, value string) error{"Set": Set, "Apply": Apply} {
		if err := set("net/no/such/key", "1"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: err = %v, want fs.ErrNotExist", name, err)
		}
	}
}

func TestPrivilegedSet(t *testing.T) {
	t.Parallel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Never unlocked: the thread of the new namespace dies with the goroutine.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("unshare: %v", err)
			return
		}
		const key, readOnly = "net/ipv4/ip_forward", "kernel/osrelease"
		for _, v := range []string{"1", "1", "0"} {
			if err := Set(key, v); err != nil {
				t.Errorf("Set(%s): %v", v, err)
			}
			if got, err := Get(key); err != nil || got != v {
				t.Errorf("Get = %q, %v; want %q", got, err, v)
			}
		}
		if err := Set(key, "bogus"); err == nil {
			t.Error("the kernel took a bogus value")
		}
		if err := Apply(key, "bogus"); err == nil {
			t.Error("the kernel took a bogus value")
		}
		if err := errors.Join(Set("net/ipv4/route/flush", "1"), Apply("net/ipv4/route/flush", "1")); err != nil {
			t.Errorf("a key that can only be written: %v", err)
		}
		if has, err := Get(readOnly); err != nil || Apply(readOnly, has) != nil || Apply(readOnly, has+"1") == nil {
			t.Errorf("a key that can only be read: %q, %v; its own value is fine, another is not", has, err)
		}
		d, err := OpenDir("net/ipv4")
		if err != nil {
			t.Error(err)
			return
		}
		defer d.Close()
		for _, v := range []string{"1", "0"} {
			if err := Set(key, v); err != nil {
				t.Error(err)
			}
			if got, err := d.Get("ip_forward"); err != nil || got != v {
				t.Errorf("Get in the directory = %q, %v; want %q", got, err, v)
			}
		}
		if _, err := d.Get("no_such_key"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("err = %v, want fs.ErrNotExist", err)
		}
	}()
	<-done
}

// A container's keys are read-only. Those of the network are written where the node agent's container has them again; others are not.
func TestPrivilegedSetInContainer(t *testing.T) {
	t.Parallel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Never unlocked: the thread of the new namespaces dies with the goroutine.
		runtime.LockOSThread()
		const key, value = "net/ipv4/ip_forward", "1"
		for _, err := range []error{
			unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("tmpfs", "/run", "tmpfs", 0, ""), Set(key, "0"), os.MkdirAll(HostNet, 0o755),
			unix.Mount(Root, Root, "", unix.MS_BIND, ""), unix.Mount("", Root, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""),
		} {
			if err != nil {
				t.Error(err)
				return
			}
		}
		for name, set := range map[string]func(key, value string) error{"Set": Set, "Apply": Apply} {
			if err := set(key, value); !errors.Is(err, unix.EROFS) {
				t.Errorf("%s without a place for it: %v", name, err)
			}
		}
		// The mount above is read-only, what it covers is not: as a runtime mounts the node's directory.
		if err := bindCovered(HostNet); err != nil {
			t.Error(err)
			return
		}
		if err := Set(key, value); err != nil {
			t.Error(err)
		}
		if got, err := Get(key); err != nil || got != value {
			t.Errorf("%q, %v", got, err)
		}
		if err := Set("kernel/hostname", "x"); !errors.Is(err, unix.EROFS) {
			t.Errorf("a key that is none of the network: %v", err)
		}
	}()
	<-done
}

// bindCovered mounts a proc file system anew and binds its net keys to dir.
func bindCovered(dir string) error {
	const proc = "/run/proc"
	return errors.Join(os.Mkdir(proc, 0o755), unix.Mount("proc", proc, "proc", 0, ""), unix.Mount(proc+"/sys/net", dir, "", unix.MS_BIND, ""))
}
