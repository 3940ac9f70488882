// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"net"
	"testing"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/require"
)

// A netkit pair has what a veth pair would have: names, addresses, the MTU, a place on a bridge, and the other end in its namespace. A
// kernel without netkit says that it does not support it, and makes nothing.
func TestPrivilegedAddNetkit(t *testing.T) {
	has := require.HasNetkit(t)
	pod := mustNS(t)
	h, p := mustHandle(t, mustNS(t)), mustHandle(t, pod)
	ok(t, h.AddBridge(BridgeSpec{Name: "br0", Up: true}))
	br := must[Link](t)(h.LinkByName("br0"))
	spec := VethSpec{
		Netkit: true, HostName: "host0", HostMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, HostUp: true, Master: br.Index,
		PeerName: "eth0", PeerMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, PeerNS: pod.Fd(), MTU: 1400,
	}
	err := h.AddVeth(spec)
	if !has {
		if !errors.Is(err, ErrNotSupported) {
			t.Errorf("a kernel without netkit: %v, want %v", err, ErrNotSupported)
		}
		if _, err := h.LinkByName("host0"); !errors.Is(err, ErrNotFound) {
			t.Errorf("something was made: %v", err)
		}
		return
	}
	ok(t, err)
	host, eth0 := must[Link](t)(h.LinkByName("host0")), must[Link](t)(p.LinkByName("eth0"))
	for _, l := range []Link{host, eth0} {
		if l.Kind != KindNetkit || !l.Paired() || l.MTU != 1400 || !l.Ethernet {
			t.Errorf("%s is %+v", l.Name, l)
		}
	}
	if host.MAC.String() != spec.HostMAC.String() || eth0.MAC.String() != spec.PeerMAC.String() {
		t.Errorf("addresses %s and %s, want %s and %s", host.MAC, eth0.MAC, spec.HostMAC, spec.PeerMAC)
	}
	if host.PeerIndex != eth0.Index || eth0.PeerIndex != host.Index || host.PeerNetnsID < 0 || host.MasterIndex != br.Index || !host.Up {
		t.Errorf("host end %+v, pod's end %+v", host, eth0)
	}
	if err := h.AddVeth(spec); !errors.Is(err, ErrExist) {
		t.Errorf("the same once more: %v, want %v", err, ErrExist)
	}
	// The pod does not decide what its end does without a program.
	if err := setNetkitPolicy(p, eth0.Index); !errors.Is(err, unix.EACCES) {
		t.Errorf("the pod changes the policy of its end: %v, want %v", err, unix.EACCES)
	}
	ok(t, setNetkitPolicy(h, host.Index))
	ok(t, h.DelLink(host.Index))
	if _, err := p.LinkByName("eth0"); !errors.Is(err, ErrNotFound) {
		t.Errorf("the pod's end is left: %v", err)
	}
}

// setNetkitPolicy makes both ends drop what no program decides about.
func setNetkitPolicy(h *Handle, index int) error {
	req := h.request(unix.RTM_NEWLINK, 0)
	msg := vnl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	info := attr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(unix.IFLA_INFO_KIND, []byte(KindNetkit))
	data := info.AddRtAttr(unix.IFLA_INFO_DATA, nil)
	data.AddRtAttr(unix.IFLA_NETKIT_POLICY, vnl.Uint32Attr(unix.NETKIT_DROP))
	data.AddRtAttr(unix.IFLA_NETKIT_PEER_POLICY, vnl.Uint32Attr(unix.NETKIT_DROP))
	req.AddData(info)
	return h.do(req)
}
