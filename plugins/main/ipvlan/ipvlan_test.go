// SPDX-License-Identifier: Apache-2.0

package ipvlan

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/plugintest"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

func newRig(t *testing.T) (*plugintest.Rig, *netlab.Pod, plugintest.Call) {
	t.Helper()
	require.Link(t, Name)
	r := plugintest.New(t)
	r.Plug = New(Deps{IPAM: r.IPAM, Records: r.Dir})
	pod := r.Pod("pod")
	return r, pod, plugintest.Call{Netns: pod.Path, Conf: map[string]any{"master": "eth0", "ipam": map[string]any{"type": "fake"}}}
}

// Each mode reaches the kernel; the default is l2.
func TestPrivilegedModes(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]uint16{"": rtnl.IPVLANL2, "l2": rtnl.IPVLANL2, "l3": rtnl.IPVLANL3, "l3s": rtnl.IPVLANL3S} {
		t.Run("mode "+mode, func(t *testing.T) {
			t.Parallel()
			r, pod, call := newRig(t)
			call = call.With("mode", mode)
			res := r.MustAdd(call)
			if got := r.Link(pod.NS, "eth0").Sub.IPVLANMode; got != want {
				t.Errorf("mode %d, want %d", got, want)
			}
			if err := r.Check(call, res); err != nil {
				t.Errorf("CHECK: %v", err)
			}
		})
	}
}

// Chained, master and addresses come from prevResult; IPAM is not asked.
func TestPrivilegedChained(t *testing.T) {
	t.Parallel()
	r, pod, call := newRig(t)
	prev := plugintest.Answer46(7)
	iface := map[string]any{"name": "eth0"}
	call = call.With("master", nil).With("ipam", nil)
	add := call.With("prevResult", map[string]any{
		"cniVersion": "1.1.0", "interfaces": []any{iface}, "ips": prev.IPs, "routes": prev.Routes, "dns": prev.DNS,
	})
	res := r.MustAdd(add)
	if len(res.Interfaces) != 1 || res.Interfaces[0].Sandbox != pod.Path || len(res.IPs) != 2 || *res.IPs[0].Interface != 0 || len(res.DNS.Nameservers) != 1 {
		t.Errorf("result %+v", res)
	}
	if got, want := r.Link(pod.NS, "eth0").PeerIndex, r.Link(r.Node.NS, "eth0").Index; got != want {
		t.Errorf("it sits on %d, want eth0, %d", got, want)
	}
	if err := r.Check(call, res); err != nil { // prevResult is by now our own
		t.Errorf("CHECK: %v", err)
	}
	if err := r.Del(call.With("prevResult", res)); err != nil {
		t.Errorf("DEL: %v", err)
	}
	if len(r.IPAM.Calls) > 0 {
		t.Errorf("IPAM got %v", r.IPAM.Calls)
	}
	r.MustBeClean(pod)
}

// A prevResult that names no master, or several, is refused by name.
func TestChainRefuses(t *testing.T) {
	t.Parallel()
	plug := New(Deps{})
	for name, ifs := range map[string][]any{
		"none":    {},
		"two":     {map[string]any{"name": "a"}, map[string]any{"name": "b"}},
		"unnamed": {map[string]any{"sandbox": "/x"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := &plugintest.Rig{T: t, Plug: plug}
			a := r.Args(plugintest.Call{Conf: map[string]any{"prevResult": map[string]any{
				"cniVersion": "1.1.0", "interfaces": ifs, "ips": plugintest.Answer46(1).IPs,
			}}})
			_, err := parse(a)
			plugintest.WantCode(t, err, 7, "prevResult", "master")
		})
	}
}
