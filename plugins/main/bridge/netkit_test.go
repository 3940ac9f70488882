// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// A pod whose network asks for netkit devices gets them, with what the other keys ask of its port. Where the kernel has none it gets
// veths, and the record says why. CHECK and DEL take either.
func TestPrivilegedDeviceKind(t *testing.T) {
	want := rtnl.KindVeth
	if require.HasNetkit(t) {
		want = rtnl.KindNetkit
	}
	for _, conf := range []string{
		`"bridge":"br0","isDefaultGateway":true,"ipMasq":true,"ipMasqBackend":"ebpf","macspoofchk":true,"mtu":1400,"portIsolation":true,"ipam":{"type":"fake"}`,
		`"bridge":"br0","hairpinMode":true,"mtu":1400`,
		`"bridge":"br0","promiscMode":true,"mtu":1400,"runtimeConfig":{"mac":"02:00:00:00:0a:0b"}`,
	} {
		r := newRig(t)
		pod := r.node.PodT(t, "p1")
		a := call("1.1.0", "c1", "eth0", pod.Path, `"deviceKind":"netkit",`+conf)
		res := r.mustAdd(a)
		var eth0, host rtnl.Link
		r.within(pod.NS, func(h *rtnl.Handle) (err error) {
			eth0, err = h.LinkByName("eth0")
			return err
		})
		r.host(func(h *rtnl.Handle) (err error) {
			host, err = h.LinkByName(res.Interfaces[1].Name)
			return err
		})
		for _, l := range []rtnl.Link{eth0, host} {
			if l.Kind != want || l.MTU != 1400 || !l.Up {
				t.Errorf("%s: %s is %+v, want %s", conf, l.Name, l, want)
			}
		}
		if !strings.HasPrefix(host.Name, "veth") {
			t.Errorf("the host end is called %s: rules of the node go by veth", host.Name)
		}
		if strings.Contains(conf, "0a:0b") && eth0.MAC.String() != "02:00:00:00:0a:0b" {
			t.Errorf("the pod's MAC is %s", eth0.MAC)
		}
		if host.Port == nil || host.Port.Hairpin != strings.Contains(conf, "hairpinMode") || host.Port.Isolated != strings.Contains(conf, "portIsolation") {
			t.Errorf("%s: port %+v", conf, host.Port)
		}
		for _, ep := range r.dp.Held {
			if is := want == rtnl.KindNetkit; ep.Netkit != is || ep.MACCheck.Netkit != is {
				t.Errorf("the datapath is told %+v, want netkit %t", ep, is)
			}
		}
		s := (&plugin{r.deps()}).loadSection(a.Ref("net1"))
		if is := want == rtnl.KindNetkit; !s.found || (s.NoNetkit == "") != is || (s.DeviceKind == rtnl.KindNetkit) != is {
			t.Errorf("recorded %+v, want netkit %t", s, is)
		}
		if err := r.check(a, res); err != nil {
			t.Errorf("%s: CHECK: %v", conf, err)
		}
		for range 2 {
			if err := r.del(a); err != nil {
				t.Errorf("%s: DEL: %v", conf, err)
			}
		}
		r.mustBeClean(pod)
	}
}
