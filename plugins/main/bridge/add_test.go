// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniplugin"
	"github.com/sluice-cni/sluice/pkg/nl"
	"github.com/sluice-cni/sluice/pkg/sysctl"
	"github.com/sluice-cni/sluice/pkg/test/lab"
	"github.com/sluice-cni/sluice/pkg/version"
)

// life is the configuration of most tests: gateway and masquerading.
const life = `"bridge":"br0","isDefaultGateway":true,"ipMasq":true,"ipam":{"type":"fake"}`

// state describes a namespace in a few lines: links, addresses, routes.
func (r *rig) state(ns *lab.NS, ifname string) (lines []string) {
	r.t.Helper()
	r.within(ns, func(h *nl.Handle) error {
		l, err := h.LinkByName(ifname)
		if err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf("%s %s mtu %d up %v oper %s", l.Name, l.Kind, l.MTU, l.Up, l.OperState))
		as, err := h.AddrsOf(l.Index, nl.FamilyAll)
		if err != nil {
			return err
		}
		for _, a := range as {
			if !a.Prefix.Addr().IsLinkLocalUnicast() {
				lines = append(lines, fmt.Sprintf("addr %s tentative %v", a.Prefix, a.Tentative()))
			}
		}
		rs, err := h.RoutesWhere(nl.RouteFilter{LinkIndex: l.Index, Table: nl.TableMain})
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
	r.ipam.answer = answer46
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
	r.wantForwarding("1")
	if len(r.dp.eps) != 1 {
		t.Fatalf("endpoints: %v", r.dp.eps)
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
	wantCode(t, r.check(a, res), cnierr.CodeCheck, "eth0")
}

// wantResult compares the whole result with what the kernel has.
func (r *rig) wantResult(got types.Result, pod *lab.Pod) {
	r.t.Helper()
	var br, host, ctr nl.Link
	r.within(pod.NS, func(h *nl.Handle) (err error) {
		ctr, err = h.LinkByName("eth0")
		return err
	})
	r.host(func(h *nl.Handle) (err error) {
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
	for _, ep := range r.dp.eps {
		r.host(func(h *nl.Handle) error {
			br, err := h.LinkByName("br0")
			if err != nil {
				return err
			}
			host, err := h.LinkByName(res.Interfaces[1].Name)
			want := loader.Endpoint{Ref: ep.Ref, HostIfindex: host.Index, RouteIfindex: br.Index, HostIfName: host.Name,
				GatewayMAC: br.MAC, MTU: 1400, Addrs: ep.Addrs, MAC: ep.MAC}
			if diff := cmp.Diff(fmt.Sprint(want), fmt.Sprint(ep)); diff != "" {
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
			r.ipam.answer = answer46
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

// TestPrivilegedNothingLeft fails ADD at every step and looks for leftovers.
func TestPrivilegedNothingLeft(t *testing.T) {
	boom := errors.New("boom")
	const spoof = `"bridge":"br0","isGateway":true,"ipMasq":true,"macspoofchk":true,"promiscMode":true,"ipam":{"type":"fake"}`
	tests := []struct {
		name string
		conf string
		prep func(*rig, *lab.Pod)
		code uint
		says string
	}{
		{"IPAM fails", spoof, func(r *rig, _ *lab.Pod) { r.ipam.addErr = types.NewError(11, "try later", "") }, 11, "try later"},
		{"no address", spoof, func(r *rig, _ *lab.Pod) {
			r.ipam.answer = func(int) *types100.Result { return &types100.Result{} }
		}, cnierr.CodeConfig, "no address"},
		{"odd address", spoof, func(r *rig, _ *lab.Pod) {
			r.ipam.answer = func(int) *types100.Result {
				return &types100.Result{IPs: []*types100.IPConfig{{}}}
			}
		}, cnierr.CodeDecode, "address"},
		{"route that the kernel refuses", spoof, func(r *rig, _ *lab.Pod) {
			r.ipam.answer = func(n int) *types100.Result {
				x := answer4(n)
				x.Routes = []*types.Route{{Dst: cidr("192.0.2.0/24"), GW: ipc("203.0.113.9/32", "203.0.113.9").Gateway}}
				return x
			}
		}, cnierr.CodeKernel, "routes"},
		{"datapath refuses", spoof, func(r *rig, _ *lab.Pod) { r.dp.enableErr = boom }, cnierr.CodeKernel, "boom"},
		{"no datapath", spoof, func(r *rig, _ *lab.Pod) { r.dp.openErr = fmt.Errorf("old kernel: %w", loader.ErrUnavailable) }, cnierr.CodeNoDatapath, "old kernel"},
		{"no nft", spoof, func(r *rig, _ *lab.Pod) { r.nft.missing = true }, cnierr.CodeNoDatapath, "nft"},
		{"nft fails", spoof, func(r *rig, _ *lab.Pod) {
			r.plug = New(Deps{IPAM: r.ipam, Records: r.dir, Open: r.dp.open, OpenExisting: r.dp.openExisting, NFT: failingNFT{}})
		}, cnierr.CodeKernel, "nft says no"},
		{"records cannot be written", spoof, func(r *rig, _ *lab.Pod) {
			if err := os.WriteFile(r.dir.Path(), nil, 0o600); err != nil {
				r.t.Fatal(err)
			}
		}, cnierr.CodeState, "record"},
		{"odd conflict", spoof, func(r *rig, _ *lab.Pod) {
			r.host(func(h *nl.Handle) error { return h.AddVeth(nl.VethSpec{HostName: "br0", PeerName: "x"}) })
		},
			cnierr.CodeConflict, "br0"},
		{"interface exists", spoof, func(_ *rig, p *lab.Pod) {
			_ = p.Do(func() error {
				h, err := nl.New()
				if err != nil {
					return err
				}
				defer h.Close()
				return h.AddVeth(nl.VethSpec{HostName: "eth0", PeerName: "x"})
			})
		}, cnierr.CodeConflict, "eth0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			pod := r.node.PodT(t, "p1")
			tt.prep(r, pod)
			before, inPod := r.links(r.node.NS), r.links(pod.NS)
			_, err := r.add(call("1.1.0", "c1", "eth0", pod.Path, tt.conf))
			wantCode(t, err, tt.code, tt.says)
			if diff := cmp.Diff(before, r.links(r.node.NS)); diff != "" {
				t.Errorf("links of the node (-before +after):\n%s", diff)
			}
			if diff := cmp.Diff(inPod, r.links(pod.NS)); diff != "" {
				t.Errorf("links of the pod (-before +after):\n%s", diff)
			}
			if tt.code != cnierr.CodeState {
				r.mustBeClean()
			}
		})
	}
}

// failingNFT refuses changes and lists nothing.
type failingNFT struct{}

func (failingNFT) Available() error { return nil }

func (failingNFT) Run(_ context.Context, stdin []byte, _ ...string) ([]byte, error) {
	if len(stdin) > 0 {
		return nil, errors.New("nft says no")
	}
	return []byte(`{"nftables":[]}`), nil
}

func TestPrivilegedBadNamespace(t *testing.T) {
	r := newRig(t)
	plain := t.TempDir() + "/file"
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/run/netns/none", plain, ""} {
		_, err := r.add(call("1.1.0", "c1", "eth0", path, life))
		wantCode(t, err, cnierr.CodeNetNS)
	}
	_, err := r.add(call("1.1.0", "c1", "eth%d", r.node.PodT(t, "p1").Path, life))
	wantCode(t, err, cnierr.CodeEnvironment, "CNI_IFNAME", "eth%d")
	r.mustBeClean()
	if r.dp.opens != 0 || r.ipam.adds != 0 {
		t.Error("a call with a bad namespace got further than it should")
	}
}

// TestPrivilegedFailureSparesOthers makes the ADD that made the bridge fail
// after another pod has joined it.
func TestPrivilegedFailureSparesOthers(t *testing.T) {
	r := newRig(t)
	first, second := r.node.PodT(t, "p1"), r.node.PodT(t, "p2")
	joined := false
	inner := r.plug
	r.plug = New(Deps{IPAM: joiningIPAM{r.ipam, func(a *cniplugin.Args) {
		if a.ContainerID == "c1" && !joined {
			joined = true
			p := r.plug
			r.plug = inner
			r.mustAdd(call("1.1.0", "c2", "eth0", second.Path, `"bridge":"br0","isGateway":true,"ipam":{"type":"fake"}`))
			r.plug = p
		}
	}}, Records: r.dir, Open: r.dp.open, OpenExisting: r.dp.openExisting, NFT: r.nft})
	r.dp.enableErr = errors.New("boom")
	_, err := r.add(call("1.1.0", "c1", "eth0", first.Path, life))
	wantCode(t, err, cnierr.CodeKernel, "boom")
	if got := r.state(r.node.NS, "br0"); len(got) < 2 || got[1] != "addr 10.1.0.1/16 tentative false" {
		t.Errorf("the other pod lost its bridge: %v", got)
	}
	if got := r.links(first.NS); len(got) != 1 {
		t.Errorf("left in the pod: %v", got)
	}
}

func TestPrivilegedDefaultRouteWithoutGateway(t *testing.T) {
	r := newRig(t)
	pod := r.node.PodT(t, "p1")
	r.ipam.answer = func(n int) *types100.Result {
		x := answer46(n)
		def := &types.Route{Dst: cidr("0.0.0.0/0"), MTU: 1300}
		x.Routes = []*types.Route{def, {Dst: cidr("0.0.0.0/0"), MTU: 1300}, {Dst: cidr("::/0")}}
		return x
	}
	a := call("1.1.0", "c1", "eth0", pod.Path, life)
	res := r.mustAdd(a)
	got := r.state(pod.NS, "eth0")
	for _, want := range []string{"route 0.0.0.0/0 via 10.1.0.1", "route ::/0 via fd00::1"} {
		if !slices.Contains(got, want) {
			t.Errorf("no %q in %v", want, got)
		}
	}
	r.within(pod.NS, func(h *nl.Handle) error {
		rs, err := h.Routes(nl.FamilyV4)
		if err == nil && !slices.ContainsFunc(rs, func(x nl.Route) bool { return x.Dst.Bits() == 0 && x.MTU == 1300 }) {
			t.Errorf("the route's MTU is not applied: %+v", rs)
		}
		return err
	})
	if err := r.check(a, res); err != nil {
		t.Errorf("CHECK: %v", err)
	}
}

func TestPrivilegedForceAddress(t *testing.T) {
	r := newRig(t)
	nets := []string{"10.1.0.2/16 10.1.0.1", "10.2.0.2/16 10.2.0.1", "fd01::2/64 fd01::1", "fd01::3/48 fd01::9", "10.2.0.3/16 10.2.0.1"}
	r.ipam.answer = func(n int) *types100.Result {
		f := strings.Fields(nets[n-1])
		return &types100.Result{IPs: []*types100.IPConfig{ipc(f[0], f[1])}}
	}
	steps := []struct {
		force bool
		code  uint
		want  []string
	}{
		{false, 0, []string{"10.1.0.1/16"}},
		{false, cnierr.CodeConflict, []string{"10.1.0.1/16"}},
		{false, 0, []string{"10.1.0.1/16", "fd01::1/64"}}, // another family is no conflict
		{true, 0, []string{"10.1.0.1/16", "fd01::9/48"}},
		{true, 0, []string{"10.2.0.1/16", "fd01::9/48"}},
	}
	for i, s := range steps {
		pod := r.node.PodT(t, fmt.Sprintf("p%d", i))
		_, err := r.add(call("1.1.0", fmt.Sprintf("c%d", i), "eth0", pod.Path, fmt.Sprintf(`"bridge":"br0","isGateway":true,"forceAddress":%v,"ipam":{"type":"fake"}`, s.force)))
		if s.code != 0 {
			wantCode(t, err, s.code, "br0", "10.1.0.1/16", "10.2.0.1")
		} else if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		var got []string
		for _, line := range r.state(r.node.NS, "br0") {
			if f := strings.Fields(line); f[0] == "addr" {
				got = append(got, f[1])
			}
		}
		if diff := cmp.Diff(s.want, got); diff != "" {
			t.Errorf("step %d: addresses of the bridge (-want +got):\n%s", i, diff)
		}
	}
}

func TestPrivilegedThreeSubnets(t *testing.T) {
	r := newRig(t)
	pod := r.node.PodT(t, "p1")
	r.ipam.answer = func(int) *types100.Result { // no gateways: the first address of each subnet
		return &types100.Result{IPs: []*types100.IPConfig{ipc("10.1.0.7/16", ""), ipc("10.2.0.7/24", ""), ipc("fd01::7/64", "")}}
	}
	a := call("1.1.0", "c1", "eth0", pod.Path, `"bridge":"br0","isDefaultGateway":true,"ipam":{"type":"fake"}`)
	res := r.mustAdd(a)
	got := r.state(r.node.NS, "br0")
	for _, want := range []string{"addr 10.1.0.1/16 tentative false", "addr 10.2.0.1/24 tentative false", "addr fd01::1/64 tentative false"} {
		if !slices.Contains(got, want) {
			t.Errorf("no %q in %v", want, got)
		}
	}
	if err := r.check(a, res); err != nil {
		t.Errorf("CHECK: %v", err)
	}
}

func TestPrivilegedPortAndBridgeFlags(t *testing.T) {
	r := newRig(t)
	tests := []struct {
		conf string
		port nl.Port
		prom bool
	}{
		{`"bridge":"br1"`, nl.Port{}, false},
		{`"bridge":"br2","hairpinMode":true`, nl.Port{Hairpin: true}, false},
		{`"bridge":"br3","portIsolation":true,"promiscMode":true`, nl.Port{Isolated: true}, true},
		{`"bridge":"br1","promiscMode":true`, nl.Port{}, true}, // on an existing bridge
	}
	for i, tt := range tests {
		pod := r.node.PodT(t, fmt.Sprintf("p%d", i))
		a := call("1.1.0", fmt.Sprintf("c%d", i), "eth0", pod.Path, tt.conf)
		res := r.mustAdd(a)
		r.host(func(h *nl.Handle) error {
			host, err := h.LinkByName(res.Interfaces[1].Name)
			if err != nil {
				return err
			}
			br, err := h.LinkByIndex(host.MasterIndex)
			if *host.Port != tt.port || br.Promisc != tt.prom {
				t.Errorf("%s: port %+v, promiscuous %v", tt.conf, host.Port, br.Promisc)
			}
			return err
		})
		if err := r.check(a, res); err != nil {
			t.Errorf("CHECK %s: %v", tt.conf, err)
		}
	}
}

func TestPrivilegedDisableContainerInterface(t *testing.T) {
	r := newRig(t)
	pod := r.node.PodT(t, "p1")
	a := call("1.1.0", "c1", "eth0", pod.Path, `"bridge":"br0","disableContainerInterface":true`)
	res := r.mustAdd(a)
	if got := r.state(pod.NS, "eth0"); got[0] != "eth0 veth mtu 1500 up false oper down" {
		t.Errorf("pod: %v", got)
	}
	if err := r.check(a, res); err != nil {
		t.Errorf("CHECK: %v", err)
	}
}

func TestPrivilegedMAC(t *testing.T) {
	r := newRig(t)
	pod := r.node.PodT(t, "p1")
	const mac = "02:00:00:00:be:ef"
	res := r.mustAdd(call("1.1.0", "c1", "eth0", pod.Path, `"bridge":"br0","runtimeConfig":{"mac":"`+mac+`"}`))
	if got := res.Interfaces[2].Mac; got != mac {
		t.Errorf("MAC %s", got)
	}
}

// TestPrivilegedBridgeMACStays watches the bridge's address while pods come and
// go: pods keep it in their neighbour tables.
func TestPrivilegedBridgeMACStays(t *testing.T) {
	r := newRig(t)
	r.host(func(h *nl.Handle) error { return h.AddBridge(nl.BridgeSpec{Name: "br0", Up: true}) }) // an operator's, that follows its ports
	mac := ""
	for i := range 6 {
		pod := r.node.PodT(t, fmt.Sprintf("p%d", i))
		a := call("1.1.0", fmt.Sprintf("c%d", i), "eth0", pod.Path, life)
		res := r.mustAdd(a)
		if got := res.Interfaces[0].Mac; mac != "" && got != mac {
			t.Errorf("ADD %d: the bridge's address changed from %s to %s", i, mac, got)
		}
		mac = res.Interfaces[0].Mac
		if i%2 == 0 {
			if err := r.del(a); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestPrivilegedDAD(t *testing.T) {
	r := newRig(t)
	r.ipam.answer = answer6
	pod := r.node.PodT(t, "p1")
	start := time.Now()
	a := call("1.1.0", "c1", "eth0", pod.Path, `"bridge":"br0","isGateway":true,"enabledad":true,"ipam":{"type":"fake"}`)
	r.mustAdd(a)
	t.Logf("ADD with duplicate address detection took %v", time.Since(start))
	if got := r.state(pod.NS, "eth0"); !slices.Contains(got, "addr fd00::2/64 tentative false") {
		t.Errorf("pod: %v", got)
	}
	if err := pod.Do(func() error {
		v, err := sysctl.Get("net/ipv6/conf/eth0/accept_dad")
		if v != "1" {
			t.Errorf("accept_dad = %q", v)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	r.ipam.answer = func(int) *types100.Result { return answer6(1) } // the same address on the same bridge
	twin := r.node.PodT(t, "p2")
	_, err := r.add(call("1.1.0", "c2", "eth0", twin.Path, `"bridge":"br0","isGateway":true,"enabledad":true,"ipam":{"type":"fake"}`))
	wantCode(t, err, cnierr.CodeConflict, "fd00::2")
	if got := r.links(twin.NS); len(got) != 1 {
		t.Errorf("left in the twin: %v", got)
	}
}

func TestPrivilegedParallel(t *testing.T) {
	r := newRig(t)
	const n = 24
	var wg sync.WaitGroup
	pods := make([]*lab.Pod, n)
	for i := range n {
		pods[i] = r.node.PodT(t, fmt.Sprintf("p%d", i))
	}
	for i := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if _, err := r.add(call("1.1.0", fmt.Sprintf("c%d", i), "eth0", pods[i].Path, life)); err != nil {
				t.Errorf("ADD %d: %v", i, err)
			}
		}()
	}
	wg.Wait()
	if len(r.dp.eps) != n {
		t.Errorf("%d endpoints", len(r.dp.eps))
	}
	for i := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := r.del(call("1.1.0", fmt.Sprintf("c%d", i), "eth0", pods[i].Path, life)); err != nil {
				t.Errorf("DEL %d: %v", i, err)
			}
		}()
	}
	wg.Wait()
	r.mustBeClean(pods...)
}

// TestPrivilegedInterrupted is told to end while the IPAM plugin works.
func TestPrivilegedInterrupted(t *testing.T) {
	r := newRig(t)
	pod := r.node.PodT(t, "p1")
	ctx, cancel := context.WithCancel(t.Context())
	plug := New(Deps{IPAM: joiningIPAM{r.ipam, func(*cniplugin.Args) { cancel() }}, Records: r.dir, Open: r.dp.open, OpenExisting: r.dp.openExisting, NFT: r.nft})
	var err error
	if derr := r.node.Do(func() error {
		_, err = plug.Add(ctx, call("1.1.0", "c1", "eth0", pod.Path, full))
		return nil
	}); derr != nil {
		t.Fatal(derr)
	}
	wantCode(t, err, cnierr.CodeTryAgain, "interrupted")
	r.mustBeClean(pod)
	if got := r.links(r.node.NS); len(got) != 1 {
		t.Errorf("left on the node: %v", got)
	}
}
