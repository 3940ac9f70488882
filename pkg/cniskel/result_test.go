// SPDX-License-Identifier: Apache-2.0

package cniskel

import (
	"bytes"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types040 "github.com/containernetworking/cni/pkg/types/040"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
)

// anyResult has each part of a result with a chance of one half.
func anyResult(r *rand.Rand) *types100.Result {
	yes := func() bool { return r.IntN(2) == 0 }
	text := func() string {
		return []string{"", "eth0", "/run/netns/a b", `q"\`, "<&>", "\u2028\u00e4", "\xff", "tab\t\x7f"}[r.IntN(8)]
	}
	texts := func() []string { return []string{text(), text()}[:r.IntN(3)] }
	number := func() int { return []int{0, 1, 1500, -1, 4294967295}[r.IntN(5)] }
	ip := func() net.IP {
		return []net.IP{nil, {}, net.IPv4(10, 0, 0, 1), net.IPv4(10, 0, 0, 1).To4(), net.ParseIP("2001:db8::1")}[r.IntN(5)]
	}
	subnet := func() net.IPNet {
		return []net.IPNet{{}, {IP: net.IPv4(10, 0, 0, 1).To4(), Mask: net.CIDRMask(24, 32)}, {IP: net.IPv4(10, 0, 0, 1), Mask: net.CIDRMask(8, 32)}, {IP: net.ParseIP("2001:db8::1"), Mask: net.CIDRMask(64, 128)}}[r.IntN(4)]
	}
	pointer := func() *int {
		if yes() {
			return nil
		}
		return types100.Int(number())
	}
	res := &types100.Result{CNIVersion: []string{"", "1.0.0", "1.1.0"}[r.IntN(3)]}
	for range r.IntN(3) {
		res.Interfaces = append(res.Interfaces, &types100.Interface{Name: text(), Mac: text(), Mtu: number(), Sandbox: text(), SocketPath: text(), PciID: text()})
	}
	for range r.IntN(3) {
		res.IPs = append(res.IPs, &types100.IPConfig{Interface: pointer(), Address: subnet(), Gateway: ip()})
	}
	for range r.IntN(3) {
		res.Routes = append(res.Routes, &types.Route{Dst: subnet(), GW: ip(), MTU: number(), AdvMSS: number(), Priority: number(), Table: pointer(), Scope: pointer()})
	}
	if yes() {
		res.DNS = types.DNS{Nameservers: texts(), Domain: text(), Search: texts(), Options: texts()}
	}
	return res
}

func TestPrintTo(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	results := []types.Result{
		&types100.Result{}, &types100.Result{Interfaces: []*types100.Interface{}, Routes: []*types.Route{}},
		&types040.Result{CNIVersion: "0.4.0"},
		&types100.Result{Interfaces: []*types100.Interface{nil}},
		&types100.Result{IPs: []*types100.IPConfig{{Gateway: net.IP{1}}}},
		&types100.Result{Routes: []*types.Route{{GW: net.IP{1, 2}}}},
	}
	for range 2000 {
		results = append(results, anyResult(random))
	}
	for _, r := range results {
		var want, got bytes.Buffer
		wantErr, err := r.PrintTo(&want), printTo(&got, r)
		if (err == nil) != (wantErr == nil) {
			t.Errorf("%+v: %v, the library: %v", r, err, wantErr)
		}
		if diff := cmp.Diff(want.String(), got.String()); diff != "" {
			t.Fatalf("%+v (-want +got):\n%s", r, diff)
		}
	}
}
