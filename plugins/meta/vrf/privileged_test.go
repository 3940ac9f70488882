// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/plugintest"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// env is a pod with two interfaces, net1 and net2, of the same addresses.
type env struct {
	t      *testing.T
	node   *netlab.Node
	pod    *netlab.Pod
	runs   *attachments.Dir
	plugin *cniskel.Plugin
	netns  string
	ifname string
}

const prevResult = `,"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"net1","sandbox":"/x"}],` +
	`"ips":[{"address":"10.1.0.5/24","interface":0},{"address":"fd01::5/64","interface":0}],` +
	`"routes":[{"dst":"10.9.0.0/16","gw":"10.1.0.9"},{"dst":"fd09::/64","gw":"fd01::9"}]}`

func newEnv(t *testing.T) *env {
	t.Helper()
	require.Link(t, "vrf")
	l := netlab.NewT(t)
	e := &env{t: t, node: l.Node, pod: l.Node.PodT(t, "pod"), runs: attachments.Open(filepath.Join(t.TempDir(), "attachments")), ifname: "net1"}
	e.netns, e.plugin = e.pod.Path, New(Deps{Records: e.runs})
	e.ip("link set lo up")
	for _, dev := range []string{"net1", "net2"} {
		for _, args := range []string{
			"link add " + dev + " type veth peer name w" + dev, "link set " + dev + " up addrgenmode none", "link set w" + dev + " up addrgenmode none",
			"addr add 10.1.0.5/24 dev " + dev, "-6 addr add fd01::5/64 dev " + dev + " nodad",
		} {
			e.ip(args)
		}
	}
	for _, args := range []string{
		"route add 10.9.0.0/16 via 10.1.0.9 dev net1", "-6 route add fd09::/64 via fd01::9 dev net1", "route add 10.8.0.0/16 dev net1",
		"route add 10.7.0.0/16 via 10.1.0.9 dev net1 table 77", "route add 10.6.0.0/16 via 10.1.0.9 dev net2",
	} {
		e.ip(args)
	}
	return e
}

func (e *env) ip(args string) string {
	e.t.Helper()
	return e.pod.IPT(e.t, args)
}

func (e *env) call(verb func(context.Context, *cniskel.Args) error, keys string) error {
	conf := `{"cniVersion":"1.1.0","name":"net","type":"vrf"` + keys + `}`
	a := &cniskel.Args{Log: log.NewNop(), CmdArgs: cniskel.CmdArgs{ContainerID: "a", IfName: e.ifname, Netns: e.netns, StdinData: []byte(conf)}}
	return e.node.Do(func() error { return verb(context.Background(), a) })
}

func (e *env) add(keys string) error {
	return e.call(func(ctx context.Context, a *cniskel.Args) error {
		res, err := e.plugin.Add(ctx, a)
		if err == nil && res == (types.Result)(nil) {
			err = errors.New("no result")
		}
		return err
	}, keys+prevResult)
}

func (e *env) mustAdd(ifname, keys string) {
	e.t.Helper()
	e.ifname = ifname
	if err := e.add(keys); err != nil {
		e.t.Fatalf("ADD %s: %v", ifname, err)
	}
}

func (e *env) mustDel(ifname, keys string) {
	e.t.Helper()
	e.ifname = ifname
	if err := e.call(e.plugin.Del, keys); err != nil {
		e.t.Fatalf("DEL %s: %v", ifname, err)
	}
}

// routes are those of a device that a program or an address made, sorted.
func (e *env) routes(dev string) []string {
	e.t.Helper()
	var out []string
	for _, args := range []string{"-4 route show table all dev " + dev, "-6 route show table all dev " + dev} {
		for _, line := range strings.Split(e.ip(args), "\n") {
			line = strings.TrimSuffix(strings.Join(strings.Fields(line), " "), " pref medium")
			if line == "" || strings.HasPrefix(line, "local ") || strings.HasPrefix(line, "broadcast ") ||
				strings.HasPrefix(line, "anycast ") || strings.HasPrefix(line, "multicast ") || strings.HasPrefix(line, "ff00::") {
				continue
			}
			out = append(out, line)
		}
	}
	return slices.Sorted(slices.Values(out))
}

func (e *env) has(dev string) bool { return strings.Contains(e.ip("-br link"), dev+" ") }

// The interface's addresses and routes of both families come with it, and only
// its own; DEL puts everything back.
func TestPrivilegedJoin(t *testing.T) {
	e := newEnv(t)
	before, other := e.routes("net1"), e.routes("net2")
	e.mustAdd("net1", `,"vrfname":"blue"`)
	want := []string{
		"10.1.0.0/24 table 1 proto kernel scope link src 10.1.0.5", "10.7.0.0/16 via 10.1.0.9 table 77", "10.8.0.0/16 table 1 scope link",
		"10.9.0.0/16 via 10.1.0.9 table 1", "fd01::/64 table 1 proto kernel metric 256", "fd09::/64 via fd01::9 table 1 metric 1024",
	}
	if d := cmp.Diff(want, e.routes("net1")); d != "" {
		t.Errorf("routes of net1 (- want, + got):\n%s", d)
	}
	if d := cmp.Diff(other, e.routes("net2")); d != "" {
		t.Errorf("routes of net2 have changed:\n%s", d)
	}
	if got := e.ip("route get 10.9.0.1 vrf blue"); !strings.Contains(got, "dev net1") {
		t.Errorf("route in the VRF: %s", got)
	}
	if err := e.call(e.plugin.Check, `,"vrfname":"blue"`+prevResult); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	plugintest.WantCode(t, e.add(`,"vrfname":"blue"`), 103, "net1", "blue")
	for range 2 {
		e.mustDel("net1", `,"vrfname":"blue"`)
		if d := cmp.Diff(before, e.routes("net1")); d != "" {
			t.Errorf("routes after DEL (- before, + after):\n%s", d)
		}
		if e.has("blue") || !strings.Contains(e.ip("addr show net1"), "fd01::5/64") {
			t.Errorf("after DEL: %s", e.ip("addr"))
		}
	}
	if list, _ := e.runs.List(""); len(list) != 0 {
		t.Errorf("records are left: %v", list)
	}
}

// Two interfaces share a VRF or have one each, with the same addresses, and the
// VRF goes with its last one.
func TestPrivilegedTwoInterfaces(t *testing.T) {
	t.Run("one VRF", func(t *testing.T) {
		e := newEnv(t)
		e.mustAdd("net1", `,"vrfname":"blue","table":500`)
		e.mustAdd("net2", `,"vrfname":"blue"`)
		e.mustDel("net1", `,"vrfname":"blue"`)
		if got := e.ip("-d link show blue"); !strings.Contains(got, "vrf table 500") {
			t.Errorf("blue: %s", got)
		}
		e.mustDel("net2", `,"vrfname":"blue"`)
		if e.has("blue") {
			t.Error("blue is left")
		}
	})
	t.Run("two VRFs", func(t *testing.T) {
		e := newEnv(t)
		e.mustAdd("net1", `,"vrfname":"blue"`)
		e.mustAdd("net2", `,"vrfname":"red"`)
		for dev, table := range map[string]string{"blue": "1", "red": "2"} {
			if got := e.ip("-d link show " + dev); !strings.Contains(got, "vrf table "+table) {
				t.Errorf("%s: %s", dev, got)
			}
		}
		if got := strings.Join(e.routes("net2"), "\n"); !strings.Contains(got, "10.6.0.0/16 via 10.1.0.9 table 2") {
			t.Errorf("routes of net2:\n%s", got)
		}
	})
}

// Interfaces that share a VRF keep their own routes to one destination, and a route
// by several gateways stays one.
func TestPrivilegedSameDestination(t *testing.T) {
	e := newEnv(t)
	e.ip("route append 10.9.0.0/16 via 10.1.0.9 dev net2")
	e.ip("-6 route append fd09::/64 via fd01::9 dev net2")
	e.ip("route add 10.5.0.0/16 nexthop via 10.1.0.8 dev net1 nexthop via 10.1.0.9 dev net1")
	before := e.ip("route show 10.5.0.0/16")
	e.mustAdd("net1", `,"vrfname":"blue"`)
	if got := e.ip("route show 10.5.0.0/16 table 1"); strings.Count(got, "nexthop") != 2 {
		t.Errorf("by two gateways: %s", got)
	}
	e.mustAdd("net2", `,"vrfname":"blue"`)
	e.ifname = "net1"
	if err := e.call(e.plugin.Check, `,"vrfname":"blue"`+prevResult); err != nil {
		t.Errorf("CHECK: %v\n%s", err, e.ip("route show table 1"))
	}
	e.mustDel("net1", `,"vrfname":"blue"`)
	if d := cmp.Diff(before, e.ip("route show 10.5.0.0/16")); d != "" {
		t.Errorf("by two gateways (- before, + after DEL):\n%s", d)
	}
}

// Two VRFs may have one table: upstream allows it too.
func TestPrivilegedSharedTable(t *testing.T) {
	e := newEnv(t)
	e.mustAdd("net1", `,"vrfname":"blue","table":500`)
	e.mustAdd("net2", `,"vrfname":"red","table":500`)
	if got := strings.Join(e.routes("net2"), "\n"); !strings.Contains(got, "10.6.0.0/16 via 10.1.0.9 table 500") {
		t.Errorf("routes of net2:\n%s", got)
	}
	before := e.routes("net1")
	e.mustDel("net2", `,"vrfname":"red"`)
	if d := cmp.Diff(before, e.routes("net1")); d != "" || e.has("red") {
		t.Errorf("routes of net1 after DEL of net2 (- before, + after):\n%s", d)
	}
}

func TestPrivilegedRefusals(t *testing.T) {
	e := newEnv(t)
	before := e.routes("net1")
	e.ip("link add red type vrf table 44")
	e.ip("link add plain type veth peer name plain2")
	tests := []struct {
		keys  string
		code  uint
		words []string
	}{
		{"", 7, []string{"vrfname"}},
		{`,"vrfname":"a/b"`, 7, []string{"vrfname", "a/b"}},
		{`,"vrfname":"net1"`, 7, []string{"vrfname", "net1"}},
		{`,"vrfname":"plain"`, 7, []string{"vrfname", "plain", "no VRF"}},
		{`,"vrfname":"red","table":45`, 7, []string{"table", "45", "44"}},
		{`,"vrfname":"blue","table":254`, 7, []string{"table", "254"}},
		{`,"vrfname":"blue","table":-1`, 6, []string{"table"}},
		{`,"vrfname":7`, 6, []string{"vrfname"}},
	}
	for _, tt := range tests {
		plugintest.WantCode(t, e.add(tt.keys), tt.code, tt.words...)
		if list, _ := e.runs.List(""); len(list) != 0 || e.has("blue") || !slices.Equal(before, e.routes("net1")) {
			t.Errorf("%s left something behind: %v, %s", tt.keys, list, e.ip("link"))
		}
	}
	plugintest.WantCode(t, e.call(func(ctx context.Context, a *cniskel.Args) error { _, err := e.plugin.Add(ctx, a); return err }, `,"vrfname":"blue"`), 7, "prevResult")
	plugintest.WantCode(t, e.call(e.plugin.Status, ""), 50, "vrfname")
	if err := e.call(e.plugin.Status, `,"vrfname":"blue"`); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	e.netns = "/run/netns/none"
	plugintest.WantCode(t, e.add(`,"vrfname":"blue"`), 8, "/run/netns/none")
}

func TestPrivilegedDel(t *testing.T) {
	tests := []struct {
		name string
		prep func(e *env)
		keys string
	}{
		{"CNI_NETNS empty", func(e *env) { e.netns = "" }, `,"vrfname":"blue"`},
		{"CNI_NETNS missing", func(e *env) { e.netns = "/run/netns/none" }, `,"vrfname":"blue"`},
		{"no vrfname", func(*env) {}, ""},
		{"configuration wrong", func(*env) {}, `,"vrfname":7`},
		{"interface gone", func(e *env) { e.ip("link del net1") }, `,"vrfname":"blue"`},
		{"VRF gone", func(e *env) { e.ip("link del blue") }, `,"vrfname":"blue"`},
		{"record lost", func(e *env) {
			if err := e.runs.Remove(attachments.ID{Network: "net", ContainerID: "a", IfName: "net1"}, Name); err != nil {
				e.t.Fatal(err)
			}
		}, `,"vrfname":"blue"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnv(t)
			e.mustAdd("net1", `,"vrfname":"blue"`)
			tt.prep(e)
			for range 2 {
				e.mustDel("net1", tt.keys)
				if list, _ := e.runs.List(""); e.has("blue") || len(list) != 0 {
					t.Errorf("left: %v, %s", list, e.ip("-br link"))
				}
			}
		})
	}
}

func TestPrivilegedCheckAndGC(t *testing.T) {
	const keys = `,"vrfname":"blue"`
	for change, word := range map[string]string{
		"link set net1 nomaster":           "net1 is not in blue",
		"link set blue down":               "blue is down",
		"link del blue":                    "blue does not exist",
		"route del 10.9.0.0/16 table 1":    "10.9.0.0/16",
		"-6 route del fd09::/64 table 1":   "fd09::/64",
		"-6 addr del fd01::5/64 dev net1 ": "fd01::5/64",
	} {
		e := newEnv(t)
		e.mustAdd("net1", keys)
		e.ip(change)
		plugintest.WantCode(t, e.call(e.plugin.Check, keys+prevResult), 102, word)
	}
	e := newEnv(t)
	e.mustAdd("net1", keys)
	e.ip("addr del 10.1.0.5/24 dev net1")
	e.ip("route add 10.9.0.0/16 dev net1 table 1")
	if err := e.call(e.plugin.Check, keys+prevResult); err != nil {
		t.Errorf("CHECK of an IPv4 address that another plugin gave: %v", err)
	}
	plugintest.WantCode(t, e.call(e.plugin.Check, keys+`,"table":9`+prevResult), 102, "9")
	if err := e.call(e.plugin.GC, `,"cni.dev/valid-attachments":[{"containerID":"a","ifname":"net1"}]`); err != nil || !e.has("blue") {
		t.Fatalf("GC of a valid attachment: %v", err)
	}
	if err := e.call(e.plugin.GC, `,"cni.dev/valid-attachments":[]`); err != nil || e.has("blue") {
		t.Fatalf("GC: %v, %s", err, e.ip("-br link"))
	}
}

// sbr before vrf in the chain has taken the routes to a table of its own, where
// they stay.
func TestPrivilegedCheckBehindSBR(t *testing.T) {
	const keys = `,"vrfname":"blue"`
	e := newEnv(t)
	for _, args := range []string{
		"route add 10.1.0.0/24 dev net1 table 100", "route add 10.9.0.0/16 via 10.1.0.9 dev net1 table 100", "rule add from 10.1.0.5 lookup 100", "route del 10.9.0.0/16",
		"-6 route add fd09::/64 via fd01::9 dev net1 table 101", "-6 rule add from fd01::5 lookup 101", "-6 route del fd09::/64 table main",
	} {
		e.ip(args)
	}
	e.mustAdd("net1", keys)
	if err := e.call(e.plugin.Check, keys+prevResult); err != nil {
		t.Errorf("CHECK: %v\n%s", err, strings.Join(e.routes("net1"), "\n"))
	}
	e.ip("route del 10.9.0.0/16 table 100")
	plugintest.WantCode(t, e.call(e.plugin.Check, keys+prevResult), 102, "10.9.0.0/16")
}

// Where the kernel has no VRFs, ADD says so and leaves nothing.
func TestPrivilegedWithoutVRFs(t *testing.T) {
	if require.HasLink(t, "vrf") {
		t.Log("this kernel has VRFs: nothing to see")
		return
	}
	l := netlab.NewT(t)
	e := &env{t: t, node: l.Node, pod: l.Node.PodT(t, "pod"), runs: attachments.Open(filepath.Join(t.TempDir(), "attachments")), ifname: "net1"}
	e.netns, e.plugin = e.pod.Path, New(Deps{Records: e.runs})
	e.ip("link add net1 type veth peer name w1")
	plugintest.WantCode(t, e.add(`,"vrfname":"blue"`), 2, "blue", "CONFIG_NET_VRF")
	if list, _ := e.runs.List(""); len(list) != 0 {
		t.Errorf("records are left: %v", list)
	}
}

// The pod's own processes can lock its namespace, for ever: no call waits for them.
func TestPrivilegedLockedByThePod(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	var held *netns.NS
	if err := e.node.Do(func() (err error) { held, err = netns.Open(e.netns); return err }); err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := unix.Flock(held.Fd(), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	release := time.AfterFunc(netlab.Patient(20*time.Second), held.Close)
	defer release.Stop()
	e.mustAdd("net1", `,"vrfname":"red"`)
	e.mustDel("net1", `,"vrfname":"red"`)
	if !release.Stop() {
		t.Error("a call waited for the pod's lock")
	}
}
