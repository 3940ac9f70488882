// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// netkit makes a pair in this namespace, both ends up, and describes the pod whose host veth is name.
func (e *env) netkit(name, addr4 string) Endpoint {
	e.t.Helper()
	mac := net.HardwareAddr{2, 0, 0, 0, 7, 1}
	e.ok(e.h.AddVeth(rtnl.VethSpec{Netkit: true, HostName: name, HostUp: true, PeerName: name + "p", PeerMAC: mac}))
	e.ip("link", "set", name+"p", "up")
	return Endpoint{
		Ref:         attachments.ID{Network: "net", ContainerID: name, IfName: "eth0"},
		HostIfindex: e.index(name), HostIfName: name, Netkit: true, MTU: 1500, MAC: mac,
		GatewayMAC: net.HardwareAddr{2, 0, 0, 0, 7, 2},
		Addrs:      []netip.Prefix{netip.MustParsePrefix(addr4)},
	}
}

// netkitPrograms are the programs that see what the pod's end transmits, in their order.
func (e *env) netkitPrograms(index int) []uint32 {
	e.t.Helper()
	ids, err := bpfsys.DevicePrograms(index, bpfsys.NetkitPeer)
	e.ok(err)
	return ids
}

// What the pod sends meets the programs on the netkit pair, what it gets those of tc. An upgrade keeps them there, and Disable, GC and
// Unload leave nothing.
func TestPrivilegedNetkitHooks(t *testing.T) {
	require.Netkit(t)
	e := newEnv(t)
	e.uplink()
	d := e.open()
	ep := e.netkit("nk1", "10.1.0.2/16")
	e.ok(d.Enable(e.ctx, ep, FeatureMasquerade))
	want := []string{"from_pod " + hook.HowNetkit, "to_pod " + hook.HowClsact}
	if got := hooksOf(e, d, ep.HostIfindex); !slices.Equal(got, want) {
		t.Errorf("attached %v, want %v", got, want)
	}
	e.ok(d.Enable(e.ctx, ep, FeatureMACCheck))
	a := attach.NewAttacher(d.tree, "")
	defer a.Close()
	at, err := a.At(ep.HostIfindex, hook.MACCheck())
	e.ok(err)
	if ids := e.netkitPrograms(ep.HostIfindex); len(ids) != 2 || ids[0] != at.ID || at.How != hook.HowNetkit {
		t.Errorf("the chain is %v, want the MAC check, %+v, first of two", ids, at)
	}
	e.ok(d.CheckEndpoint(e.ctx, ep, FeatureMasquerade))
	e.ok(d.CheckEndpoint(e.ctx, ep, FeatureMACCheck))
	if !d.PodByLink(ep.HostIfindex) {
		t.Error("a policer by a filter is said to see what the fast path takes")
	}

	e.o.Config.AntiSpoof = !e.o.Config.AntiSpoof // another build
	before := e.netkitPrograms(ep.HostIfindex)
	d = e.open()
	e.wantInForce(d, 2)
	if got := hooksOf(e, d, ep.HostIfindex); !slices.Contains(got, want[0]) || !slices.Contains(got, want[1]) {
		t.Errorf("after an upgrade %v, want %v", got, want)
	}
	if after := e.netkitPrograms(ep.HostIfindex); len(after) != 2 || slices.Equal(after, before) {
		t.Errorf("programs %v before the upgrade, %v after it", before, after)
	}

	owner := ep.Ref.Owner()
	e.ok(d.Disable(e.ctx, owner, FeatureMasquerade, Held{}))
	e.ok(d.Disable(e.ctx, owner, FeatureMACCheck, Held{}))
	if ids := e.netkitPrograms(ep.HostIfindex); len(ids) != 0 {
		t.Errorf("%v is left on the pair", ids)
	}
	e.ok(d.Enable(e.ctx, ep, FeatureMasquerade))
	e.ip("link", "del", "nk1")
	e.ok(d.GC(e.ctx, func(uint64) bool { return true }))
	if _, err := os.Stat(filepath.Join(d.tree.Paths.Links(), "dev"+strconv.Itoa(ep.HostIfindex)+"_from_pod")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("GC left the link of a device that has gone: %v", err)
	}

	again := e.netkit("nk2", "10.1.0.3/16")
	e.ok(d.Enable(e.ctx, again, FeatureMasquerade))
	e.ok(d.Unload(e.ctx))
	if ids := e.netkitPrograms(again.HostIfindex); len(ids) != 0 {
		t.Errorf("Unload left %v on the pair", ids)
	}
}

// A host end that is not the primary device takes no programs of netkit. The pod is served by the ingress of the host end then.
func TestPrivilegedNetkitReversed(t *testing.T) {
	require.Netkit(t)
	e := newEnv(t)
	e.uplink()
	d := e.open()
	ep := e.netkit("nk1", "10.1.0.2/16")
	ep.HostIfName, ep.HostIfindex = "nk1p", e.index("nk1p")
	e.ok(d.Enable(e.ctx, ep, FeatureMasquerade))
	want := []string{"from_pod " + hook.HowClsact, "to_pod " + hook.HowClsact}
	if got := hooksOf(e, d, ep.HostIfindex); !slices.Equal(got, want) {
		t.Errorf("attached %v, want %v", got, want)
	}
	e.ok(d.CheckEndpoint(e.ctx, ep, FeatureMasquerade))
}

// A pod with all capabilities over its own network namespace cannot take the programs away, add one, or make the pair pass or drop by
// itself: the pair is managed by its primary device.
func TestPrivilegedNetkitPodCannotDetach(t *testing.T) {
	require.Netkit(t)
	e := newEnv(t)
	e.uplink()
	d := e.open()
	ep := e.netkit("nk1", "10.1.0.2/16")
	e.ok(d.Enable(e.ctx, ep, FeatureMasquerade))
	prog, err := nextProgram()
	e.ok(err)
	defer prog.Close()
	before := e.netkitPrograms(ep.HostIfindex)
	pod := make(chan error, 1)
	moved := make(chan int)
	entered := make(chan int)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine, in the pod's namespace
		err := unix.Unshare(unix.CLONE_NEWNET)
		entered <- unix.Gettid()
		if index := <-moved; err == nil {
			err = attackNetkit(index, prog)
		}
		pod <- err
	}()
	ns, err := os.Open("/proc/" + strconv.Itoa(<-entered) + "/ns/net")
	e.ok(err)
	defer ns.Close()
	index := e.index("nk1p")
	fd := int(ns.Fd())
	e.ok(e.h.SetLink(index, rtnl.LinkChange{NetNS: &fd}))
	moved <- index
	if err := <-pod; err != nil {
		t.Error(err)
	}
	if after := e.netkitPrograms(ep.HostIfindex); !slices.Equal(after, before) {
		t.Errorf("programs %v, and %v after the pod", before, after)
	}
}

// attackNetkit is what a pod may try with its end of the pair, in its namespace. It returns what succeeded.
func attackNetkit(index int, prog *ebpf.Program) error {
	var errs []error
	for _, at := range []ebpf.AttachType{ebpf.AttachNetkitPrimary, ebpf.AttachNetkitPeer} {
		if l, err := link.AttachNetkit(link.NetkitOptions{Interface: index, Program: prog, Attach: at}); !errors.Is(err, unix.EACCES) {
			errs = append(errs, fmt.Errorf("attach to %v: %w, want %w", at, err, unix.EACCES))
			if err == nil {
				errs = append(errs, l.Close())
			}
		}
		if err := link.RawDetachProgram(link.RawDetachProgramOptions{Target: index, Program: prog, Attach: at}); !errors.Is(err, unix.EACCES) {
			errs = append(errs, fmt.Errorf("detach from %v: %w, want %w", at, err, unix.EACCES))
		}
		if _, err := bpfsys.DevicePrograms(index, bpfsys.AttachType(at)); !errors.Is(err, unix.EACCES) {
			errs = append(errs, fmt.Errorf("list the programs of %v: %w, want %w", at, err, unix.EACCES))
		}
	}
	return errors.Join(errs...)
}
