// SPDX-License-Identifier: Apache-2.0

package macvlan

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/plugintest"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

func newRig(t *testing.T) (*plugintest.Rig, plugintest.Call) {
	t.Helper()
	require.Link(t, Name)
	r := plugintest.New(t)
	r.Plug = New(Deps{IPAM: r.IPAM, Records: r.Dir})
	return r, plugintest.Call{Netns: r.Pod("pod").Path, Conf: map[string]any{"master": "eth0"}}
}

// Each mode reaches the kernel; the default is bridge.
func TestPrivilegedModes(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]uint32{"": rtnl.MacvlanBridge, "bridge": rtnl.MacvlanBridge, "private": rtnl.MacvlanPrivate, "vepa": rtnl.MacvlanVEPA, "passthru": rtnl.MacvlanPassthru} {
		t.Run("mode "+mode, func(t *testing.T) {
			t.Parallel()
			r, call := newRig(t)
			pod := r.Pod("other")
			call.Netns = pod.Path
			call = call.With("mode", mode)
			res := r.MustAdd(call)
			if got := r.Link(pod.NS, "eth0").Sub.MacvlanMode; got != want {
				t.Errorf("mode %d, want %d", got, want)
			}
			if err := r.Check(call, res); err != nil {
				t.Errorf("CHECK: %v", err)
			}
		})
	}
}

// The MAC's four places, the last one wins; and what the master cannot give.
func TestPrivilegedMAC(t *testing.T) {
	t.Parallel()
	r, call := newRig(t)
	steps := []struct {
		mac string
		set func()
	}{
		{"02:00:00:00:00:01", func() { call = call.With("mac", "02:00:00:00:00:01") }},
		{"02:00:00:00:00:02", func() { call.Args = "IgnoreUnknown=1;K8S_POD_NAME=x;MAC=02:00:00:00:00:02" }},
		{"02:00:00:00:00:03", func() { call = call.With("args", map[string]any{"cni": map[string]any{"mac": "02:00:00:00:00:03"}}) }},
		{"02:00:00:00:00:04", func() { call = call.With("runtimeConfig", map[string]any{"mac": "02:00:00:00:00:04"}) }},
		{"02:00:00:00:00:04", func() { // what a later place replaces may be a placeholder
			call.Args = "MAC=placeholder"
			call = call.With("mac", "placeholder").With("args", map[string]any{"cni": map[string]any{"mac": "placeholder"}})
		}},
	}
	for _, s := range steps {
		s.set()
		res := r.MustAdd(call)
		if got := res.Interfaces[0].Mac; got != s.mac {
			t.Errorf("MAC %s, want %s", got, s.mac)
		}
		if err := r.Check(call, res); err != nil {
			t.Errorf("CHECK: %v", err)
		}
		if err := r.Del(call); err != nil {
			t.Fatal(err)
		}
	}
}

// Without IPAM the pod gets layer 2: an interface that is up, and no address.
func TestPrivilegedLayer2(t *testing.T) {
	t.Parallel()
	r, call := newRig(t)
	pod := r.Pod("l2")
	call.Netns = pod.Path
	for _, v := range []string{"0.3.0", "0.4.0", "1.1.0"} {
		call.Version = v
		res := r.MustAdd(call)
		if l := r.Link(pod.NS, "eth0"); !l.Up || len(res.IPs) > 0 || len(r.IPAM.Calls) > 0 {
			t.Errorf("%s: link %+v, IPs %v, IPAM calls %v", v, l, res.IPs, r.IPAM.Calls)
		}
		if v != "0.3.0" {
			out, err := res.GetAsVersion(v)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Check(call, out); err != nil {
				t.Errorf("CHECK: %v", err)
			}
		}
		if err := r.Del(call); err != nil {
			t.Error(err)
		}
	}
	r.MustBeClean(pod)
}

// The queue's length reaches a kernel that has it; MTU likewise.
func TestPrivilegedNumbers(t *testing.T) {
	t.Parallel()
	r, call := newRig(t)
	pod := r.Pod("n")
	call.Netns = pod.Path
	res := r.MustAdd(call.With("bcqueuelen", 500).With("mtu", 1400))
	l := r.Link(pod.NS, "eth0")
	if l.MTU != 1400 || res.Interfaces[0].Mtu != 1400 {
		t.Errorf("MTU %d, in the result %d; want 1400", l.MTU, res.Interfaces[0].Mtu)
	}
	if l.Sub.BCQueueLen != 500 && l.Sub.BCQueueLen != 0 { // 0: Linux before 5.11
		t.Errorf("bcqueuelen %d, want 500", l.Sub.BCQueueLen)
	}
	if err := r.Check(call.With("bcqueuelen", 500).With("mtu", 1400), res); err != nil {
		t.Error(err)
	}
}
