// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/ebpfload"
	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/cgroup"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// The main thread stays with the main goroutine: it must never end up in the namespaces of a test.
func init() { runtime.LockOSThread() } //nolint:gochecknoinits // there is no earlier place

// env is a node of its own: network and mount namespace, bpffs, run directory. It lives as long as the test's goroutine, which
// is locked to its thread; no subtests inside.
type env struct {
	t   testing.TB
	o   Options
	h   *rtnl.Handle
	ctx context.Context
}

// newEnv moves the calling goroutine into a fresh node. Without root it fails the test: nothing here can be tested otherwise.
func newEnv(t testing.TB) *env {
	t.Helper()
	if _, err := cgroup.Join(); err != nil { // its watcher must not keep the namespace below
		t.Fatal(err)
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and the namespaces with the thread
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		t.Fatalf("unshare (these tests need root): %v", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatalf("make mounts private: %v", err)
	}
	dir := t.TempDir()
	bpffs := filepath.Join(dir, "bpf")
	if err := os.Mkdir(bpffs, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), netlab.Patient(time.Minute))
	e := &env{t: t, ctx: ctx, o: testOptions(t, dir)}
	t.Cleanup(func() {
		cancel()
		_ = unix.Unmount(bpffs, unix.MNT_DETACH)
	})
	e.netlink()
	return e
}

func testOptions(t testing.TB, dir string) Options {
	cfg := nodeconf.Default()
	cfg.BPFFS = filepath.Join(dir, "bpf")
	root, err := cgroup.Join()
	if err != nil {
		t.Fatal(err)
	}
	cfg.CgroupRoot = root
	return Options{Config: cfg, RunDir: filepath.Join(dir, "run"), Log: log.NewCore(zaptest.NewLogger(t).Core()), Loader: ebpfload.InProcess{}}
}

// netlink opens the test's own socket in the present namespace and brings up lo.
func (e *env) netlink() {
	e.t.Helper()
	h, err := rtnl.New()
	e.ok(err)
	e.t.Cleanup(h.Close)
	e.h = h
	e.ok(h.SetUp(1))
}

// elsewhere returns a function that runs f on a fresh thread in the namespaces that the calling thread is in now.
func (e *env) elsewhere() func(f func() error) error {
	e.t.Helper()
	var files [2]*os.File
	for i, kind := range []string{"net", "mnt"} {
		f, err := os.Open("/proc/thread-self/ns/" + kind)
		e.ok(err)
		e.t.Cleanup(func() { _ = f.Close() })
		files[i] = f
	}
	enter := func() error {
		runtime.LockOSThread() // the thread ends with the goroutine
		return errors.Join(
			unix.Unshare(unix.CLONE_FS), // who shares its root directory with other threads may not change mounts
			unix.Setns(int(files[1].Fd()), unix.CLONE_NEWNS),
			unix.Setns(int(files[0].Fd()), unix.CLONE_NEWNET))
	}
	return func(f func() error) error {
		result := make(chan error, 1)
		go func() {
			err := enter()
			if err == nil {
				err = f()
			}
			result <- err
		}()
		return <-result
	}
}

// uplinkWay is by what an uplink is attached by default on this kernel.
func uplinkWay() string {
	if bpfsys.KernelAtLeast(6, 6) {
		return hook.HowTCX
	}
	return hook.HowClsact
}

// eventually waits for something the kernel does in its own time.
func (e *env) eventually(what string, f func() bool) {
	e.t.Helper()
	for end := time.Now().Add(netlab.Patient(20 * time.Second)); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if f() {
			return
		}
	}
	e.t.Fatalf("waited in vain for %s", what)
}

// wantInForce wants so many devices to have programs of the set in force, and no others.
func (e *env) wantInForce(d *Datapath, devices int) {
	e.t.Helper()
	s, err := d.Status(e.ctx)
	e.ok(err)
	if len(s.Devices) != devices {
		e.t.Fatalf("devices: %+v", s.Devices)
	}
	for _, dev := range s.Devices {
		for _, p := range dev.Programs {
			if !p.OK {
				e.t.Errorf("%s: %+v is not of the set in force", dev.Name, p)
			}
		}
	}
}

func (e *env) ok(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

// veth makes a pair in this namespace, both ends up, and returns their indexes.
func (e *env) veth(name string) (int, int) {
	e.t.Helper()
	e.ip("link", "add", name, "type", "veth", "peer", "name", name+"p")
	e.ip("link", "set", name, "up")
	e.ip("link", "set", name+"p", "up")
	return e.index(name), e.index(name + "p")
}

func (e *env) index(name string) int {
	e.t.Helper()
	l, err := e.h.LinkByName(name)
	e.ok(err)
	return l.Index
}

func (e *env) ip(args ...string) { e.t.Helper(); e.run("ip", args...) }

// run starts a tool in the namespaces of the calling thread: a child inherits those of the thread that forks it.
func (e *env) run(name string, args ...string) string {
	e.t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		e.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// open loads the datapath and closes it when the test ends.
func (e *env) open() *Datapath {
	e.t.Helper()
	d, err := Open(e.ctx, e.o)
	e.ok(err)
	e.t.Cleanup(func() { _ = d.Close() })
	return d
}

// uplink makes a device that discovery takes: eth0 with addresses of both families.
func (e *env) uplink() int {
	e.t.Helper()
	index, _ := e.veth("eth0")
	e.ip("addr", "add", "192.0.2.10/24", "dev", "eth0")
	e.ip("addr", "add", "2001:db8::10/64", "dev", "eth0", "nodad")
	return index
}

// pod makes the host veth of a pod and describes it.
func (e *env) pod(name, addr4 string) Endpoint {
	e.t.Helper()
	index, _ := e.veth(name)
	return e.endpoint(name, index, addr4)
}

// endpoint is a pod whose device is there.
func (e *env) endpoint(name string, index int, addr4 string) Endpoint {
	return Endpoint{
		Ref:         attachments.ID{Network: "net", ContainerID: name, IfName: "eth0"},
		HostIfindex: index, HostIfName: name, MTU: 1500,
		MAC:        net.HardwareAddr{2, 0, 0, 0, 0, byte(index)},
		GatewayMAC: net.HardwareAddr{2, 0, 0, 0, 1, byte(index)},
		Addrs:      []netip.Prefix{netip.MustParsePrefix(addr4)},
	}
}

// pathsBelow returns every path below dir, relative to it.
func pathsBelow(dir string) []string {
	var out []string
	_ = filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err == nil && path != dir {
			rel, _ := filepath.Rel(dir, path)
			out = append(out, rel)
		}
		return nil
	})
	return out
}

func fds(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func milliseconds(f func()) float64 {
	start := time.Now()
	f()
	return float64(time.Since(start).Microseconds()) / 1000
}

// nextProgram is another owner's: the smallest that lets the next one decide.
func nextProgram() (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "sl_probe", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
}

// pinnedProgram opens a program of ours by the library, which can run it.
func pinnedProgram(t testing.TB, dir string, h hook.Hook) *ebpf.Program {
	t.Helper()
	p, err := ebpf.LoadPinnedProgram(filepath.Join(dir, h.Program), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}
