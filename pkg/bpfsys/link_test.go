// SPDX-License-Identifier: Apache-2.0

package bpfsys_test

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/test/cgroup"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

const (
	loopback = 1
	noDevice = math.MaxInt32
	pass     = 2 // XDP_PASS
)

// attached are programs of one type, as the library and as pkg/bpfsys have them.
type attached struct {
	ids  []uint32
	open []*bpfsys.Program
}

func programs(t testing.TB, dir string, spec ebpf.ProgramSpec) attached {
	t.Helper()
	var a attached
	for _, spec.Name = range []string{"one", "two", "three"} {
		p := newProgram(t, spec)
		a.ids, a.open = append(a.ids, programID(t, p)), append(a.open, pinned(t, dir, p))
	}
	return a
}

// closing is for what Attach and Open return and the test does not close: a second time would hit what has the number by then.
func closing(t testing.TB) func(*bpfsys.Link, error) *bpfsys.Link {
	return func(l *bpfsys.Link, err error) *bpfsys.Link {
		t.Helper()
		ok(t, err)
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
}

// witness is what the library says about the link pinned at path.
func witness(t testing.TB, path string) *link.Info {
	t.Helper()
	l, err := link.LoadPinnedLink(path, nil)
	ok(t, err)
	defer l.Close()
	i, err := l.Info()
	ok(t, err)
	return i
}

func linkInfo(t testing.TB, l *bpfsys.Link) bpfsys.LinkInfo {
	t.Helper()
	i, err := l.Info()
	ok(t, err)
	return i
}

// checkInfo compares with the library what both have in common for every kind of link.
func checkInfo(t testing.TB, what string, got bpfsys.LinkInfo, want *link.Info) {
	t.Helper()
	equal(t, what+": ID", got.ID, uint32(want.ID))
	equal(t, what+": program", got.Program, uint32(want.Program))
	equal(t, what+": is TCX", got.IsTCX(), want.Type == link.TCXType)
	equal(t, what+": is on a device", got.OnDevice(), want.Type == link.TCXType || want.Type == link.XDPType)
}

func wantErr(t testing.TB, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// checkTCX compares the programs on a device with want, as pkg/bpfsys and as the library see them.
func checkTCX(t testing.TB, what string, index int, at bpfsys.AttachType, want ...uint32) {
	t.Helper()
	got, err := bpfsys.DevicePrograms(index, at)
	ok(t, err)
	equal(t, what, append([]uint32{}, got...), append([]uint32{}, want...))
	equal(t, what+", by the library", queried(t, index, ebpf.AttachType(at)), append([]uint32{}, want...))
}

func queried(t testing.TB, target int, at ebpf.AttachType) []uint32 {
	t.Helper()
	r, err := link.QueryPrograms(link.QueryOptions{Target: target, Attach: at})
	ok(t, err)
	ids := []uint32{}
	for _, p := range r.Programs {
		ids = append(ids, uint32(p.ID))
	}
	return ids
}

func TestPrivilegedTCX(t *testing.T) {
	t.Parallel()
	require.TCX(t)
	dir := newBPFFS(t)
	index := veth(t, "dev")
	p := programs(t, dir, ebpf.ProgramSpec{Type: ebpf.SchedCLS, Instructions: verdict(-1)})
	checkTCX(t, "before", index, bpfsys.TCXIngress)

	first, err := bpfsys.AttachTCX(p.open[0], index, bpfsys.TCXIngress)
	ok(t, err)
	_, err = bpfsys.AttachTCX(p.open[0], index, bpfsys.TCXIngress)
	wantErr(t, "the same once more", err, unix.EEXIST)
	second := closing(t)(bpfsys.AttachTCX(p.open[1], index, bpfsys.TCXIngress))
	egress, err := bpfsys.AttachTCX(p.open[2], index, bpfsys.TCXEgress)
	ok(t, err)
	checkTCX(t, "ingress", index, bpfsys.TCXIngress, p.ids[0], p.ids[1])
	checkTCX(t, "egress", index, bpfsys.TCXEgress, p.ids[2])

	pin := filepath.Join(dir, "link")
	ok(t, first.Pin(pin))
	wantErr(t, "pin where something is", second.Pin(pin), fs.ErrExist)
	before := linkInfo(t, first)
	checkInfo(t, "tcx", before, witness(t, pin))
	equal(t, "device", before.Ifindex, witness(t, pin).TCX().Ifindex)
	equal(t, "index", before.Ifindex, uint32(index))

	ok(t, first.Close()) // the pin holds it
	again := closing(t)(bpfsys.OpenLink(pin))
	equal(t, "opened", linkInfo(t, again), before)
	ok(t, again.Update(p.open[2]))
	after := before
	after.Program = p.ids[2]
	equal(t, "updated", linkInfo(t, again), after)
	checkInfo(t, "updated", linkInfo(t, again), witness(t, pin))
	checkTCX(t, "updated", index, bpfsys.TCXIngress, p.ids[2], p.ids[1])

	ok(t, again.Detach())
	checkTCX(t, "detached", index, bpfsys.TCXIngress, p.ids[1])
	equal(t, "device of a detached link", linkInfo(t, again).Ifindex, 0)
	checkInfo(t, "detached", linkInfo(t, again), witness(t, pin))
	wantErr(t, "update of a detached link", again.Update(p.open[0]), unix.ENOLINK)
	ok(t, egress.Close())
	eventually(t, "a link that is closed and not pinned to go", func() bool { return len(queried(t, index, ebpf.AttachTCXEgress)) == 0 })

	ok(t, netlink.LinkDel(device(t, "dev")))
	equal(t, "device that has gone", linkInfo(t, second).Ifindex, 0)
	wantErr(t, "update where the device has gone", second.Update(p.open[0]), unix.ENOLINK)
	_, err = bpfsys.DevicePrograms(index, bpfsys.TCXIngress)
	wantErr(t, "programs of a device that has gone", err, unix.ENODEV)
	ok(t, again.Detach()) // once more
	ok(t, second.Detach())
}

// A kernel that has tcx says that there is no such device; an older one says what every kernel does of a place it does not know.
func TestPrivilegedTCXNoDevice(t *testing.T) {
	t.Parallel()
	dir := newBPFFS(t)
	p := programs(t, dir, ebpf.ProgramSpec{Type: ebpf.SchedCLS, Instructions: verdict(-1)})
	attach, query := error(unix.ENODEV), error(unix.ENODEV)
	if !bpfsys.KernelAtLeast(6, 6) {
		attach, query = bpfsys.ErrNotSupported, unix.EINVAL
	}
	for _, at := range []bpfsys.AttachType{bpfsys.TCXIngress, bpfsys.TCXEgress} {
		_, err := bpfsys.AttachTCX(p.open[0], noDevice, at)
		wantErr(t, "attach", err, attach)
		_, err = bpfsys.DevicePrograms(noDevice, at)
		wantErr(t, "programs", err, query)
	}
	const unknown = bpfsys.AttachType(1 << 20)
	_, err := bpfsys.AttachTCX(p.open[0], loopback, unknown)
	wantErr(t, "attach to an unknown place", err, bpfsys.ErrNotSupported)
	_, err = bpfsys.DevicePrograms(loopback, unknown)
	wantErr(t, "programs of an unknown place", err, unix.EINVAL)
}

// checkXDP compares the program of a device with what route netlink says.
func checkXDP(t testing.TB, what, name string, mode, id uint32) {
	t.Helper()
	var gotMode, gotID uint32
	if x := device(t, name).Attrs().Xdp; x != nil && x.Attached {
		gotMode, gotID = x.AttachMode, x.ProgId
	}
	equal(t, what+": mode", gotMode, mode)
	equal(t, what+": program", gotID, id)
}

func TestPrivilegedXDP(t *testing.T) {
	t.Parallel()
	dir := newBPFFS(t)
	const driver, generic = 1, 2 // XDP_ATTACHED_DRV, XDP_ATTACHED_SKB
	index := veth(t, "dev")
	p := programs(t, dir, ebpf.ProgramSpec{Type: ebpf.XDP, Instructions: verdict(pass)})
	for _, x := range []struct {
		name  string
		index int
		flags uint32
		mode  uint32
	}{{"lo", loopback, bpfsys.XDPGeneric, generic}, {"dev", index, bpfsys.XDPDriver, driver}} {
		l := closing(t)(bpfsys.AttachXDP(p.open[0], x.index, x.flags))
		checkXDP(t, x.name, x.name, x.mode, p.ids[0])
		pin := filepath.Join(dir, "link_"+x.name)
		ok(t, l.Pin(pin))
		i := linkInfo(t, l)
		checkInfo(t, x.name, i, witness(t, pin))
		equal(t, x.name+": device", i.Ifindex, witness(t, pin).XDP().Ifindex)
		equal(t, x.name+": index", i.Ifindex, uint32(x.index))

		_, err := bpfsys.AttachXDP(p.open[1], x.index, x.flags)
		wantErr(t, x.name+": a second program", err, unix.EBUSY)
		ok(t, l.Update(p.open[2]))
		checkXDP(t, x.name+" updated", x.name, x.mode, p.ids[2])
		equal(t, x.name+": program of the updated link", linkInfo(t, l).Program, p.ids[2])
	}
	_, err := bpfsys.AttachXDP(p.open[0], noDevice, bpfsys.XDPGeneric)
	wantErr(t, "no such device", err, unix.EINVAL)

	lo := closing(t)(bpfsys.OpenLink(filepath.Join(dir, "link_lo")))
	ok(t, lo.Detach())
	checkXDP(t, "detached", "lo", 0, 0)
	equal(t, "device of a detached link", linkInfo(t, lo).Ifindex, 0)
	wantErr(t, "update of a detached link", lo.Update(p.open[0]), unix.ENOLINK)
	_, err = bpfsys.AttachXDP(p.open[0], loopback, bpfsys.XDPDriver)
	wantErr(t, "a device whose driver runs no programs", err, unix.EOPNOTSUPP)
	checkXDP(t, "not attached", "lo", 0, 0)

	dev := closing(t)(bpfsys.OpenLink(filepath.Join(dir, "link_dev")))
	ok(t, netlink.LinkDel(device(t, "dev")))
	equal(t, "device that has gone", linkInfo(t, dev).Ifindex, 0)
	wantErr(t, "update where the device has gone", dev.Update(p.open[0]), unix.ENOLINK)
	ok(t, lo.Detach()) // once more
	ok(t, dev.Detach())
}

// A program attached by the older interface, without a link, is in the way too.
func TestPrivilegedXDPTaken(t *testing.T) {
	t.Parallel()
	dir := newBPFFS(t)
	p := programs(t, dir, ebpf.ProgramSpec{Type: ebpf.XDP, Instructions: verdict(pass)})
	ok(t, netlink.LinkSetXdpFdWithFlags(device(t, "lo"), p.open[0].FD(), bpfsys.XDPGeneric))
	_, err := bpfsys.AttachXDP(p.open[1], loopback, bpfsys.XDPGeneric)
	if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EEXIST) {
		t.Errorf("a device with a program: got %v, want %v or %v", err, unix.EBUSY, unix.EEXIST)
	}
}

func TestPrivilegedCgroup(t *testing.T) {
	t.Parallel()
	dir := newBPFFS(t)
	own, err := cgroup.Join()
	ok(t, err)
	group := filepath.Join(own, "bpf")
	ok(t, os.Mkdir(group, 0o755))
	t.Cleanup(func() { _ = os.Remove(group) })
	f, err := os.Open(group)
	ok(t, err)
	t.Cleanup(func() { _ = f.Close() })
	var stat unix.Stat_t
	ok(t, unix.Fstat(int(f.Fd()), &stat))

	const allow = 1
	p := programs(t, dir, ebpf.ProgramSpec{Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect, Instructions: verdict(allow)})
	first := closing(t)(bpfsys.AttachCgroup(p.open[0], group, bpfsys.CgroupInet4Connect))
	second := closing(t)(bpfsys.AttachCgroup(p.open[1], group, bpfsys.CgroupInet4Connect))
	programs := func() []uint32 { return queried(t, int(f.Fd()), ebpf.AttachCGroupInet4Connect) }
	equal(t, "attached", programs(), p.ids[:2])

	pin := filepath.Join(dir, "link")
	ok(t, first.Pin(pin))
	i := linkInfo(t, first)
	checkInfo(t, "cgroup", i, witness(t, pin))
	equal(t, "cgroup", i.Cgroup, witness(t, pin).Cgroup().CgroupId)
	equal(t, "inode of the cgroup", i.Cgroup, stat.Ino)
	equal(t, "device", i.Ifindex, 0)

	ok(t, first.Update(p.open[2]))
	equal(t, "updated", programs(), []uint32{p.ids[2], p.ids[1]})
	equal(t, "program of the updated link", linkInfo(t, first).Program, p.ids[2])
	ok(t, first.Detach())
	equal(t, "detached", programs(), p.ids[1:2])
	equal(t, "cgroup of a detached link", linkInfo(t, first).Cgroup, 0)
	wantErr(t, "update of a detached link", first.Update(p.open[0]), unix.ENOLINK)

	ok(t, f.Close())
	ok(t, os.Remove(group))
	eventually(t, "the link of a cgroup that has gone to say so", func() bool { return linkInfo(t, second).Cgroup == 0 })
	wantErr(t, "update where the cgroup has gone", second.Update(p.open[0]), unix.ENOLINK)
	ok(t, first.Detach()) // once more
	ok(t, second.Detach())

	_, err = bpfsys.AttachCgroup(p.open[0], group, bpfsys.CgroupInet4Connect)
	wantErr(t, "a cgroup that has gone", err, fs.ErrNotExist)
	_, err = bpfsys.AttachCgroup(p.open[0], filepath.Join(own, "cgroup.procs"), bpfsys.CgroupInet4Connect)
	wantErr(t, "a file", err, unix.ENOTDIR)
	_, err = bpfsys.AttachCgroup(p.open[0], t.TempDir(), bpfsys.CgroupInet4Connect)
	wantErr(t, "a directory that is no cgroup", err, unix.EBADF)
}

func TestAttachTypes(t *testing.T) {
	t.Parallel()
	for got, want := range map[bpfsys.AttachType]ebpf.AttachType{
		bpfsys.CgroupInet4Connect: ebpf.AttachCGroupInet4Connect, bpfsys.CgroupInet6Connect: ebpf.AttachCGroupInet6Connect,
		bpfsys.CgroupUDP4Sendmsg: ebpf.AttachCGroupUDP4Sendmsg, bpfsys.CgroupUDP6Sendmsg: ebpf.AttachCGroupUDP6Sendmsg,
		bpfsys.CgroupUDP4Recvmsg: ebpf.AttachCGroupUDP4Recvmsg, bpfsys.CgroupUDP6Recvmsg: ebpf.AttachCGroupUDP6Recvmsg,
		bpfsys.CgroupInet4GetPeername: ebpf.AttachCgroupInet4GetPeername, bpfsys.CgroupInet6GetPeername: ebpf.AttachCgroupInet6GetPeername,
		bpfsys.CgroupInetSockRelease: ebpf.AttachCgroupInetSockRelease,
		bpfsys.XDP:                   ebpf.AttachXDP, bpfsys.TCXIngress: ebpf.AttachTCXIngress, bpfsys.TCXEgress: ebpf.AttachTCXEgress,
	} {
		equal(t, want.String(), uint32(got), uint32(want))
	}
	equal(t, "XDPGeneric", uint32(bpfsys.XDPGeneric), uint32(link.XDPGenericMode))
	equal(t, "XDPDriver", uint32(bpfsys.XDPDriver), uint32(link.XDPDriverMode))
}
