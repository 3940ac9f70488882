// SPDX-License-Identifier: Apache-2.0

package bpfsys_test

import (
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/test/cgroup"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// The main thread stays with the main goroutine: it must never end up in the namespaces of a test.
func init() { runtime.LockOSThread() } //nolint:gochecknoinits // there is no earlier place

func TestMain(m *testing.M) {
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	_ = unix.Prlimit(0, unix.RLIMIT_MEMLOCK, &unlimited, nil) // maps and programs are charged to it before Linux 5.11
	os.Exit(m.Run())
}

// newBPFFS moves the calling goroutine into a network and a mount namespace of its own and returns the directory of a fresh bpffs.
// They live as long as the test's goroutine, which is locked to its thread; no subtests inside.
func newBPFFS(t testing.TB) string {
	t.Helper()
	if _, err := cgroup.Join(); err != nil { // its watcher must not keep the namespace below
		t.Fatal(err)
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and the namespaces with the thread
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		t.Fatalf("unshare (these tests need root): %v", err)
	}
	ok(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	dir := filepath.Join(t.TempDir(), "bpf")
	ok(t, os.Mkdir(dir, 0o700))
	ok(t, unix.Mount("bpf", dir, "bpf", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// veth makes a pair in this namespace and returns the index of one end.
func veth(t testing.TB, name string) int {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	ok(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name + "p"}))
	return device(t, name).Attrs().Index
}

func device(t testing.TB, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	ok(t, err)
	return l
}

// newProgram loads a program, which goes with the test if nothing else holds it.
func newProgram(t testing.TB, spec ebpf.ProgramSpec) *ebpf.Program {
	t.Helper()
	spec.License = "GPL"
	p, err := ebpf.NewProgram(&spec)
	ok(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// verdict is a program that does nothing but return it.
func verdict(v int32) asm.Instructions { return asm.Instructions{asm.Mov.Imm(asm.R0, v), asm.Return()} }

// pinned pins p under its name in dir and opens it.
func pinned(t testing.TB, dir string, p *ebpf.Program) *bpfsys.Program {
	t.Helper()
	path := filepath.Join(dir, programInfo(t, p).Name)
	ok(t, p.Pin(path))
	opened, err := bpfsys.OpenProgram(path)
	ok(t, err)
	t.Cleanup(func() { _ = opened.Close() })
	return opened
}

func programInfo(t testing.TB, p *ebpf.Program) *ebpf.ProgramInfo {
	t.Helper()
	i, err := p.Info()
	ok(t, err)
	return i
}

func programID(t testing.TB, p *ebpf.Program) uint32 {
	t.Helper()
	id, has := programInfo(t, p).ID()
	if !has {
		t.Fatal("the library does not know the program's number")
	}
	return uint32(id)
}

func newMap(t testing.TB, spec ebpf.MapSpec) *ebpf.Map {
	t.Helper()
	spec.Name = "sl_test"
	m, err := ebpf.NewMap(&spec)
	ok(t, err)
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %+v, want %+v", what, got, want)
	}
}

// eventually waits for something the kernel does in its own time.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(netlab.Patient(20 * time.Second)); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("waited in vain for %s", what)
}

func TestKernelVersion(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("/proc/sys/kernel/osrelease")
	ok(t, err)
	equal(t, "release", bpfsys.KernelRelease(), strings.TrimSpace(string(raw)))
	major, minor := kernel(t)
	for version, want := range map[[2]int]bool{
		{major, minor}: true, {major, 0}: true, {major - 1, minor + 1}: true, {2, 6}: true,
		{major, minor + 1}: false, {major + 1, 0}: false, {major + 1, minor}: false,
	} {
		if got := bpfsys.KernelAtLeast(version[0], version[1]); got != want {
			t.Errorf("at least %v: got %t, want %t", version, got, want)
		}
	}
}

// kernel is the running kernel's version.
func kernel(t testing.TB) (major, minor int) {
	t.Helper()
	raw, err := os.ReadFile("/proc/sys/kernel/osrelease")
	ok(t, err)
	parts := strings.FieldsFunc(string(raw), func(r rune) bool { return r < '0' || r > '9' })
	major, err = strconv.Atoi(parts[0])
	ok(t, err)
	minor, err = strconv.Atoi(parts[1])
	ok(t, err)
	return major, minor
}
