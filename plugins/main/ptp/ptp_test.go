// SPDX-License-Identifier: Apache-2.0

package ptp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/plugintest"
)

// routes returns a namespace's routes of both families, without link-local ones
// and what changes from kernel to kernel.
func (s *stage) routes(ns *netlab.NS) string {
	s.T.Helper()
	out := s.IP(ns, "route show") + s.IP(ns, "-6 route show")
	out = strings.NewReplacer("proto boot ", "", "metric 1024 ", "", "pref medium", "").Replace(out)
	var keep []string
	for _, l := range strings.Split(out, "\n") {
		if l = strings.Join(strings.Fields(l), " "); l != "" && !strings.HasPrefix(l, "fe80::/64") {
			keep = append(keep, l)
		}
	}
	return strings.Join(keep, "\n")
}

// What ADD makes on both ends, in both families.
func TestPrivilegedLife(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	call := s.call().With("mtu", 1400)
	res := s.MustAdd(call)
	if len(res.Interfaces) != 2 || *res.IPs[0].Interface != 1 || *res.IPs[1].Interface != 1 {
		t.Fatalf("result %+v", res)
	}
	host := res.Interfaces[0].Name
	for i, l := range []rtnl.Link{s.Link(s.Node.NS, host), s.Link(s.pod.NS, "eth0")} {
		if e := res.Interfaces[i]; e.Mac != l.MAC.String() || e.Mtu != 1400 || l.MTU != 1400 || !l.Up || (e.Sandbox == s.pod.Path) != (i == 1) {
			t.Errorf("interface %+v of link %+v", e, l)
		}
	}
	for _, want := range []string{
		"default via 10.1.0.1 dev eth0", "10.1.0.1 dev eth0 scope link src 10.1.0.2", "10.1.0.0/16 via 10.1.0.1 dev eth0 src 10.1.0.2",
		"default via fd00::1 dev eth0", "fd00::1 dev eth0 src fd00::2", "fd00::/64 via fd00::1 dev eth0 src fd00::2",
	} {
		if got := s.routes(s.pod.NS); !strings.Contains(got, want) {
			t.Errorf("the pod has no route %q:\n%s", want, got)
		}
	}
	if got := s.routes(s.pod.NS); strings.Contains(got, "kernel") {
		t.Errorf("the kernel's route to the subnet is there:\n%s", got)
	}
	for _, want := range []string{"10.1.0.2 dev " + host, "fd00::2 dev " + host} {
		if got := s.routes(s.Node.NS); !strings.Contains(got, want) {
			t.Errorf("the node has no route %q:\n%s", want, got)
		}
	}
	if got := s.IP(s.Node.NS, "addr show dev "+host); !strings.Contains(got, "inet 10.1.0.1/32") || !strings.Contains(got, "inet6 fd00::1/128") {
		t.Errorf("gateway addresses are missing: %s", got)
	}
	if s.DP.Len() != 1 {
		t.Error("the pod is not masqueraded")
	}
	if err := s.Check(call, res); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	for range 2 {
		if err := s.Del(call); err != nil {
			t.Errorf("DEL: %v", err)
		}
		s.MustBeClean(s.pod)
	}
}

// An IPAM plugin without gateways: the link has its own.
func TestPrivilegedNoGateway(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.IPAM.Answer = func(int) *types100.Result {
		res := plugintest.Answer46(1)
		res.IPs[0].Gateway, res.IPs[1].Gateway = nil, nil
		return res
	}
	res := s.MustAdd(s.call())
	if got := res.IPs[0].Gateway.String() + " " + res.IPs[1].Gateway.String(); got != "169.254.1.1 fe80::1" {
		t.Errorf("gateways %s", got)
	}
	if err := s.Check(s.call(), res); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	for _, addr := range []string{"10.1.0.2", "fd00::2"} {
		l, err := s.pod.Listen("tcp", net.JoinHostPort(addr, "80"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c, err := s.Node.DialContext(t.Context(), "tcp", net.JoinHostPort(addr, "80"))
		if err != nil {
			t.Errorf("the node does not reach the pod: %v", err)
			continue
		}
		_ = c.Close()
	}
	if err := s.Del(s.call()); err != nil {
		t.Error(err)
	}
	s.MustBeClean(s.pod)
}

// The host veth has a link-local address only where the pod has an IPv6 address: the kernel walks all of them, of all pods.
func TestPrivilegedLinkLocal(t *testing.T) {
	t.Parallel()
	for _, v6 := range []bool{true, false} {
		s := newStage(t)
		s.IPAM.Answer = func(int) *types100.Result {
			res := plugintest.Answer46(1)
			if !v6 {
				res.IPs, res.Routes = res.IPs[:1], res.Routes[:1]
			}
			return res
		}
		res := s.MustAdd(s.call())
		if got := s.IP(s.Node.NS, "-6 addr show scope link dev "+res.Interfaces[0].Name); strings.Contains(got, "fe80::") != v6 {
			t.Errorf("the pod has an IPv6 address: %t. The host veth: %q", v6, got)
		}
		if got := s.IP(s.pod.NS, "-6 addr show scope link dev eth0"); !strings.Contains(got, "fe80::") {
			t.Errorf("the pod has no link-local address: %q", got)
		}
		if err := s.Check(s.call(), res); err != nil {
			t.Errorf("CHECK: %v", err)
		}
		if err := s.Del(s.call()); err != nil {
			t.Error(err)
		}
		s.MustBeClean(s.pod)
	}
}

// Addresses that share a gateway, or a subnet, and one without a subnet.
func TestPrivilegedManyAddresses(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.IPAM.Answer = func(int) *types100.Result {
		res := plugintest.Answer46(1)
		res.IPs = append(res.IPs, plugintest.IP("10.1.0.9/16", "10.1.0.1"), plugintest.IP("fd00::9/64", "fd00::1"), plugintest.IP("10.7.0.1/32", "10.1.0.1"), plugintest.IP("10.8.0.2/24", "10.8.0.1"))
		return res
	}
	res := s.MustAdd(s.call())
	if err := s.Check(s.call(), res); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	for _, addr := range []string{"10.1.0.9", "fd00::9", "10.7.0.1", "10.8.0.2"} {
		if got := s.routes(s.Node.NS); !strings.Contains(got, addr+" dev veth") {
			t.Errorf("no route to %s:\n%s", addr, got)
		}
	}
	if err := s.Del(s.call()); err != nil {
		t.Error(err)
	}
	s.MustBeClean(s.pod)
}

// A node's route to the address by a pod that is lost gives way.
func TestPrivilegedStaleRoute(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, line := range []string{"link add old type veth peer name oldpeer", "link set old up", "route add 10.1.0.2 dev old scope link", "-6 route add fd00::2 dev old"} {
		s.IP(s.Node.NS, line)
	}
	res := s.MustAdd(s.call())
	for _, want := range []string{"10.1.0.2 dev " + res.Interfaces[0].Name, "fd00::2 dev " + res.Interfaces[0].Name} {
		if got := s.routes(s.Node.NS); !strings.Contains(got, want) || strings.Contains(got, "10.1.0.2 dev old") || strings.Contains(got, "fd00::2 dev old") {
			t.Errorf("want %q alone:\n%s", want, got)
		}
	}
}

// A node's route to an address of a pod that lives stays, with and without masquerade, in each family.
func TestPrivilegedRouteOfLivingPod(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"route add 10.1.0.2 dev old scope link", "-6 route add fd00::2 dev old"} {
		for _, masq := range []bool{false, true} {
			t.Run(fmt.Sprint(line, masq), func(t *testing.T) {
				t.Parallel()
				s := newStage(t)
				other := s.Pod("other")
				s.IP(s.Node.NS, "link add old type veth peer name eth0 netns "+other.Path)
				s.IP(s.Node.NS, "link set old up")
				s.IP(s.Node.NS, line)
				before := s.routes(s.Node.NS)
				_, err := s.Add(s.call().With("ipMasq", masq))
				var e *cnierr.Error
				if !errors.As(err, &e) || e.Code != cnierr.CodeConflict || !strings.Contains(e.Msg, "device old") {
					t.Errorf("got %v, want code 103 and the device", err)
				}
				if diff := cmp.Diff(before, s.routes(s.Node.NS)); diff != "" {
					t.Error(diff)
				}
			})
		}
	}
}

// Whatever goes wrong, the error says what, and nothing is left.
func TestPrivilegedNothingLeft(t *testing.T) {
	t.Parallel()
	set := func(key string, value any) func(*stage, *plugintest.Call) {
		return func(_ *stage, c *plugintest.Call) { *c = c.With(key, value) }
	}
	answer := func(ips ...*types100.IPConfig) func(*stage, *plugintest.Call) {
		return func(s *stage, _ *plugintest.Call) {
			s.IPAM.Answer = func(int) *types100.Result { return &types100.Result{IPs: ips} }
		}
	}
	tests := []struct {
		name  string
		spoil func(s *stage, c *plugintest.Call)
		code  uint
		texts []string
	}{
		{"IPAM refuses", func(s *stage, _ *plugintest.Call) { s.IPAM.AddErr = cnierr.New(cnierr.CodeExhausted, "full", "") }, 104, []string{"full"}},
		{"no address", answer(), 7, []string{"ipam.type", "fake"}},
		{"a bad address", answer(&types100.IPConfig{}), 6, nil},
		{"one address twice", answer(plugintest.IP("10.1.0.2/16", "10.1.0.1"), plugintest.IP("10.1.0.2/16", "10.1.0.1")), 100, []string{"10.1.0.2"}},
		{"its own gateway", answer(plugintest.IP("10.1.0.2/16", "10.1.0.2")), 6, []string{"10.1.0.2", "gateway"}},
		{"no ipam", set("ipam", nil), 7, []string{"ipam.type"}},
		{"mtu", set("mtu", 67), 7, []string{"mtu", "67"}},
		{"mtu as text", set("mtu", "x"), 6, []string{"mtu"}},
		{"ipMasqBackend", set("ipMasqBackend", "ipfw"), 7, []string{"ipMasqBackend", "ipfw"}},
		{"deviceKind", set("deviceKind", "ipvlan"), 7, []string{"deviceKind", "ipvlan", "netkit"}},
		{"the datapath cannot be opened", func(s *stage, _ *plugintest.Call) { s.DP.OpenErr = loader.ErrUnavailable }, 105, []string{"ipMasq"}},
		{"the datapath refuses", func(s *stage, _ *plugintest.Call) { s.DP.Fail = map[string]error{"Enable": loader.ErrFull} }, 100, []string{"masquerade"}},
		{"no namespace", func(_ *stage, c *plugintest.Call) { c.Netns = "/run/netns/none" }, 8, []string{"/run/netns/none"}},
		{"bad name", func(_ *stage, c *plugintest.Call) { c.IfName = "eth%d" }, 4, []string{"eth%d"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			call := s.call()
			tc.spoil(s, &call)
			_, err := s.Add(call)
			plugintest.WantCode(t, err, tc.code, tc.texts...)
			s.MustBeClean(s.pod)
			s.DP.OpenErr = nil
			if err := s.Del(call); err != nil {
				t.Errorf("DEL: %v", err)
			}
		})
	}
}

// DEL finds what ADD made with whatever little it is told.
func TestPrivilegedDel(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		spoil func(t *testing.T, s *stage, c *plugintest.Call)
	}{
		{"without the namespace's path", func(_ *testing.T, _ *stage, c *plugintest.Call) { c.Netns = "" }},
		{"after the namespace", func(t *testing.T, s *stage, _ *plugintest.Call) {
			if err := s.pod.Delete(); err != nil {
				t.Fatal(err)
			}
		}},
		{"with the name alone", func(_ *testing.T, _ *stage, c *plugintest.Call) { c.Conf = nil }},
		{"with keys that ADD refuses", func(_ *testing.T, _ *stage, c *plugintest.Call) {
			*c = c.With("mtu", "odd").With("ipMasqBackend", "none")
		}},
		{"after the record", func(t *testing.T, s *stage, _ *plugintest.Call) {
			if err := os.RemoveAll(s.Dir.Path()); err != nil {
				t.Fatal(err)
			}
		}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			s.MustAdd(s.call())
			call := s.call()
			tc.spoil(t, s, &call)
			for range 2 {
				if err := s.Del(call); err != nil {
					t.Fatalf("DEL: %v", err)
				}
			}
			if tc.name == "after the namespace" {
				s.MustBeClean()
			} else {
				s.MustBeClean(s.pod)
			}
		})
	}
}

// A pod that the upstream plugin attached goes too; another attachment's stays.
func TestPrivilegedDelByName(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.IP(s.pod.NS, "link add eth0 type veth peer name vethref")
	s.IP(s.pod.NS, "link set vethref netns "+s.Node.ProcPath())
	if err := s.Del(s.call()); err != nil {
		t.Fatal(err)
	}
	s.MustBeClean(s.pod)
	s.MustAdd(s.call())
	other := s.call()
	other.Container = "c2"
	_, err := s.Add(other)
	plugintest.WantCode(t, err, 103, "eth0")
	if err := s.Del(other); err != nil {
		t.Fatal(err)
	}
	s.Link(s.pod.NS, "eth0")
}

// CHECK sees each difference on both ends, and names it.
func TestPrivilegedCheckSees(t *testing.T) {
	t.Parallel()
	onHost := func(line string) func(*stage, string) {
		return func(s *stage, host string) { s.IP(s.Node.NS, strings.ReplaceAll(line, "HOST", host)) }
	}
	inPod := func(line string) func(*stage, string) {
		return func(s *stage, _ string) { s.IP(s.pod.NS, line) }
	}
	tests := []struct {
		name  string
		spoil func(s *stage, host string)
		text  string
	}{
		{"no pair", onHost("link del HOST"), "does not exist"},
		{"host end down", onHost("link set HOST down"), "is down"},
		{"host end's MAC", onHost("link set HOST address 02:00:00:00:00:09"), "02:00:00:00:00:09"},
		{"host end's MTU", onHost("link set HOST mtu 1300"), "1300"},
		{"host end's IPv4 gateway", onHost("addr del 10.1.0.1/32 dev HOST"), "10.1.0.1/32"},
		{"host end's IPv6 gateway", onHost("addr del fd00::1/128 dev HOST"), "fd00::1/128"},
		{"node's IPv4 route", onHost("route del 10.1.0.2 dev HOST"), "10.1.0.2/32"},
		{"node's IPv6 route", onHost("-6 route del fd00::2 dev HOST"), "fd00::2/128"},
		{"pod's MAC", inPod("link set eth0 address 02:00:00:00:00:09"), "02:00:00:00:00:09"},
		{"pod's address", inPod("addr del 10.1.0.2/16 dev eth0"), "10.1.0.2/16"},
		{"pod's default route", inPod("-6 route del default"), "::/0"},
		{"pod's route to the subnet", inPod("route del 10.1.0.0/16"), "10.1.0.0/16"},
		{"pod's route to the gateway", inPod("route del 10.1.0.1"), "10.1.0.1/32"},
		{"forwarding", func(s *stage, _ string) {
			if err := s.Node.WriteSysctl("net/ipv4/ip_forward", "0"); err != nil {
				s.T.Fatal(err)
			}
		}, "forwarding"},
		{"forwarding of the host end alone", func(s *stage, host string) {
			if err := s.Node.WriteSysctl("net/ipv4/conf/"+host+"/forwarding", "0"); err != nil {
				s.T.Fatal(err)
			}
		}, "forwarding is off: net/ipv4/conf/"},
		{"masquerading", func(s *stage, _ string) {
			if err := s.DP.Disable(s.T.Context(), ownerOf(s), loader.FeatureMasquerade, loader.Held{}); err != nil {
				s.T.Fatal(err)
			}
		}, "masquerading"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			res := s.MustAdd(s.call())
			tc.spoil(s, res.Interfaces[0].Name)
			plugintest.WantCode(t, s.Check(s.call(), res), 102, tc.text)
		})
	}
}

func ownerOf(s *stage) uint64 {
	recs, err := s.Dir.List("net1")
	if err != nil || len(recs) != 1 {
		s.T.Fatalf("%d records, %v", len(recs), err)
	}
	return recs[0].ID.Owner()
}

// GC detaches what is not listed and nothing else; STATUS says what is missing.
func TestPrivilegedGCAndStatus(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	keep := s.call()
	pod := s.Pod("keep")
	keep.Container, keep.Netns = "kept", pod.Path
	kept := s.MustAdd(keep)
	s.MustAdd(s.call())
	gc := plugintest.Call{Conf: map[string]any{"ipam": map[string]any{"type": "fake"}, "cni.dev/valid-attachments": []map[string]any{{"containerID": "kept", "ifname": "eth0"}}}}
	if err := s.Verb(s.Plug.GC, gc); err != nil {
		t.Fatal(err)
	}
	if got := s.Links(s.pod.NS); len(got) != 1 || s.DP.Len() != 1 || s.IPAM.Held["c1/eth0"] || !s.IPAM.Held["kept/eth0"] {
		t.Errorf("the pod has %v, held are %v, %d endpoints", got, s.IPAM.Held, s.DP.Len())
	}
	if err := s.Check(keep, kept); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if err := s.Verb(s.Plug.Status, s.call()); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	s.DP.OpenErr = loader.ErrUnavailable
	plugintest.WantCode(t, s.Verb(s.Plug.Status, s.call()), 50, "ipMasq")
}

// The plan covers each gateway and subnet once, whatever the addresses share.
func TestPlan(t *testing.T) {
	t.Parallel()
	res := &types100.Result{IPs: []*types100.IPConfig{plugintest.IP("10.1.0.2/16", "10.1.0.1"), plugintest.IP("10.1.0.3/16", "10.1.0.1"), plugintest.IP("fe80::5/64", "fe80::1")}}
	addrs := []netip.Prefix{netip.MustParsePrefix("10.1.0.2/16"), netip.MustParsePrefix("10.1.0.3/16"), netip.MustParsePrefix("fe80::5/64")}
	p, err := planFor(res, addrs, 3, 2)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.hostAddrs) != 2 || len(p.hostRoutes) != 3 || len(p.podRoutes) != 4 || p.hostAddrs[1].Scope != rtnl.ScopeLink || p.hostAddrs[0].Scope != rtnl.ScopeUniverse {
		t.Errorf("%+v", p)
	}
}
