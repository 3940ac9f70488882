// SPDX-License-Identifier: Apache-2.0

package ptp

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/test/plugintest"
	"github.com/sluice-cni/sluice/plugins/meta/sbr"
)

func TestPrivilegedSBR(t *testing.T) {
	for _, hints := range []bool{false, true} {
		for _, ips := range []string{"gateways", "no gateways", "IPv4 only"} {
			t.Run(fmt.Sprint(hints, ips), func(t *testing.T) {
				s := newStage(t)
				s.IPAM.Answer = func(n int) *types100.Result {
					r := plugintest.Answer46(n)
					if ips == "IPv4 only" { // many a configuration names both default routes whatever its ranges are
						r.IPs = r.IPs[:1]
						return r
					}
					r.Routes = append(r.Routes, &types.Route{Dst: plugintest.CIDR("192.0.2.0/24"), MTU: 1400}, &types.Route{Dst: plugintest.CIDR("2001:db8::/64"), Priority: 7})
					if ips == "no gateways" {
						for _, ip := range r.IPs {
							ip.Gateway = nil
						}
					}
					return r
				}
				c := s.call()
				res := s.MustAdd(c)
				if err := s.Check(c, res); err != nil {
					t.Fatal(err)
				}
				before := s.IP(s.pod.NS, "route") + s.IP(s.pod.NS, "-6 route")
				p := sbr.New(sbr.Deps{Records: s.Dir})
				raw, _ := json.Marshal(res)
				conf := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net1","type":"sbr","addSourceHints":%v,"prevResult":%s}`, hints, raw)
				a := &cniskel.Args{Log: log.NewNop(), CmdArgs: cniskel.CmdArgs{ContainerID: "c1", IfName: "eth0", Netns: s.pod.Path, StdinData: []byte(conf)}}
				if err := s.Node.Do(func() error { _, err := p.Add(t.Context(), a); return err }); err != nil {
					t.Fatal(err)
				}
				if err := s.Check(c, res); err != nil {
					t.Errorf("ptp CHECK: %v\n%s", err, s.IP(s.pod.NS, "route show table all"))
				}
				if got := s.IP(s.pod.NS, "-6 route show table main default"); got != "" {
					t.Errorf("the main table has a default route of the interface: %s", got)
				}
				if err := s.Node.Do(func() error { return p.Check(t.Context(), a) }); err != nil {
					t.Errorf("sbr CHECK: %v", err)
				}
				if err := s.Node.Do(func() error { return p.Del(t.Context(), a) }); err != nil {
					t.Fatal(err)
				}
				if after := s.IP(s.pod.NS, "route") + s.IP(s.pod.NS, "-6 route"); after != before {
					t.Errorf("before\n%s\nafter\n%s", before, after)
				}
			})
		}
	}
}

// A route to the pod's own subnet, for its mtu.
func TestPrivilegedSubnetRoute(t *testing.T) {
	s := newStage(t)
	s.IPAM.Answer = func(n int) *types100.Result {
		r := plugintest.Answer46(n)
		r.Routes = append(r.Routes, &types.Route{Dst: plugintest.CIDR("10.1.0.0/16"), MTU: 1400})
		return r
	}
	c := s.call()
	res := s.MustAdd(c)
	if err := s.Check(c, res); err != nil {
		t.Errorf("CHECK right after ADD: %v", err)
	}
}
