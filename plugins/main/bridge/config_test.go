// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"net/netip"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	fake "github.com/sluice-cni/sluice/pkg/test/plugintest"
)

func TestParseRefuses(t *testing.T) {
	const ipam = `"ipam":{"type":"host-local"}`
	tests := []struct {
		name, conf string
		code       uint
		says       []string
	}{
		{"not an object", `"ipam":5`, cnierr.CodeDecode, []string{"ipam"}},
		{"mtu as text", `"mtu":"9000"`, cnierr.CodeDecode, []string{"mtu"}},
		{"bridge name too long", `"bridge":"abcdefghijklmnop"`, cnierr.CodeConfig, []string{"bridge", "abcdefghijklmnop"}},
		{"bridge name with slash", `"bridge":"a/b"`, cnierr.CodeConfig, []string{"bridge", "a/b"}},
		{"bridge name of dots", `"bridge":".."`, cnierr.CodeConfig, []string{"bridge"}},
		{"bridge name as format", `"bridge":"br%d"`, cnierr.CodeConfig, []string{"bridge", "br%d"}},
		{"mtu negative", `"mtu":-1`, cnierr.CodeConfig, []string{"mtu", "-1"}},
		{"mtu too small", `"mtu":67`, cnierr.CodeConfig, []string{"mtu", "67"}},
		{"mtu too big", `"mtu":65536`, cnierr.CodeConfig, []string{"mtu", "65536"}},
		{"vlan negative", `"vlan":-1`, cnierr.CodeConfig, []string{"vlan", "-1"}},
		{"vlan too big", `"vlan":4095`, cnierr.CodeConfig, []string{"vlan", "4095"}},
		{"trunk id 0", `"vlanTrunk":[{"id":0}]`, cnierr.CodeConfig, []string{"vlanTrunk[0].id", "0"}},
		{"trunk id too big", `"vlanTrunk":[{"id":1},{"id":4095}]`, cnierr.CodeConfig, []string{"vlanTrunk[1].id", "4095"}},
		{"trunk min too small", `"vlanTrunk":[{"minID":0,"maxID":5}]`, cnierr.CodeConfig, []string{"minID", "0"}},
		{"trunk max too big", `"vlanTrunk":[{"minID":5,"maxID":5000}]`, cnierr.CodeConfig, []string{"maxID", "5000"}},
		{"trunk min above max", `"vlanTrunk":[{"minID":9,"maxID":5}]`, cnierr.CodeConfig, []string{"minID", "9", "5"}},
		{"trunk min alone", `"vlanTrunk":[{"minID":9}]`, cnierr.CodeConfig, []string{"minID", "9"}},
		{"trunk max alone", `"vlanTrunk":[{"maxID":9}]`, cnierr.CodeConfig, []string{"maxID", "9"}},
		{"hairpin and promisc", `"hairpinMode":true,"promiscMode":true`, cnierr.CodeConfig, []string{"hairpinMode", "promiscMode"}},
		{"no interface but addresses", `"disableContainerInterface":true,` + ipam, cnierr.CodeConfig, []string{"disableContainerInterface", "ipam"}},
		{"unknown back end", `"ipMasqBackend":"firewalld"`, cnierr.CodeConfig, []string{"ipMasqBackend", "firewalld"}},
		{"unknown kind of device", `"deviceKind":"macvlan"`, cnierr.CodeConfig, []string{"deviceKind", "macvlan", "netkit"}},
		{"mac that is none", `"runtimeConfig":{"mac":"c2:11:22"}`, cnierr.CodeConfig, []string{"runtimeConfig.mac", "c2:11:22"}},
		{"multicast mac", `"args":{"cni":{"mac":"01:00:00:00:00:01"}}`, cnierr.CodeConfig, []string{"args.cni.mac", "01:00:00:00:00:01"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parse(call("1.1.0", "c", "eth0", "/x", tt.conf))
			fake.WantCode(t, err, tt.code, tt.says...)
		})
	}
	a := call("1.1.0", "c", "eth0", "/x", "")
	a.Args = "MAC=zz"
	_, err := parse(a)
	fake.WantCode(t, err, cnierr.CodeEnvironment, "MAC", "zz")
	for _, v := range []string{"0.1.0", "0.2.0", ""} {
		_, err := parse(call(v, "c", "eth0", "/x", ""))
		fake.WantCode(t, err, cnierr.CodeUnsupported, "cniVersion")
	}
}

func TestParseAccepts(t *testing.T) {
	tests := []struct {
		name, conf string
		check      func(*request) bool
	}{
		{"defaults", ``, func(r *request) bool {
			return r.Bridge == "cni0" && !r.vlanAware() && r.ipamType == "" && r.mac == nil && !r.masquerade()
		}},
		{"case of keys", `"BRIDGE":"br1","IsGateway":true`, func(r *request) bool { return r.Bridge == "br1" && r.IsGateway }},
		{"unknown keys", `"whatever":[1]`, func(r *request) bool { return true }},
		{"default gateway implies gateway", `"isDefaultGateway":true`, func(r *request) bool { return r.IsGateway }},
		{"empty trunk filters", `"vlanTrunk":[]`, func(r *request) bool { return r.vlanAware() && len(r.trunk) == 0 }},
		{"null trunk does not", `"vlanTrunk":null`, func(r *request) bool { return !r.vlanAware() }},
		{"masquerade needs addresses", `"ipMasq":true,"ipMasqBackend":"iptables"`, func(r *request) bool { return !r.masquerade() }},
		{"masquerade by default", `"ipMasq":true,"ipam":{"type":"x"}`, func(r *request) bool { return r.masquerade() }},
		{"masquerade by name", `"ipMasq":true,"ipMasqBackend":"ebpf","ipam":{"type":"x"}`, func(r *request) bool { return r.masquerade() }},
		{"bounds", `"vlan":4094,"mtu":65535`, func(r *request) bool { return r.VLAN == 4094 && r.MTU == 65535 }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := parse(call("1.1.0", "c", "eth0", "/x", tt.conf))
			if err != nil || !tt.check(r) {
				t.Fatalf("parse: %v, %+v", err, r)
			}
		})
	}
}

func TestMACPrecedence(t *testing.T) {
	const env, args, rt = "02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03"
	inArgs, inRT := `"args":{"cni":{"mac":"`+args+`"}}`, `"runtimeConfig":{"mac":"`+rt+`"}`
	tests := []struct{ env, conf, want string }{
		{"", "", ""},
		{"IgnoreUnknown=1;K8S_POD_NAME=x;MAC=" + env, "", env},
		{"MAC=" + env, inArgs, args},
		{"MAC=" + env, inArgs + "," + inRT, rt},
		{"", inRT, rt},
		// What a later source replaces may be a placeholder.
		{"MAC=placeholder", inArgs, args},
		{"", `"args":{"cni":{"mac":"placeholder"}},` + inRT, rt},
	}
	for _, tt := range tests {
		a := call("1.1.0", "c", "eth0", "/x", tt.conf)
		a.Args = tt.env
		r, err := parse(a)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.mac.String(); got != tt.want {
			t.Errorf("CNI_ARGS %q, conf %q: %s, want %s", tt.env, tt.conf, got, tt.want)
		}
	}
}

// STATUS has no runtimeConfig: what the runtime will replace is not looked at.
func TestStatusWithPlaceholder(t *testing.T) {
	for _, tt := range []struct {
		id, capabilities string
		code             uint
	}{{"", `,"capabilities":{"mac":true}`, 0}, {"", ``, cnierr.CodeConfig}, {"c", `,"capabilities":{"mac":true}`, cnierr.CodeConfig}} {
		_, err := parse(call("1.1.0", tt.id, "eth0", "/x", `"args":{"cni":{"mac":"placeholder"}}`+tt.capabilities))
		if tt.code == 0 && err != nil {
			t.Errorf("container %q, %s: %v", tt.id, tt.capabilities, err)
		} else if tt.code != 0 {
			fake.WantCode(t, err, tt.code, "args.cni.mac")
		}
	}
}

func TestTrunk(t *testing.T) {
	tests := []struct {
		name, conf string
		want       []rtnl.VLAN
	}{
		{"ids join", `[{"id":3},{"id":1},{"id":2},{"id":2}]`, []rtnl.VLAN{{From: 1, To: 3}}},
		{"range and id in one", `[{"minID":10,"maxID":12,"id":20}]`, []rtnl.VLAN{{From: 10, To: 12}, {From: 20, To: 20}}},
		{"overlap", `[{"minID":10,"maxID":20},{"minID":15,"maxID":25}]`, []rtnl.VLAN{{From: 10, To: 25}}},
		{"all", `[{"minID":1,"maxID":4094}]`, []rtnl.VLAN{{From: 1, To: 4094}}},
		{"empty item", `[{}]`, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := parse(call("1.1.0", "c", "eth0", "/x", `"vlanTrunk":`+tt.conf))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, r.trunk); diff != "" {
				t.Errorf("trunk (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPortVLANs(t *testing.T) {
	untagged := func(id uint16) rtnl.VLAN { return rtnl.VLAN{From: id, To: id, PVID: true, Untagged: true} }
	tests := []struct {
		name  string
		vlan  int
		trunk []rtnl.VLAN
		want  []rtnl.VLAN
	}{
		{"none", 0, nil, nil},
		{"access", 5, nil, []rtnl.VLAN{untagged(5)}},
		{"trunk alone keeps VLAN 1 untagged", 0, []rtnl.VLAN{{From: 7, To: 9}}, []rtnl.VLAN{untagged(1), {From: 7, To: 9}}},
		{"trunk with 1", 0, []rtnl.VLAN{{From: 1, To: 9}}, []rtnl.VLAN{untagged(1), {From: 2, To: 9}}},
		{"both, one in the other", 5, []rtnl.VLAN{{From: 4, To: 6}}, []rtnl.VLAN{untagged(5), {From: 4, To: 4}, {From: 6, To: 6}}},
		{"the same", 5, []rtnl.VLAN{{From: 5, To: 5}}, []rtnl.VLAN{untagged(5)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := portVLANs(tt.vlan, tt.trunk)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("VLANs (-want +got):\n%s", diff)
			}
			for _, w := range tt.want {
				if !covered(w, got) {
					t.Errorf("%+v is not covered by what was asked for", w)
				}
			}
		})
	}
}

func TestWithDefault(t *testing.T) {
	gw4, gw6 := fake.IP("10.1.0.2/16", "10.1.0.1").Gateway, fake.IP("fd00::2/64", "fd00::1").Gateway
	route := func(dst, gw string) *types.Route {
		r := &types.Route{Dst: fake.CIDR(dst)}
		if gw != "" {
			r.GW = fake.IP("10.0.0.1/8", gw).Gateway
		}
		return r
	}
	show := func(rs []*types.Route) (s []string) {
		for _, r := range rs {
			s = append(s, r.Dst.String()+" "+r.GW.String())
		}
		return s
	}
	tests := []struct {
		name string
		in   []*types.Route
		want []string
	}{
		{"none", nil, []string{"0.0.0.0/0 10.1.0.1", "::/0 fd00::1"}},
		{"one with a gateway stays", []*types.Route{route("0.0.0.0/0", "10.9.9.9")}, []string{"0.0.0.0/0 10.9.9.9", "::/0 fd00::1"}},
		{"one without gets it", []*types.Route{route("0.0.0.0/0", "")}, []string{"0.0.0.0/0 10.1.0.1", "::/0 fd00::1"}},
		{"of the other family", []*types.Route{route("::/0", "")}, []string{"::/0 fd00::1", "0.0.0.0/0 10.1.0.1"}},
		{"not a default", []*types.Route{route("10.9.0.0/16", "")}, []string{"10.9.0.0/16 <nil>", "0.0.0.0/0 10.1.0.1", "::/0 fd00::1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := withDefault(withDefault(tt.in, gw4), gw6)
			if diff := cmp.Diff(tt.want, show(got)); diff != "" {
				t.Errorf("routes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConflicts(t *testing.T) {
	p := netip.MustParsePrefix
	tests := []struct {
		have, w string
		want    []netip.Prefix
		yes     bool
	}{
		{"10.1.0.1/16", "10.2.0.1/16", nil, true}, // every other IPv4 address
		{"10.1.0.1/16", "10.2.0.1/16", []netip.Prefix{p("10.1.0.1/16"), p("10.2.0.1/16")}, false},
		{"fd00::1/64", "fd01::1/64", nil, false},
		{"fd00::1/64", "fd00::2/64", nil, true},
		{"fd00::1/64", "fd00::2/48", nil, true},
		{"fe80::1/64", "fd00::1/64", nil, false},
		{"10.1.0.1/16", "fd00::1/64", nil, false},
	}
	for _, tt := range tests {
		if got := conflicts(p(tt.have), p(tt.w), tt.want); got != tt.yes {
			t.Errorf("conflicts(%s, %s) = %v", tt.have, tt.w, got)
		}
	}
}
