// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/require"
)

// mustNew makes a network namespace that lives as long as its descriptor.
func mustNew(t testing.TB) *NS {
	t.Helper()
	type res struct {
		n   *NS
		err error
	}
	ch := make(chan res)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			ch <- res{nil, err}
			return
		}
		n, err := Current()
		ch <- res{n, err}
	}()
	r := <-ch
	if r.err != nil {
		t.Fatalf("make a network namespace (root needed): %v", r.err)
	}
	t.Cleanup(r.n.Close)
	return r.n
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, path string
		want       error
	}{
		{"nothing there", filepath.Join(dir, "gone"), ErrNotExist},
		{"file as directory", plain + "/ns", ErrNotExist},
		{"empty path", "", ErrNotExist},
		{"process gone", "/proc/2147483646/ns/net", ErrNotExist},
		{"plain file", plain, ErrNotNS},
		{"directory", dir, ErrNotNS},
		{"fifo does not block", fifo, ErrNotNS},
		{"mount namespace", "/proc/self/ns/mnt", ErrNotNS},
		{"proc file", "/proc/self/status", ErrNotNS},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n, err := Open(tt.path)
			if !errors.Is(err, tt.want) {
				t.Fatalf("Open(%q) = %v, %v; want an error that wraps %q", tt.path, n, err, tt.want)
			}
		})
	}
}

func TestReopen(t *testing.T) {
	require.NamespaceType(t)
	dir := t.TempDir()
	loop := filepath.Join(dir, "loop")
	if err := os.Symlink(loop, loop); err != nil {
		t.Fatal(err)
	}
	here, err := Current()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	const self = "/proc/self/ns/net"
	tests := []struct {
		name       string
		inode      uint64
		paths      []string
		found, err bool
	}{
		{name: "no path"},
		{name: "gone", paths: []string{"", filepath.Join(dir, "gone"), "/proc/self/status"}},
		{name: "second", paths: []string{filepath.Join(dir, "gone"), self}, found: true},
		{name: "known", inode: here.Inode(), paths: []string{self}, found: true},
		{name: "another by now", inode: here.Inode() + 1, paths: []string{self}},
		{name: "cannot be opened", paths: []string{loop, self}, err: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n, err := Reopen(tt.inode, tt.paths...)
			if n != nil {
				n.Close()
			}
			if (n != nil) != tt.found || (err != nil) != tt.err {
				t.Errorf("%v, %v", n, err)
			}
		})
	}
}

func TestCurrentIsSame(t *testing.T) {
	require.NamespaceType(t)
	a, err := Current()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if same, err := Same(a, b); err != nil || !same {
		t.Fatalf("Same = %v, %v; want true", same, err)
	}
	if a.Inode() == 0 || a.Fd() < 0 || b.Path() != "/proc/self/ns/net" {
		t.Fatalf("odd accessors: %+v %+v", a, b)
	}
	a.Close() // twice is fine
}

func TestSameNil(t *testing.T) {
	if _, err := Same(nil, nil); err == nil {
		t.Fatal("Same(nil, nil) gave no error")
	}
}

func TestPrivilegedDo(t *testing.T) {
	n := mustNew(t)
	before, err := Current()
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	err = n.Do(func() error {
		in, err := Current()
		if err != nil {
			return err
		}
		defer in.Close()
		if same, _ := Same(in, n); !same {
			return errors.New("not inside the namespace")
		}
		ifs, err := net.Interfaces()
		if err != nil {
			return err
		}
		if len(ifs) != 1 || ifs[0].Name != "lo" {
			return fmt.Errorf("unexpected interfaces %v", ifs)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 50 { // every thread the runtime may pick must be where it was
		after, err := Current()
		if err != nil {
			t.Fatal(err)
		}
		if same, _ := Same(before, after); !same {
			t.Fatal("a thread stayed inside the namespace")
		}
		after.Close()
	}
}

func TestPrivilegedDoErrorAndPanic(t *testing.T) {
	n := mustNew(t)
	want := errors.New("mine")
	if err := n.Do(func() error { return want }); !errors.Is(err, want) {
		t.Fatalf("Do = %v, want %v", err, want)
	}
	defer func() {
		if r := recover(); r != "boom" {
			t.Fatalf("recovered %v, want boom", r)
		}
	}()
	_ = n.Do(func() error { panic("boom") })
	t.Fatal("the panic was lost")
}

func TestPrivilegedDoAfterClose(t *testing.T) {
	n := mustNew(t)
	n.Close()
	ran := false
	if err := n.Do(func() error { ran = true; return nil }); err == nil || ran {
		t.Fatalf("Do on a closed namespace: err %v, ran %v", err, ran)
	}
}

func BenchmarkPrivilegedDo(b *testing.B) {
	n := mustNew(b)
	for b.Loop() {
		if err := n.Do(func() error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}
