// SPDX-License-Identifier: Apache-2.0

package podiface

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

func ipNet(s string) net.IPNet {
	p := netip.MustParsePrefix(s)
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func ptr(v int) *int { return &v }

func TestRoutes(t *testing.T) {
	res := &types100.Result{
		IPs: []*types100.IPConfig{
			{Address: ipNet("10.0.0.2/24"), Gateway: net.ParseIP("10.0.0.1")},
			{Address: ipNet("fd00::2/64"), Gateway: net.ParseIP("fd00::1")},
			{Address: ipNet("10.9.0.2/24"), Gateway: net.ParseIP("10.9.0.1")},
		},
		Routes: []*types.Route{
			{Dst: ipNet("0.0.0.0/0")},
			{Dst: ipNet("0.0.0.0/0")}, // repeated
			{Dst: ipNet("::/0")},
			{Dst: ipNet("192.0.2.7/24"), GW: net.ParseIP("10.0.0.9"), MTU: 1400, AdvMSS: 1360, Priority: 50, Table: ptr(100), Scope: ptr(253)},
		},
	}
	got, err := Routes(res, 7)
	if err != nil {
		t.Fatal(err)
	}
	gw := netip.MustParseAddr
	want := []rtnl.Route{
		{LinkIndex: 7, Dst: netip.MustParsePrefix("0.0.0.0/0"), Gateway: gw("10.0.0.1")},
		{LinkIndex: 7, Dst: netip.MustParsePrefix("::/0"), Gateway: gw("fd00::1")},
		{
			LinkIndex: 7, Dst: netip.MustParsePrefix("192.0.2.0/24"), Gateway: gw("10.0.0.9"),
			Table: 100, Scope: rtnl.ScopeLink, Priority: 50, MTU: 1400, AdvMSS: 1360,
		},
	}
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
		t.Error(d)
	}
}

func TestRoutesRefused(t *testing.T) {
	dst := ipNet("10.0.0.0/8")
	tests := []struct {
		name, want string
		r          types.Route
	}{
		{"no destination", "", types.Route{}},
		{"scope", "scope 300", types.Route{Dst: dst, Scope: ptr(300)}},
		{"table", "table -1", types.Route{Dst: dst, Table: ptr(-1)}},
		{"mtu", "mtu -5", types.Route{Dst: dst, MTU: -5}},
		{"advmss", "advmss -5", types.Route{Dst: dst, AdvMSS: -5}},
		{"priority", "priority -5", types.Route{Dst: dst, Priority: -5}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Routes(&types100.Result{Routes: []*types.Route{&tc.r}}, 1)
			if err == nil || cnierr.From(err).Code != cnierr.CodeDecode || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want code %d with %q", err, cnierr.CodeDecode, tc.want)
			}
		})
	}
}
