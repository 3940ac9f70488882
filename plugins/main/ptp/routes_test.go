// SPDX-License-Identifier: Apache-2.0

package ptp

import (
	"net"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/sysctl"
	"github.com/sluice-cni/sluice/pkg/test/plugintest"
)

// A route of the IPAM plugin may have another gateway than the pod: it is asked
// for on the link, as with the upstream plugin, which makes such routes while
// the subnet is on the link still.
func TestPrivilegedOtherGateway(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.IPAM.Answer = func(int) *types100.Result {
		res := plugintest.Answer46(1)
		res.Routes = append(res.Routes,
			&types.Route{Dst: plugintest.CIDR("198.51.100.0/24"), GW: net.IPv4zero}, // on the link, as DHCP says it
			&types.Route{Dst: plugintest.CIDR("198.18.0.0/16"), GW: plugintest.IP("10.1.0.9/16", "10.1.0.254").Gateway},
			&types.Route{Dst: plugintest.CIDR("fd18::/64"), GW: plugintest.IP("fd00::9/64", "fd00::254").Gateway},
			&types.Route{Dst: plugintest.CIDR("198.19.0.0/16"), GW: plugintest.IP("10.1.0.9/16", "10.1.0.253").Gateway},
			&types.Route{Dst: plugintest.CIDR("198.19.0.0/16"), GW: plugintest.IP("10.1.0.9/16", "10.1.0.254").Gateway})
		return res
	}
	res := s.MustAdd(s.call())
	for _, want := range []string{"198.51.100.0/24 dev eth0", "198.18.0.0/16 via 10.1.0.254 dev eth0", "fd18::/64 via fd00::254 dev eth0", "nexthop via 10.1.0.253", "default via 10.1.0.1 dev eth0"} {
		if got := s.routes(s.pod.NS); !strings.Contains(got, want) {
			t.Errorf("the pod has no route %q:\n%s", want, got)
		}
	}
	if err := s.Check(s.call(), res); err != nil {
		t.Errorf("CHECK: %v", err)
	}
}

// Routes of the IPAM plugin to one destination stay apart: by two gateways, and
// in two tables.
func TestPrivilegedOneDestination(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	table := 100
	s.IPAM.Answer = func(int) *types100.Result {
		res := plugintest.Answer46(1)
		res.IPs = append(res.IPs, plugintest.IP("10.2.0.2/16", "10.2.0.1"))
		res.Routes = []*types.Route{
			{Dst: plugintest.CIDR("0.0.0.0/0"), Table: &table, MTU: 1300},
			{Dst: plugintest.CIDR("0.0.0.0/0"), MTU: 1400},
			{Dst: plugintest.CIDR("198.19.0.0/16"), GW: plugintest.IP("10.1.0.9/16", "10.1.0.1").Gateway},
			{Dst: plugintest.CIDR("198.19.0.0/16"), GW: plugintest.IP("10.2.0.9/16", "10.2.0.1").Gateway},
		}
		return res
	}
	res := s.MustAdd(s.call())
	got := s.routes(s.pod.NS) + "\n" + s.IP(s.pod.NS, "route show table 100")
	for _, want := range []string{"default via 10.1.0.1 dev eth0 mtu 1400", "default via 10.1.0.1 dev eth0 mtu 1300", "nexthop via 10.1.0.1", "nexthop via 10.2.0.1"} {
		if !strings.Contains(strings.ReplaceAll(got, "proto boot ", ""), want) {
			t.Errorf("the pod has no route %q:\n%s", want, got)
		}
	}
	if err := s.Check(s.call(), res); err != nil {
		t.Errorf("CHECK: %v", err)
	}
}

// The node forwards, but its new devices do not (net.ipv4.conf.default.forwarding): the host veth has to.
func TestPrivilegedForwardingOfHostEnd(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, kv := range [][2]string{{"net/ipv4/ip_forward", "1"}, {"net/ipv4/conf/default/forwarding", "0"}} {
		plugintest.Must(t, s.Node.WriteSysctl(kv[0], kv[1]))
	}
	host := s.MustAdd(s.call()).Interfaces[0].Name
	plugintest.Must(t, s.Node.Do(func() error {
		v, err := sysctl.Get("net/ipv4/conf/" + host + "/forwarding")
		if v != "1" {
			t.Errorf("forwarding of %s is %q", host, v)
		}
		return err
	}))
}
