// SPDX-License-Identifier: Apache-2.0

package sublink_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/plugintest"
	"github.com/sluice-cni/sluice/plugins/main/internal/sublink"
)

// Whatever goes wrong, the error says what, and nothing is left.
func TestPrivilegedNothingLeft(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *stage) {
		tests := []struct {
			name  string
			only  string // kinds it is about; empty: all
			spoil func(c *plugintest.Call)
			code  uint
			texts []string
		}{
			{"IPAM refuses", "", func(*plugintest.Call) { s.IPAM.AddErr = cnierr.New(cnierr.CodeExhausted, "full", "") }, 104, []string{"full"}},
			{"IPAM has no address", "", answer(s, &types100.Result{}), 7, []string{"ipam.type", "fake"}},
			{"IPAM has a bad address", "", answer(s, &types100.Result{IPs: []*types100.IPConfig{{}}}), 6, nil},
			{"one address twice", "", answer(s, &types100.Result{IPs: []*types100.IPConfig{plugintest.IP("10.1.0.2/16", ""), plugintest.IP("10.1.0.2/16", "")}}), 100, []string{"10.1.0.2"}},
			{"a route that cannot be", "", answer(s, badRoute()), 100, []string{"192.0.2.0/24", "203.0.113.1"}},
			{"no ipam", "ipvlan vlan dummy", set("ipam", nil), 7, []string{"ipam.type"}},
			{"no ipam in 0.2.0", "macvlan", func(c *plugintest.Call) { *c = c.With("ipam", nil); c.Version = "0.2.0" }, 2, []string{"cniVersion", "0.2.0"}},
			{"ipam is text", "", set("ipam", "host-local"), 6, []string{"ipam"}},
			{"no such master", "macvlan ipvlan vlan", set("master", "nowhere"), 7, []string{"master", "nowhere"}},
			{"master is no name", "macvlan ipvlan vlan", set("master", "a/b"), 7, []string{"master", "a/b"}},
			{"master is a number", "macvlan ipvlan vlan", set("master", 7), 6, []string{"master"}},
			{"no master", "vlan", set("master", nil), 7, []string{"master"}},
			{"loopback as master", "macvlan ipvlan vlan", set("master", "lo"), 100, []string{"lo"}},
			{"a kind of mode", "macvlan ipvlan", set("mode", "l4"), 7, []string{"mode", "l4"}},
			{"vlanId", "vlan", set("vlanId", 4095), 7, []string{"vlanId", "4095"}},
			{"negative vlanId", "vlan", set("vlanId", -1), 7, []string{"vlanId", "-1"}},
			{"negative mtu", "", set("mtu", -1), 7, []string{"mtu", "-1"}},
			{"small mtu", "", set("mtu", 67), 7, []string{"mtu", "67"}},
			{"mtu beyond the master's", "macvlan vlan", set("mtu", 1501), 7, []string{"mtu", "1501", "1500", "eth0"}},
			{"mtu as text", "", set("mtu", "big"), 6, []string{"mtu"}},
			{"mac", "macvlan", set("mac", "xx"), 7, []string{"mac", "xx"}},
			{"multicast mac", "macvlan", set("mac", "01:00:00:00:00:01"), 7, []string{"mac", "01:00:00:00:00:01"}},
			{"runtimeConfig.mac", "macvlan", set("runtimeConfig", map[string]any{"mac": "yy"}), 7, []string{"runtimeConfig.mac", "yy"}},
			{"CNI_ARGS MAC", "macvlan", func(c *plugintest.Call) { c.Args = "MAC=zz" }, 4, []string{"MAC=zz"}},
			{"CNI_ARGS", "macvlan", func(c *plugintest.Call) { c.Args = "COLOUR=red" }, 4, []string{"COLOUR=red"}},
			{"negative bcqueuelen", "macvlan", set("bcqueuelen", -1), 6, []string{"bcqueuelen"}},
			{"name with a percent sign", "", func(c *plugintest.Call) { c.IfName = "eth%d" }, 4, []string{"eth%d"}},
			{"no namespace", "", func(c *plugintest.Call) { c.Netns = "/run/netns/none" }, 8, []string{"/run/netns/none"}},
			{"not a namespace", "", func(c *plugintest.Call) { c.Netns = "/proc/self/status" }, 8, []string{"/proc/self/status"}},
		}
		for _, tc := range tests {
			if tc.only != "" && !strings.Contains(" "+tc.only+" ", " "+s.name+" ") {
				continue
			}
			t.Run(tc.name, func(t *testing.T) {
				s.T = t
				defer func() { s.IPAM.AddErr, s.IPAM.Answer = nil, plugintest.Answer46 }()
				call := s.call()
				tc.spoil(&call)
				_, err := s.Add(call)
				plugintest.WantCode(t, err, tc.code, tc.texts...)
				s.MustBeClean(s.pod)
				if err := s.Del(call); err != nil { // a runtime calls it after a failed ADD
					t.Errorf("DEL: %v", err)
				}
			})
		}
	})
}

func set(key string, value any) func(*plugintest.Call) {
	return func(c *plugintest.Call) { *c = c.With(key, value) }
}

func answer(s *stage, res *types100.Result) func(*plugintest.Call) {
	return func(*plugintest.Call) { s.IPAM.Answer = func(int) *types100.Result { return res } }
}

func badRoute() *types100.Result {
	res := plugintest.Answer46(1)
	res.Routes[0].Dst, res.Routes[0].GW = plugintest.CIDR("192.0.2.0/24"), plugintest.IP("203.0.113.1/24", "203.0.113.1").Gateway
	return res
}

// The name is taken: an error, and the other interface stays, also through the
// DEL that follows a failed ADD.
func TestPrivilegedNameTaken(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *stage) {
		s.MustAdd(s.call())
		second := s.call()
		second.Container = "c2"
		_, err := s.Add(second)
		plugintest.WantCode(t, err, 103, "eth0", s.pod.Path)
		if err := s.Del(second); err != nil {
			t.Error(err)
		}
		if l := s.Link(s.pod.NS, "eth0"); l.Kind != s.name {
			t.Errorf("%+v", l)
		}
		if err := s.Del(s.call()); err != nil {
			t.Error(err)
		}
		s.MustBeClean(s.pod)
	})
}

// Where the record cannot be written, nothing is made.
func TestPrivilegedNoRecord(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *stage) {
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		s.Plug = s.new(sublink.Deps{IPAM: s.IPAM, Records: attachments.Open(filepath.Join(file, "records"))})
		_, err := s.Add(s.call())
		plugintest.WantCode(t, err, 101)
		s.MustBeClean(s.pod)
	})
}

// A VLAN has one interface on a master.
func TestPrivilegedVLANTaken(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *stage) {
		other := s.Pod("other")
		s.MustAdd(s.call())
		second := s.call()
		second.Container, second.Netns = "c2", other.Path
		_, err := s.Add(second)
		plugintest.WantCode(t, err, 103, "vlanId 100", "eth0")
		if got := s.Links(other.NS); len(got) != 1 {
			t.Errorf("the other pod has %v", got)
		}
	}, "vlan")
}

// A master that is down: the error names it. Kinds that still come up are
// attached.
func TestPrivilegedMasterDown(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *stage) {
		s.Change(s.Node.NS, "eth0", func(h *rtnl.Handle, l rtnl.Link) error { return h.SetDown(l.Index) })
		s.IPAM.Answer = func(int) *types100.Result {
			return &types100.Result{IPs: []*types100.IPConfig{plugintest.IP("10.1.0.2/16", ""), plugintest.IP("fd00::2/64", "")}}
		}
		if _, err := s.Add(s.call()); err != nil {
			plugintest.WantCode(t, err, 7, "master", "eth0", "down")
			s.MustBeClean(s.pod)
			return
		}
		if err := s.Del(s.call()); err != nil {
			t.Error(err)
		}
		s.MustBeClean(s.pod)
	}, onMaster()...)
}

// One passthru macvlan is all a master takes.
func TestPrivilegedPassthru(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *stage) {
		call := s.call().With("mode", "passthru")
		s.MustAdd(call)
		if out := s.IP(s.Node.NS, "-d link show eth0"); !strings.Contains(out, "promiscuity 1") {
			t.Errorf("the master is not promiscuous: %s", out)
		}
		other := s.Pod("other")
		second := s.call()
		second.Container, second.Netns = "c2", other.Path
		_, err := s.Add(second)
		plugintest.WantCode(t, err, 100, "eth0", "passthru")
		if err := s.Del(call); err != nil {
			t.Fatal(err)
		}
		if out := s.IP(s.Node.NS, "-d link show eth0"); !strings.Contains(out, "promiscuity 0") {
			t.Errorf("the master stays promiscuous: %s", out)
		}
		s.MustBeClean(s.pod, other)
	}, "macvlan")
}
