// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	fake "github.com/sluice-cni/sluice/pkg/test/plugintest"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

const vlanConf = `"bridge":"br0","vlan":100,"vlanTrunk":[{"minID":200,"maxID":202}],"isGateway":true,"ipMasq":true,"ipam":{"type":"fake"}`

// mustFilterVLANs returns a rig on a kernel with CONFIG_BRIDGE_VLAN_FILTERING.
// Where the kernel lacks it, ADD must say so and leave nothing, and the rest of
// the test has nothing to look at; where it has it, all must work.
func mustFilterVLANs(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	pod := r.node.PodT(t, "probe")
	a := call("1.1.0", "probe", "eth0", pod.Path, vlanConf)
	_, err := r.add(a)
	if err != nil && cnierr.From(err).Code == cnierr.CodeUnsupported {
		fake.WantCode(t, err, cnierr.CodeUnsupported, "vlan", "CONFIG_BRIDGE_VLAN_FILTERING")
		r.mustBeClean(pod)
		if l := r.links(r.node.NS); len(l) != 1 {
			t.Errorf("left on the node: %v", l)
		}
		require.VLANFiltering(t)
		t.Fatal("refused on a kernel with CONFIG_BRIDGE_VLAN_FILTERING")
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := r.del(a); err != nil {
		t.Fatal(err)
	}
	r.mustBeCleanBut("br0.100")
	return r
}

// mustBeCleanBut allows a VLAN gateway and its port to be left.
func (r *rig) mustBeCleanBut(leg string) {
	r.t.Helper()
	if got := r.links(r.node.NS); len(got) != 4 || !slices.Contains(got, leg) { // lo, bridge, leg, its port
		r.t.Errorf("links of the node: %v", got)
	}
}

// vlans returns the VLANs of a port.
func (r *rig) vlans(name string) (vlans []rtnl.VLAN) {
	r.t.Helper()
	r.host(func(h *rtnl.Handle) error {
		l, err := h.LinkByName(name)
		if err != nil {
			return err
		}
		vlans, err = h.VLANs(l.Index)
		return err
	})
	return vlans
}

func TestPrivilegedVLAN(t *testing.T) {
	r := mustFilterVLANs(t)
	for i := range 2 { // the second pod finds the gateway made
		pod := r.node.PodT(t, fmt.Sprintf("p%d", i))
		a := call("1.1.0", fmt.Sprintf("c%d", i), "eth0", pod.Path, vlanConf)
		res := r.mustAdd(a)
		if len(res.Interfaces) != 4 || res.Interfaces[3].Name != "br0.100" || res.Interfaces[3].Sandbox != "" {
			t.Fatalf("interfaces %+v", res.Interfaces)
		}
		want := []rtnl.VLAN{{From: 100, To: 100, PVID: true, Untagged: true}, {From: 200, To: 202}}
		if diff := cmp.Diff(want, r.vlans(res.Interfaces[1].Name)); diff != "" {
			t.Errorf("VLANs (-want +got):\n%s", diff)
		}
		if err := r.check(a, res); err != nil {
			t.Errorf("CHECK: %v", err)
		}
		r.host(func(h *rtnl.Handle) error {
			leg, err := h.LinkByName("br0.100")
			for _, ep := range r.dp.Held {
				if ep.RouteIfindex != leg.Index || ep.GatewayMAC.String() != leg.MAC.String() {
					t.Errorf("endpoint %+v is not routed on br0.100", ep)
				}
			}
			return err
		})
		r.spoilVLAN(res)
		fake.WantCode(t, r.check(a, res), cnierr.CodeCheck, "VLAN 200-202")
		if err := r.del(a); err != nil {
			t.Error(err)
		}
	}
	if got := r.state(r.node.NS, "br0.100"); !slices.Contains(got, "addr 10.1.0.1/16 tentative false") {
		t.Errorf("gateway: %v", got)
	}
	r.mustBeCleanBut("br0.100")
}

func (r *rig) spoilVLAN(res *types100.Result) {
	r.t.Helper()
	r.host(func(h *rtnl.Handle) error {
		l, err := h.LinkByName(res.Interfaces[1].Name)
		if err != nil {
			return err
		}
		return h.DelVLANs(l.Index, rtnl.VLAN{From: 201, To: 201})
	})
}

// The VLAN gateway outlives the pods, so what is wrong with it stays wrong
// unless CHECK reports it and the next ADD fixes it.
func TestPrivilegedVLANGatewayMended(t *testing.T) {
	r := mustFilterVLANs(t)
	add := func(id string) (*cniskel.Args, *types100.Result) {
		a := call("1.1.0", id, "eth0", r.node.PodT(t, id).Path, vlanConf)
		return a, r.mustAdd(a)
	}
	leg := func(f func(h *rtnl.Handle, leg rtnl.Link) error) {
		t.Helper()
		r.host(func(h *rtnl.Handle) error {
			l, err := h.LinkByName("br0.100")
			if err != nil {
				return err
			}
			return f(h, l)
		})
	}
	first, res := add("first")
	for i, tt := range []struct {
		says  string
		spoil func(h *rtnl.Handle, leg rtnl.Link) error
	}{
		{"not in VLAN 100", func(h *rtnl.Handle, l rtnl.Link) error { return h.DelVLANs(l.PeerIndex, rtnl.VLAN{From: 100, To: 100}) }},
		{"is down", func(h *rtnl.Handle, l rtnl.Link) error { return h.SetDown(l.Index) }},
	} {
		leg(tt.spoil)
		fake.WantCode(t, r.check(first, res), cnierr.CodeCheck, tt.says)
		add(fmt.Sprintf("next%d", i))
		if err := r.check(first, res); err != nil {
			t.Errorf("%s: CHECK after the next ADD: %v", tt.says, err)
		}
	}
}

// TestPrivilegedVLANTraffic sends frames: pods of one VLAN reach each other and
// the gateway, pods of another do not.
func TestPrivilegedVLANTraffic(t *testing.T) {
	r := mustFilterVLANs(t)
	pods := map[string]int{"a": 100, "b": 100, "c": 101}
	addrs := map[string]string{}
	for _, name := range []string{"a", "b", "c"} {
		pod := r.node.PodT(t, name)
		res := r.mustAdd(call("1.1.0", name, "eth0", pod.Path, fmt.Sprintf(`"bridge":"br0","vlan":%d,"ipam":{"type":"fake"}`, pods[name])))
		addrs[name] = res.IPs[0].Address.IP.String()
		stop, err := pod.ServeTCP(addrs[name] + ":7000")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = stop() })
		if name == "b" || name == "c" {
			reach := r.reach(pod.NS, addrs["a"]+":7000")
			if want := name == "b"; reach != want {
				t.Errorf("pod %s reaches pod a: %v, want %v", name, reach, want)
			}
		}
	}
}

func TestPrivilegedVLANKinds(t *testing.T) {
	r := mustFilterVLANs(t)
	untagged := func(id uint16) rtnl.VLAN { return rtnl.VLAN{From: id, To: id, PVID: true, Untagged: true} }
	tests := []struct {
		conf string
		want []rtnl.VLAN
	}{
		{`"bridge":"br0","vlan":7`, []rtnl.VLAN{untagged(7)}},
		{`"bridge":"br0","vlan":7,"preserveDefaultVlan":true`, []rtnl.VLAN{{From: 1, To: 1, Untagged: true}, untagged(7)}},
		{`"bridge":"br0","vlanTrunk":[{"id":9}]`, []rtnl.VLAN{untagged(1), {From: 9, To: 9}}},
		{`"bridge":"br0","vlanTrunk":[]`, []rtnl.VLAN{untagged(1)}}, // as the bridge gives it
	}
	for i, tt := range tests {
		pod := r.node.PodT(t, fmt.Sprintf("p%d", i))
		a := call("1.1.0", fmt.Sprintf("c%d", i), "eth0", pod.Path, tt.conf)
		res := r.mustAdd(a)
		if diff := cmp.Diff(tt.want, r.vlans(res.Interfaces[1].Name)); diff != "" {
			t.Errorf("%s: VLANs (-want +got):\n%s", tt.conf, diff)
		}
		if err := r.check(a, res); err != nil {
			t.Errorf("%s: CHECK: %v", tt.conf, err)
		}
	}
}

func TestPrivilegedVLANNothingLeft(t *testing.T) {
	r := mustFilterVLANs(t)
	r.host(func(h *rtnl.Handle) error { // begin with an empty node
		for _, n := range []string{"br0.100", "br0"} {
			l, err := h.LinkByName(n)
			if err != nil {
				return err
			}
			if err := h.DelLink(l.Index); err != nil {
				return err
			}
		}
		return nil
	})
	pod := r.node.PodT(t, "p1")
	r.dp.Fail = map[string]error{"Enable": errors.New("boom")}
	_, err := r.add(call("1.1.0", "c1", "eth0", pod.Path, vlanConf))
	fake.WantCode(t, err, cnierr.CodeKernel, "boom")
	if got := r.links(r.node.NS); len(got) != 1 {
		t.Errorf("left on the node: %v", got)
	}
	r.mustBeClean(pod)
}

// The VLAN gateway has the MTU of the bridge, which others may have brought down
// by a port of theirs: what the host sends must fit through that port.
func TestPrivilegedVLANGatewayMTU(t *testing.T) {
	r := mustFilterVLANs(t)
	ns := r.node.NS
	ns.IPT(t, "link add br1 up type bridge vlan_filtering 1")
	ns.IPT(t, "link add nic1 mtu 1450 type veth peer name wire1")
	ns.IPT(t, "link set nic1 master br1 up")
	for i, conf := range []string{`"vlan":100`, `"vlan":101,"mtu":9000`} {
		pod := r.node.PodT(t, fmt.Sprintf("mtu%d", i))
		res := r.mustAdd(call("1.1.0", fmt.Sprintf("mtu%d", i), "eth0", pod.Path, `"bridge":"br1","isGateway":true,"ipam":{"type":"fake"},`+conf))
		if got := res.Interfaces[3]; got.Mtu != 1450 {
			t.Errorf("%s: the VLAN gateway %s has the MTU %d, want 1450", conf, got.Name, got.Mtu)
		}
	}
}
