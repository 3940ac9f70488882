// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"errors"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/sysctl"
	fake "github.com/sluice-cni/sluice/pkg/test/plugintest"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// A gw-less default route for another table is not the pod's default route.
func TestPrivilegedDefaultInTable(t *testing.T) {
	r := newRig(t)
	table := 100
	r.ipam.Answer = func(n int) *types100.Result {
		a := answer4(n)
		a.Routes = []*types.Route{{Dst: fake.CIDR("0.0.0.0/0"), Table: &table}}
		return a
	}
	pod := r.node.PodT(t, "p1")
	r.mustAdd(call("1.1.0", "c1", "eth0", pod.Path, `"isDefaultGateway":true,"ipam":{"type":"fake"}`))
	r.within(pod.NS, func(h *rtnl.Handle) error {
		all, err := h.AllRoutes(rtnl.FamilyV4)
		main := 0
		for _, x := range all {
			if x.Dst.Bits() == 0 && x.Table == rtnl.TableMain {
				main++
			}
		}
		if main != 1 {
			t.Errorf("%d default routes in the main table, want 1", main)
		}
		return err
	})
}

// An existing bridge with a port keeps its address for its pods when that port goes.
func TestPrivilegedBridgeMAC(t *testing.T) {
	r := newRig(t)
	ns := r.node.NS
	ns.IPT(t, "link add br0 type bridge")
	ns.IPT(t, "link add nic1 type veth peer name wire1")
	ns.IPT(t, "link set nic1 address 00:16:3e:00:00:01")
	ns.IPT(t, "link set nic1 master br0 up")
	pod := r.node.PodT(t, "p1")
	a := call("1.1.0", "c1", "eth0", pod.Path, `"bridge":"br0","isDefaultGateway":true,"ipam":{"type":"fake"}`)
	res, err := r.add(a)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.check(a, res); err != nil {
		t.Fatal(err)
	}
	ns.IPT(t, "link set nic1 nomaster")
	if err := r.check(a, res); err != nil {
		t.Errorf("the gateway's address has changed under the pod: %v", err)
	}
}

// Layer 2 on an existing bridge: the bridge's address follows its ports, and that is no difference.
func TestPrivilegedBridgeMACL2(t *testing.T) {
	r := newRig(t)
	ns := r.node.NS
	ns.IPT(t, "link add br0 type bridge")
	pod := r.node.PodT(t, "p1")
	a := call("1.1.0", "c1", "eth0", pod.Path, `"bridge":"br0"`)
	res, err := r.add(a)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.check(a, res); err != nil {
		t.Fatal(err)
	}
	ns.IPT(t, "link add nic1 type veth peer name wire1")
	ns.IPT(t, "link set nic1 address 00:16:3e:00:00:01")
	ns.IPT(t, "link set nic1 master br0 up")
	if err := r.check(a, res); err != nil {
		t.Errorf("CHECK of a healthy pod: %v", err)
	}
}

// An ADD with forceAddress that fails later must give the bridge its address back.
func TestPrivilegedForceAddressUndone(t *testing.T) {
	r := newRig(t)
	ns := r.node.NS
	ns.IPT(t, "link add br0 up type bridge")
	ns.IPT(t, "addr add 10.9.0.1/24 dev br0")
	r.dp.Fail = map[string]error{"Enable": errors.New("no")}
	pod := r.node.PodT(t, "p1")
	_, err := r.add(call("1.1.0", "c1", "eth0", pod.Path, life+`,"forceAddress":true`))
	if err == nil {
		t.Fatal("ADD should fail")
	}
	if got := ns.IPT(t, "-4 addr show br0"); !strings.Contains(got, "10.9.0.1/24") || strings.Contains(got, "10.1.0.1") {
		t.Errorf("addresses of the bridge after the failed ADD: %q", got)
	}
}

// forceAddress replaces an address with a peer as any other.
func TestPrivilegedForceAddressPeer(t *testing.T) {
	r := newRig(t)
	ns := r.node.NS
	ns.IPT(t, "link add br0 up type bridge")
	ns.IPT(t, "addr add 10.9.0.1 peer 10.9.0.2 dev br0")
	pod := r.node.PodT(t, "p1")
	r.mustAdd(call("1.1.0", "c1", "eth0", pod.Path, life+`,"forceAddress":true`))
	if got := ns.IPT(t, "-4 addr show br0"); strings.Contains(got, "10.9.0.1") || !strings.Contains(got, "10.1.0.1/16") {
		t.Errorf("addresses of the bridge: %q", got)
	}
}

// An address that forceAddress replaces may take others of its subnet along, by
// the kernel's doing: a gateway among them is made again.
func TestPrivilegedForceAddressSecondary(t *testing.T) {
	r := newRig(t)
	ns := r.node.NS
	ns.IPT(t, "link add br0 up type bridge")
	ns.IPT(t, "addr add 10.1.0.9/16 dev br0")
	ns.IPT(t, "addr add 10.1.0.1/16 dev br0")
	r.ipam.Answer = func(n int) *types100.Result {
		a := answer4(n)
		a.IPs = append(a.IPs, fake.IP("10.2.0.2/16", "10.2.0.1"))
		return a
	}
	pod := r.node.PodT(t, "p1")
	a := call("1.1.0", "c1", "eth0", pod.Path, life+`,"forceAddress":true`)
	r.dp.Fail = map[string]error{"Enable": errors.New("no")}
	if _, err := r.add(a); err == nil {
		t.Fatal("ADD should fail")
	}
	after := ns.IPT(t, "-4 addr show br0")
	if first := strings.Index(after, "10.1.0.9/16"); first < 0 || first > strings.Index(after, "10.1.0.1/16") || strings.Contains(after, "10.2.0.1") {
		t.Errorf("addresses of the bridge after the failed ADD: %q", after)
	}
	r.dp.Fail = nil
	r.mustAdd(a)
	got := ns.IPT(t, "-4 addr show br0")
	for _, want := range []string{"10.1.0.1/16", "10.2.0.1/16"} {
		if !strings.Contains(got, want) {
			t.Errorf("the bridge does not have %s: %q", want, got)
		}
	}
}

// The node forwards, but the device that routes the pods' packets does not: ADD turns that on too.
func TestPrivilegedForwardingOfDevice(t *testing.T) {
	for _, tt := range []struct {
		name, before, device, more string
	}{
		{"existing bridge", "net/ipv4/conf/br0/forwarding", "br0", `,"bridge":"br0"`},
		{"new bridge on a node whose new devices do not forward", "net/ipv4/conf/default/forwarding", "br1", `,"bridge":"br1"`},
		{"VLAN gateway", "net/ipv4/conf/default/forwarding", "br0.100", `,"bridge":"br0","vlan":100`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			if tt.device == "br0.100" {
				require.VLANFiltering(t)
			} else {
				r.node.NS.IPT(t, "link add br0 type bridge")
			}
			for _, kv := range [][2]string{{"net/ipv4/ip_forward", "1"}, {tt.before, "0"}} {
				if err := r.node.WriteSysctl(kv[0], kv[1]); err != nil {
					t.Fatal(err)
				}
			}
			pod := r.node.PodT(t, "p1")
			a := call("1.1.0", "c1", "eth0", pod.Path, `"isGateway":true,"ipam":{"type":"fake"}`+tt.more)
			res := r.mustAdd(a)
			if err := r.node.Do(func() error {
				v, err := sysctl.Get("net/ipv4/conf/" + tt.device + "/forwarding")
				if v != "1" {
					t.Errorf("forwarding of %s is %q", tt.device, v)
				}
				return err
			}); err != nil {
				t.Error(err)
			}
			if err := r.check(a, res); err != nil {
				t.Errorf("CHECK: %v", err)
			}
		})
	}
}
