// SPDX-License-Identifier: Apache-2.0

package macvlan

import (
	"net"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/plugintest"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// [macvlan mtu 1500, tuning mtu 1400]: the result of a version before 1.1.0 has
// no mtu, so nothing says that 1400 is wrong.
func TestPrivilegedTunedMTU(t *testing.T) {
	require.Link(t, Name)
	for _, v := range []string{"0.4.0", "1.0.0", "1.1.0"} {
		t.Run(v, func(t *testing.T) {
			r := plugintest.New(t)
			r.Plug = New(Deps{IPAM: r.IPAM, Records: r.Dir})
			pod := r.Pod("pod")
			call := plugintest.Call{Version: v, Netns: pod.Path, Conf: map[string]any{"master": "eth0", "mtu": 1500, "ipam": map[string]any{"type": "fake"}}}
			res, err := r.Add(call)
			if err != nil {
				t.Fatal(err)
			}
			// what the chained tuning plugin does: the link, and mtu of a result that has one
			r.Change(pod.NS, "eth0", func(h *rtnl.Handle, l rtnl.Link) error { return h.SetMTU(l.Index, 1400) })
			if n, ok := res.(*types100.Result); ok {
				for _, i := range n.Interfaces {
					if i.Mtu != 0 {
						i.Mtu = 1400
					}
				}
			}
			if err := r.Check(call, res); err != nil {
				t.Errorf("CHECK of a tuned, healthy pod: %v", err)
			}
		})
	}
}

// What our dhcp returns for an on-link route of option 121 (RFC 3442).
func TestPrivilegedOnLinkRoute(t *testing.T) {
	require.Link(t, Name)
	r := plugintest.New(t)
	r.Plug = New(Deps{IPAM: r.IPAM, Records: r.Dir})
	pod := r.Pod("pod")
	r.IPAM.Answer = func(int) *types100.Result {
		link := unix.RT_SCOPE_LINK
		return &types100.Result{
			CNIVersion: "1.1.0", IPs: []*types100.IPConfig{plugintest.IP("10.1.0.2/24", "10.1.0.1")},
			Routes: []*types.Route{
				{Dst: plugintest.CIDR("192.0.2.0/24"), GW: net.IPv4zero.To4(), Scope: &link},
				{Dst: plugintest.CIDR("0.0.0.0/0"), GW: net.IPv4(10, 1, 0, 1)},
			},
		}
	}
	call := plugintest.Call{Netns: pod.Path, Conf: map[string]any{"master": "eth0", "ipam": map[string]any{"type": "dhcp"}}}
	res := r.MustAdd(call)
	if err := r.Check(call, res); err != nil {
		t.Errorf("CHECK right after ADD: %v", err)
	}
}

// Upstream finds a master by an alternative name of more than 15 characters.
func TestPrivilegedAltName(t *testing.T) {
	require.Link(t, Name)
	r := plugintest.New(t)
	r.Plug = New(Deps{IPAM: r.IPAM, Records: r.Dir})
	pod := r.Pod("pod")
	r.IP(r.Node.NS, "link property add dev eth0 altname enp129s0f0np0v15x")
	call := plugintest.Call{Netns: pod.Path, Conf: map[string]any{"master": "enp129s0f0np0v15x"}}
	if _, err := r.Add(call); err != nil {
		t.Errorf("ADD: %v", err)
	}
}
