// SPDX-License-Identifier: Apache-2.0

package bpfsys_test

import (
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

func TestPrivilegedNetkit(t *testing.T) {
	t.Parallel()
	require.Netkit(t)
	dir := newBPFFS(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "prim"
	nk := &netlink.Netkit{LinkAttrs: attrs, Mode: netlink.NETKIT_MODE_L2, Policy: netlink.NETKIT_POLICY_FORWARD, PeerPolicy: netlink.NETKIT_POLICY_FORWARD}
	peerAttrs := netlink.NewLinkAttrs()
	peerAttrs.Name = "other"
	nk.SetPeerAttrs(&peerAttrs)
	ok(t, netlink.LinkAdd(nk))
	primary, other := device(t, "prim").Attrs().Index, device(t, "other").Attrs().Index
	p := programs(t, dir, ebpf.ProgramSpec{Type: ebpf.SchedCLS, Instructions: verdict(-1)})

	last := closing(t)(bpfsys.AttachNetkit(p.open[0], primary, bpfsys.NetkitPeer, false))
	first := closing(t)(bpfsys.AttachNetkit(p.open[1], primary, bpfsys.NetkitPeer, true))
	checkTCX(t, "of the other end", primary, bpfsys.NetkitPeer, p.ids[1], p.ids[0])
	checkTCX(t, "of the primary one", primary, bpfsys.NetkitPrimary)
	_, err := bpfsys.AttachNetkit(p.open[0], primary, bpfsys.NetkitPeer, false)
	wantErr(t, "the same once more", err, unix.EEXIST)
	_, err = bpfsys.AttachNetkit(p.open[2], other, bpfsys.NetkitPeer, false)
	wantErr(t, "by the end that is not the primary one", err, bpfsys.ErrNotSupported)
	_, err = bpfsys.AttachNetkit(p.open[2], veth(t, "dev"), bpfsys.NetkitPeer, false)
	wantErr(t, "a veth", err, bpfsys.ErrNotSupported)

	info := linkInfo(t, last)
	equal(t, "is of netkit", info.IsNetkit(), true)
	equal(t, "is on a device", info.OnDevice(), true)
	equal(t, "is tcx", info.IsTCX(), false)
	equal(t, "device", info.Ifindex, uint32(other))
	pin := filepath.Join(dir, "link")
	ok(t, last.Pin(pin))
	equal(t, "type, by the library", witness(t, pin).Type, link.NetkitType)
	ok(t, last.Update(p.open[2]))
	checkTCX(t, "updated", primary, bpfsys.NetkitPeer, p.ids[1], p.ids[2])
	ok(t, first.Detach())
	checkTCX(t, "detached", primary, bpfsys.NetkitPeer, p.ids[2])

	ok(t, netlink.LinkDel(device(t, "prim")))
	equal(t, "device that has gone", linkInfo(t, last).Ifindex, 0)
	wantErr(t, "update where the device has gone", last.Update(p.open[0]), unix.ENOLINK)
	ok(t, last.Detach())
}

// A kernel that has netkit says that there is no such device. One that does not, says so of any device.
func TestPrivilegedNetkitNoDevice(t *testing.T) {
	t.Parallel()
	p := programs(t, newBPFFS(t), ebpf.ProgramSpec{Type: ebpf.SchedCLS, Instructions: verdict(-1)})
	want := bpfsys.ErrNotSupported
	if require.HasNetkit(t) {
		want = unix.ENODEV
	}
	_, err := bpfsys.AttachNetkit(p.open[0], noDevice, bpfsys.NetkitPeer, false)
	wantErr(t, "attach", err, want)
}
