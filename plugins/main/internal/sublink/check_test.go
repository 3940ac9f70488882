// SPDX-License-Identifier: Apache-2.0

package sublink_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/plugintest"
)

// CHECK sees each difference, and names it.
func TestPrivilegedCheckSees(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		only  string // kinds it is about; empty: all
		spoil func(t *testing.T, s *stage, c *plugintest.Call)
		text  string
	}{
		{"no interface", "", inPod(func(h *rtnl.Handle, l rtnl.Link) error { return h.DelLink(l.Index) }), "does not exist"},
		{"another kind", "", func(_ *testing.T, s *stage, _ *plugintest.Call) {
			s.IP(s.pod.NS, "link del eth0")
			s.IP(s.pod.NS, "link add eth0 type veth peer name eth1")
		}, "is not a"},
		{"down", "", inPod(func(h *rtnl.Handle, l rtnl.Link) error { return h.SetDown(l.Index) }), "is down"},
		{"another MAC", "macvlan dummy", inPod(func(h *rtnl.Handle, l rtnl.Link) error {
			return h.SetMAC(l.Index, net.HardwareAddr{2, 0, 0, 0, 0, 9})
		}), "02:00:00:00:00:09"},
		{"another MTU", "", inPod(func(h *rtnl.Handle, l rtnl.Link) error { return h.SetMTU(l.Index, 1400) }), "1400"},
		{"an IPv4 address less", "", inPod(delAddr("10.1.0.2/16")), "10.1.0.2/16"},
		{"an IPv6 address less", "", inPod(delAddr("fd00::2/64")), "fd00::2/64"},
		{"a route less", "", inPod(func(h *rtnl.Handle, l rtnl.Link) error {
			return h.DelRoute(rtnl.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), LinkIndex: l.Index})
		}), "0.0.0.0/0"},
		{"another mode", "macvlan ipvlan", func(_ *testing.T, s *stage, c *plugintest.Call) {
			*c = c.With("mode", map[string]string{"macvlan": "private", "ipvlan": "l3"}[s.name])
		}, "settings"},
		{"another VLAN", "vlan", func(_ *testing.T, _ *stage, c *plugintest.Call) { *c = c.With("vlanId", 7) }, "settings"},
		{"another master", "macvlan ipvlan vlan", func(_ *testing.T, s *stage, _ *plugintest.Call) {
			s.Change(s.Node.NS, "eth0", func(h *rtnl.Handle, l rtnl.Link) error {
				if err := h.SetDown(l.Index); err != nil {
					return err
				}
				return h.SetName(l.Index, "wan0")
			})
		}, "wan0"},
		{"the IPAM plugin", "", func(_ *testing.T, s *stage, _ *plugintest.Call) {
			s.IPAM.VerbErr = cnierr.New(cnierr.CodeCheck, "nobody holds the address", "")
		}, "nobody holds"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			only := strings.Fields(tc.only)
			eachKind(t, func(t *testing.T, s *stage) {
				call := s.call()
				res := s.MustAdd(call)
				tc.spoil(t, s, &call)
				plugintest.WantCode(t, s.Check(call, res), 102, tc.text)
			}, only...)
		})
	}
}

func inPod(f func(h *rtnl.Handle, l rtnl.Link) error) func(*testing.T, *stage, *plugintest.Call) {
	return func(_ *testing.T, s *stage, _ *plugintest.Call) { s.Change(s.pod.NS, "eth0", f) }
}

func delAddr(addr string) func(h *rtnl.Handle, l rtnl.Link) error {
	return func(h *rtnl.Handle, l rtnl.Link) error {
		return h.DelAddr(rtnl.Addr{LinkIndex: l.Index, Prefix: netip.MustParsePrefix(addr)})
	}
}

// What a later plugin may change is no difference: a route in another table, an
// address of its own, more interfaces in the result.
func TestPrivilegedCheckTolerates(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *stage) {
		res := s.MustAdd(s.call())
		s.IP(s.pod.NS, "route del default")
		s.IP(s.pod.NS, "route add default via 10.1.0.1 dev eth0 table 100")
		s.IP(s.pod.NS, "addr add 198.51.100.9/24 dev eth0")
		more := *res.Interfaces[0]
		more.Name, more.Sandbox = "ifb0", ""
		res.Interfaces = append(res.Interfaces, &more)
		if err := s.Check(s.call(), res); err != nil {
			t.Error(err)
		}
		plugintest.WantCode(t, s.Verb(s.Plug.Check, s.call()), 7, "prevResult")
	})
}
