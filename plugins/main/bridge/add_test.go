// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/sysctl"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	fake "github.com/sluice-cni/sluice/pkg/test/plugintest"
	"github.com/sluice-cni/sluice/pkg/version"
)

// life is the configuration of most tests: gateway and masquerading.
const life = `"bridge":"br0","isDefaultGateway":true,"ipMasq":true,"ipam":{"type":"fake"}`

// state describes a namespace in a few lines: links, addresses, routes.
func (r *rig) state(ns *netlab.NS, ifname string) (lines []string) {
	r.t.Helper()
	r.within(ns, func(h *rtnl.Handle) error {
		l, err := h.LinkByName(ifname)
		if err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf("%s %s mtu %d up %v oper %s", l.Name, l.Kind, l.MTU, l.Up, l.OperState))
		as, err := h.AddrsOf(l.Index, rtnl.FamilyAll)
		if err != nil {
			return err
		}
		for _, a := range as {
			if !a.Prefix.Addr().IsLinkLocalUnicast() {
				lines = append(lines, fmt.Sprintf("addr %s tentative %v", a.Prefix, a.Tentative()))
			}
		}
		rs, err := h.RoutesWhere(rtnl.RouteFilter{LinkIndex: l.Index, Table: rtnl.TableMain})
		for _, x := range rs {
			if !x.Dst.Addr().IsLinkLocalUnicast() && !x.Dst.Addr().IsMulticast() {
				gw := ""
				if x.Gateway.IsValid() {
					gw = " via " + x.Gateway.String()
				}
				lines = append(lines, "route "+x.Dst.String()+gw)
			}
		}
		return err
	})
	slices.Sort(lines[1:])
	return lines
}

func TestPrivilegedLife(t *testing.T) {
	r := newRig(t)
	r.ipam.Answer = answer46
	pod := r.node.PodT(t, "p1")
	a := call("1.1.0", "c1", "eth0", pod.Path, life+`,"mtu":1400,"dns":{"nameservers":["10.1.0.53"]}`)
	res, err := r.add(a)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"eth0 veth mtu 1400 up true oper up", "addr 10.1.0.3/16 tentative false", "addr fd00::2/64 tentative false",
		"route 0.0.0.0/0 via 10.1.0.1", "route 10.1.0.0/16", "route 192.0.2.0/24 via 10.1.0.1", "route ::/0 via fd00::1", "route fd00::/64"}
	if diff := cmp.Diff(want, r.state(pod.NS, "eth0")); diff != "" {
		t.Errorf("pod (-want +got):\n%s", diff)
	}
	want = []string{"br0 bridge mtu 1400 up true oper up", "addr 10.1.0.1/16 tentative false", "addr fd00::1/64 tentative false", "route 10.1.0.0/16", "route fd00::/64"}
	if diff := cmp.Diff(want, r.state(r.node.NS, "br0")); diff != "" {
		t.Errorf("bridge (-want +got):\n%s", diff)
	}
	r.wantResult(res, pod)
	r.wantBarePort(res.(*types100.Result).Interfaces[1].Name)
	r.wantForwarding("1")
	if len(r.dp.Held) != 1 {
		t.Fatalf("endpoints: %v", r.dp.Held)
	}
	r.wantEndpoint(res.(*types100.Result))
	if err := r.check(a, res); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	for range 2 {
		if err := r.del(a); err != nil {
			t.Errorf("DEL: %v", err)
		}
	}
	r.mustBeClean(pod)
	if got := r.links(r.node.NS); !slices.Contains(got, "br0") {
		t.Errorf("the bridge went with the last pod: %v", got)
	}
	fake.WantCode(t, r.check(a, res), cnierr.CodeCheck, "eth0")
}

// wantBarePort fails if the host veth has an address, even a link-local one:
// every later ADD would walk it.
func (r *rig) wantBarePort(name string) {
	r.t.Helper()
	r.host(func(h *rtnl.Handle) error {
		l, err := h.LinkByName(name)
		if err != nil {
			return err
		}
		addrs, err := h.AddrsOf(l.Index, rtnl.FamilyAll)
		if err == nil && (len(addrs) != 0 || !l.NoRA) {
			r.t.Errorf("%s has addresses %v, takes no advertisements: %v", name, addrs, l.NoRA)
		}
		return err
	})
}

// wantResult compares the whole result with what the kernel has.
func (r *rig) wantResult(got types.Result, pod *netlab.Pod) {
	r.t.Helper()
	var br, host, ctr rtnl.Link
	r.within(pod.NS, func(h *rtnl.Handle) (err error) {
		ctr, err = h.LinkByName("eth0")
		return err
	})
	r.host(func(h *rtnl.Handle) (err error) {
		br, err = h.LinkByName("br0")
		if err == nil {
			host, err = h.LinkByIndex(ctr.PeerIndex)
		}
		return err
	})
	want := map[string]any{
		"cniVersion": "1.1.0",
		"interfaces": []any{
			map[string]any{"name": "br0", "mac": br.MAC.String(), "mtu": 1400.},
			map[string]any{"name": host.Name, "mac": host.MAC.String(), "mtu": 1400.},
			map[string]any{"name": "eth0", "mac": ctr.MAC.String(), "mtu": 1400., "sandbox": pod.Path},
		},
		"ips": []any{
			map[string]any{"interface": 2., "address": "10.1.0.3/16", "gateway": "10.1.0.1"},
			map[string]any{"interface": 2., "address": "fd00::2/64", "gateway": "fd00::1"},
		},
		"routes": []any{
			map[string]any{"dst": "192.0.2.0/24"},
			map[string]any{"dst": "0.0.0.0/0", "gw": "10.1.0.1"},
			map[string]any{"dst": "::/0", "gw": "fd00::1"},
		},
		"dns": map[string]any{"nameservers": []any{"10.1.0.53"}},
	}
	raw, err := json.Marshal(got)
	if err != nil {
		r.t.Fatal(err)
	}
	var have map[string]any
	if err := json.Unmarshal(raw, &have); err != nil {
		r.t.Fatal(err)
	}
	if diff := cmp.Diff(want, have); diff != "" {
		r.t.Errorf("result (-want +got):\n%s", diff)
	}
}

func (r *rig) wantForwarding(want string) {
	r.t.Helper()
	if err := r.node.Do(func() error {
		for _, k := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
			if v, err := sysctl.Get(k); err != nil || v != want {
				r.t.Errorf("%s = %q, %v", k, v, err)
			}
		}
		return nil
	}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) wantEndpoint(res *types100.Result) {
	r.t.Helper()
	for _, ep := range r.dp.Held {
		r.host(func(h *rtnl.Handle) error {
			br, err := h.LinkByName("br0")
			if err != nil {
				return err
			}
			host, err := h.LinkByName(res.Interfaces[1].Name)
			want := loader.Endpoint{Ref: ep.Ref, HostIfindex: host.Index, RouteIfindex: br.Index, HostIfName: host.Name,
				GatewayMAC: br.MAC, MTU: 1400, Addrs: ep.Addrs, MAC: ep.MAC}
			if diff := cmp.Diff(fmt.Sprint(want), fmt.Sprint(ep.Endpoint)); diff != "" {
				r.t.Errorf("endpoint (-want +got):\n%s", diff)
			}
			if fmt.Sprint(ep.Addrs) != "[10.1.0.3/16 fd00::2/64]" || ep.MAC.String() != res.Interfaces[2].Mac || ep.Ref.ContainerID != "c1" {
				r.t.Errorf("endpoint %+v", ep)
			}
			return err
		})
	}
}

// TestPrivilegedVersions runs the whole life in every version of the
// specification, with and without addresses.
func TestPrivilegedVersions(t *testing.T) {
	for _, v := range version.CNI() {
		t.Run(v, func(t *testing.T) {
			r := newRig(t)
			r.ipam.Answer = answer46
			pod := r.node.PodT(t, "p1")
			a := call(v, "c1", "eth0", pod.Path, life)
			res, err := r.add(a)
			if err != nil {
				t.Fatal(err)
			}
			raw, _ := json.Marshal(res)
			if got := strings.Contains(string(raw), `"mtu"`); got != (v == "1.1.0") {
				t.Errorf("mtu in the result: %v: %s", got, raw)
			}
			if res.Version() != v {
				t.Errorf("version %s", res.Version())
			}
			if v >= "0.4.0" {
				if err := r.check(a, res); err != nil {
					t.Errorf("CHECK: %v", err)
				}
			}
			if err := r.del(a); err != nil {
				t.Error(err)
			}
			r.mustBeClean(pod)
			r.layer2(v)
		})
	}
}

func (r *rig) layer2(v string) {
	r.t.Helper()
	pod := r.node.PodT(r.t, "l2")
	a := call(v, "c2", "eth0", pod.Path, `"bridge":"brl2"`)
	res, err := r.add(a)
	if v < "0.3.0" { // no version before it can say that there is no address
		if obj := cnierr.From(err); obj == nil || obj.Code != cnierr.CodeUnsupported {
			r.t.Errorf("ADD: %v", err)
		}
		if got := r.links(r.node.NS); slices.Contains(got, "brl2") {
			r.t.Errorf("left behind: %v", got)
		}
		return
	}
	if err != nil {
		r.t.Fatal(err)
	}
	if got := r.state(pod.NS, "eth0"); got[0] != "eth0 veth mtu 1500 up true oper up" {
		r.t.Errorf("pod: %v", got)
	}
	if v >= "0.4.0" {
		if err := r.check(a, res); err != nil {
			r.t.Errorf("CHECK of layer 2: %v", err)
		}
	}
	if err := r.del(a); err != nil {
		r.t.Error(err)
	}
	r.mustBeClean(pod)
}
