// SPDX-License-Identifier: Apache-2.0

package sublink_test

import (
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/test/plugintest"
)

// Several gateways for one destination are all used, and CHECK knows each.
func TestPrivilegedSeveralGateways(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *stage) {
		gw := func(ip string) types.Route {
			if strings.Contains(ip, ":") {
				return types.Route{Dst: plugintest.CIDR("2001:db8:9::/48"), GW: plugintest.IP(ip+"/64", ip).Gateway}
			}
			return types.Route{Dst: plugintest.CIDR("198.51.100.0/24"), GW: plugintest.IP(ip+"/16", ip).Gateway}
		}
		s.IPAM.Answer = func(int) *types100.Result {
			res := plugintest.Answer46(1)
			for _, ip := range []string{"10.1.0.8", "10.1.0.9", "fd00::8", "fd00::9"} {
				r := gw(ip)
				res.Routes = append(res.Routes, &r)
			}
			return res
		}
		res := s.MustAdd(s.call())
		out := strings.Join(strings.Fields(s.IP(s.pod.NS, "route show 198.51.100.0/24")+s.IP(s.pod.NS, "-6 route show 2001:db8:9::/48")), " ")
		for _, hop := range []string{"10.1.0.8", "10.1.0.9", "fd00::8", "fd00::9"} {
			if !strings.Contains(out, "nexthop via "+hop+" dev eth0 weight 1") {
				t.Errorf("%s is not used: %s", hop, out)
			}
		}
		if err := s.Check(s.call(), res); err != nil {
			t.Errorf("CHECK: %v", err)
		}
	})
}
