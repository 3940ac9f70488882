// SPDX-License-Identifier: Apache-2.0

package sbr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
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
	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/plugintest"
	"github.com/sluice-cni/sluice/plugins/meta/internal/podns"
)

// env is a pod with eth0, which has a default route, and net1, both with
// addresses of both families.
type env struct {
	t      *testing.T
	node   *netlab.Node
	pod    *netlab.Pod
	runs   *attachments.Dir
	plugin *cniskel.Plugin
	netns  string
	prev   string
}

const (
	v4 = `{"address":"10.1.0.5/24","gateway":"10.1.0.1","interface":0}`
	v6 = `{"address":"fd01::5/64","gateway":"fd01::1","interface":0}`
)

func prevResult(ips ...string) string {
	return `,"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"net1","sandbox":"/x"},{"name":"eth0","sandbox":"/x"},{"name":"net1"}],"ips":[` + strings.Join(ips, ",") + `]}`
}

func newEnv(t *testing.T) *env {
	t.Helper()
	l := netlab.NewT(t)
	e := &env{t: t, node: l.Node, pod: l.Node.PodT(t, "pod"), runs: attachments.Open(filepath.Join(t.TempDir(), "attachments")), prev: prevResult(v4, v6)}
	e.netns, e.plugin = e.pod.Path, New(Deps{Records: e.runs})
	for _, args := range []string{
		"link set lo up",
		"link add eth0 type veth peer name wire0", "link add net1 type veth peer name wire1",
		"link set eth0 up addrgenmode none", "link set wire0 up addrgenmode none", "link set net1 up addrgenmode none", "link set wire1 up addrgenmode none",
		"addr add 10.0.0.5/24 dev eth0", "-6 addr add fd00::5/64 dev eth0 nodad",
		"addr add 10.1.0.5/24 dev net1", "-6 addr add fd01::5/64 dev net1 nodad",
		"route add default via 10.0.0.1 dev eth0", "-6 route add default via fd00::1 dev eth0",
		"route add 10.9.0.0/16 via 10.1.0.9 dev net1", "-6 route add fd09::/64 via fd01::9 dev net1",
		"route add 10.8.0.0/16 dev net1 metric 5",
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
	conf := `{"cniVersion":"1.1.0","name":"net","type":"sbr"` + keys + `}`
	a := &cniskel.Args{Log: log.NewNop(), CmdArgs: cniskel.CmdArgs{ContainerID: "a", IfName: "net1", Netns: e.netns, StdinData: []byte(conf)}}
	return e.node.Do(func() error { return verb(context.Background(), a) })
}

func (e *env) add(keys string) (res types.Result, err error) {
	err = e.call(func(ctx context.Context, a *cniskel.Args) error {
		res, err = e.plugin.Add(ctx, a)
		return err
	}, keys+e.prev)
	return res, err
}

func (e *env) mustAdd(keys string) {
	e.t.Helper()
	if _, err := e.add(keys); err != nil {
		e.t.Fatalf("ADD: %v", err)
	}
}

// state is the pod's rules and routes as ip(8) prints them; the order of the
// rules is by family.
func (e *env) state() []string {
	e.t.Helper()
	var out []string
	for _, args := range []string{"-4 rule", "-6 rule", "-4 route show table all", "-6 route show table all"} {
		for _, line := range strings.Split(strings.TrimSpace(e.ip(args)), "\n") {
			line = strings.Join(strings.Fields(line), " ")
			if strings.Contains(line, "table local") || strings.Contains(line, "lookup local") || strings.Contains(line, "ff00::") || line == "" {
				continue
			}
			if _, rule, ok := strings.Cut(line, ": "); ok && strings.Contains(line, "lookup") {
				line = rule
			}
			out = append(out, strings.TrimSuffix(line, " pref medium"))
		}
	}
	return out
}

// lines keeps the state's lines about net1 and rules of ours.
func (e *env) lines() []string {
	var out []string
	for _, l := range e.state() {
		if strings.Contains(l, "net1") || strings.HasPrefix(l, "from 10.") || strings.HasPrefix(l, "from fd") {
			out = append(out, l)
		}
	}
	return out
}

func (e *env) records() int {
	e.t.Helper()
	list, err := e.runs.List("")
	if err != nil {
		e.t.Fatal(err)
	}
	return len(list)
}

func TestPrivilegedTables(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, keys string
		ips        []string
		want       []string
	}{
		{"both families", "", []string{v4, v6}, []string{
			"from 10.1.0.5 lookup 100", "from fd01::5 lookup 101",
			"default via 10.1.0.1 dev net1 table 100", "10.1.0.0/24 dev net1 table 100 proto kernel scope link src 10.1.0.5",
			"10.8.0.0/16 dev net1 table 100 scope link metric 5", "10.9.0.0/16 via 10.1.0.9 dev net1 table 100",
			"fd01::/64 dev net1 table 101 proto kernel metric 256", "fd09::/64 via fd01::9 dev net1 table 101 metric 1024",
			"default via fd01::1 dev net1 table 101 metric 1024",
		}},
		{"static gateways", `,"gateways":["10.1.0.77","fd01::77"]`, []string{v4, v6}, []string{
			"from 10.1.0.5 lookup 100", "from fd01::5 lookup 101",
			"default via 10.1.0.77 dev net1 table 100", "10.1.0.0/24 dev net1 table 100 proto kernel scope link src 10.1.0.5",
			"10.8.0.0/16 dev net1 table 100 scope link metric 5", "10.9.0.0/16 via 10.1.0.9 dev net1 table 100",
			"fd01::/64 dev net1 table 101 proto kernel metric 256", "fd09::/64 via fd01::9 dev net1 table 101 metric 1024",
			"default via fd01::77 dev net1 table 101 metric 1024",
		}},
		{"no gateway", "", []string{`{"address":"10.1.0.5/24"}`}, []string{
			"from 10.1.0.5 lookup 100", "10.1.0.0/24 dev net1 table 100 proto kernel scope link src 10.1.0.5",
			"10.8.0.0/16 dev net1 table 100 scope link metric 5", "10.9.0.0/16 via 10.1.0.9 dev net1 table 100",
			"fd01::/64 dev net1 table 100 proto kernel metric 256", "fd09::/64 via fd01::9 dev net1 table 100 metric 1024",
		}},
		{"source hints", `,"addSourceHints":true`, []string{v4}, []string{
			"from 10.1.0.5 lookup 100",
			"default via 10.1.0.1 dev net1 table 100", "10.1.0.0/24 dev net1 table 100 proto kernel scope link src 10.1.0.5",
			"10.8.0.0/16 dev net1 table 100 scope link metric 5", "10.9.0.0/16 via 10.1.0.9 dev net1 table 100",
			"10.1.0.0/24 dev net1 scope link src 10.1.0.5", "10.8.0.0/16 dev net1 scope link metric 5",
			"fd01::/64 dev net1 proto kernel metric 256",
			"fd09::/64 via fd01::9 dev net1 table 100 metric 1024",
		}},
		{"IPv6 default route without an IPv6 address", `,"addSourceHints":true`, []string{v4}, []string{
			"from 10.1.0.5 lookup 100",
			"default via 10.1.0.1 dev net1 table 100", "10.1.0.0/24 dev net1 table 100 proto kernel scope link src 10.1.0.5",
			"10.8.0.0/16 dev net1 table 100 scope link metric 5", "10.9.0.0/16 via 10.1.0.9 dev net1 table 100",
			"10.1.0.0/24 dev net1 scope link src 10.1.0.5", "10.8.0.0/16 dev net1 scope link metric 5",
			"default dev net1 table 100 metric 10",
		}},
		{"a table of the configuration", `,"table":77,"gateways":["10.1.0.77"]`, []string{v4, v6}, []string{
			"from 10.1.0.5 lookup 77", "from fd01::5 lookup 77",
			"10.1.0.0/24 dev net1 proto kernel scope link src 10.1.0.5", "10.8.0.0/16 dev net1 scope link metric 5", "10.9.0.0/16 via 10.1.0.9 dev net1",
			"fd01::/64 dev net1 proto kernel metric 256", "fd09::/64 via fd01::9 dev net1 metric 1024",
		}},
		{"an interface without a sandbox", "", []string{`{"address":"10.1.0.5/24","gateway":"10.1.0.1","interface":2}`}, []string{
			"from 10.1.0.5 lookup 100",
			"default via 10.1.0.1 dev net1 table 100", "10.1.0.0/24 dev net1 table 100 proto kernel scope link src 10.1.0.5",
			"10.8.0.0/16 dev net1 table 100 scope link metric 5", "10.9.0.0/16 via 10.1.0.9 dev net1 table 100",
			"fd01::/64 dev net1 table 100 proto kernel metric 256", "fd09::/64 via fd01::9 dev net1 table 100 metric 1024",
		}},
		{"addresses of the other interface", "", []string{`{"address":"10.0.0.5/24","gateway":"10.0.0.1","interface":1}`}, []string{
			"10.1.0.0/24 dev net1 proto kernel scope link src 10.1.0.5", "10.8.0.0/16 dev net1 scope link metric 5", "10.9.0.0/16 via 10.1.0.9 dev net1",
			"fd01::/64 dev net1 proto kernel metric 256", "fd09::/64 via fd01::9 dev net1 metric 1024",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			e.prev = prevResult(tt.ips...)
			if strings.HasPrefix(tt.name, "IPv6 default route") { // of an IPAM plugin that names both families' whatever it gives
				e.ip("-6 route del fd09::/64")
				e.ip("-6 addr flush dev net1")
				e.ip("-6 route add default dev net1 metric 10")
			}
			before := e.state()
			res, err := e.add(tt.keys)
			if err != nil {
				t.Fatalf("ADD: %v", err)
			}
			raw, _ := json.Marshal(res)
			if !strings.Contains(string(raw), strings.Split(tt.ips[0], `"`)[3]) {
				t.Errorf("the result is not passed on: %s", raw)
			}
			if d := cmp.Diff(sorted(tt.want), sorted(e.lines())); d != "" {
				t.Errorf("rules and routes (- want, + got):\n%s", d)
			}
			if tt.ips[0] != `{"address":"10.0.0.5/24","gateway":"10.0.0.1","interface":1}` {
				if err := e.call(e.plugin.Check, tt.keys+e.prev); err != nil {
					t.Errorf("CHECK: %v", err)
				}
			}
			e.mustAdd(tt.keys) // a repeated ADD changes nothing
			if d := cmp.Diff(sorted(tt.want), sorted(e.lines())); d != "" {
				t.Errorf("after a second ADD (- want, + got):\n%s", d)
			}
			for range 2 {
				if err := e.call(e.plugin.Del, tt.keys); err != nil {
					t.Fatalf("DEL: %v", err)
				}
				if d := cmp.Diff(sorted(before), sorted(e.state())); d != "" {
					t.Errorf("after DEL (- before, + after):\n%s", d)
				}
			}
			if e.records() != 0 {
				t.Error("the record is left")
			}
		})
	}
}

// What it is for: a packet from net1's address goes out by net1, also to where
// eth0's default route leads.
func TestPrivilegedEffect(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.mustAdd("")
	for args, want := range map[string]string{
		"route get 198.51.100.1 from 10.1.0.5": "dev net1", "route get 198.51.100.1 from 10.0.0.5": "dev eth0", "route get 198.51.100.1": "dev eth0",
		"route get 2001:db8::1 from fd01::5": "dev net1", "route get 2001:db8::1 from fd00::5": "dev eth0",
	} {
		if got := e.ip(args); !strings.Contains(got, want) {
			t.Errorf("ip %s says %q, want %s", args, got, want)
		}
	}
}

// Tables that a rule or a route uses already are left alone.
func TestPrivilegedFreeTables(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.ip("rule add from 192.0.2.1 lookup 100")
	e.ip("route add 192.0.2.0/24 dev eth0 table 101")
	e.mustAdd("")
	got := strings.Join(e.lines(), "\n")
	if !strings.Contains(got, "from 10.1.0.5 lookup 102") || !strings.Contains(got, "from fd01::5 lookup 103") {
		t.Errorf("rules and routes:\n%s", got)
	}
	if err := e.call(e.plugin.Del, ""); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(e.state(), "\n"); !strings.Contains(got, "from 192.0.2.1 lookup 100") || !strings.Contains(got, "192.0.2.0/24 dev eth0 table 101") {
		t.Errorf("DEL took what is not ours:\n%s", got)
	}
}

// A route by several gateways stays one, and one that another interface has a part
// in stays where it is.
func TestPrivilegedMultipath(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.ip("route add 10.7.0.0/16 nexthop via 10.1.0.8 dev net1 nexthop via 10.1.0.9 dev net1")
	e.ip("route add 10.6.0.0/16 nexthop via 10.1.0.8 dev net1 nexthop via 10.0.0.9 dev eth0")
	before, shared := e.state(), e.ip("route show 10.6.0.0/16")
	e.mustAdd("")
	if got := e.ip("route show 10.7.0.0/16 table 100"); strings.Count(got, "nexthop") != 2 {
		t.Errorf("by two gateways, in table 100: %s", got)
	}
	if got := e.ip("route show 10.7.0.0/16"); got != "" {
		t.Errorf("by two gateways, in the main table: %s", got)
	}
	if d := cmp.Diff(shared, e.ip("route show 10.6.0.0/16")); d != "" {
		t.Errorf("by two interfaces (- before, + after ADD):\n%s", d)
	}
	if err := e.call(e.plugin.Del, ""); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(sorted(before), sorted(e.state())); d != "" {
		t.Errorf("after DEL (- before, + after):\n%s", d)
	}
}

func TestPrivilegedDel(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		prep func(e *env)
		keys string
	}{
		{"CNI_NETNS empty", func(e *env) { e.netns = "" }, ""},
		{"CNI_NETNS missing", func(e *env) { e.netns = "/run/netns/none" }, ""},
		{"configuration wrong", func(*env) {}, `,"table":"x"`},
		{"interface gone", func(e *env) { e.ip("link del net1") }, ""},
		{"address gone", func(e *env) { e.ip("addr flush dev net1") }, ""},
		{"record lost", func(e *env) {
			if err := e.runs.Remove(attachments.ID{Network: "net", ContainerID: "a", IfName: "net1"}, Name); err != nil {
				e.t.Fatal(err)
			}
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			e.mustAdd("")
			tt.prep(e)
			for range 2 {
				if err := e.call(e.plugin.Del, tt.keys); err != nil {
					t.Fatalf("DEL: %v", err)
				}
			}
			for _, l := range e.lines() {
				if strings.HasPrefix(l, "from") {
					t.Errorf("a rule is left: %s", l)
				}
			}
			if _, err := os.Stat("/run/netns/none"); e.records() != 0 || err == nil {
				t.Errorf("%d records, and %v", e.records(), err)
			}
		})
	}
	t.Run("namespace gone", func(t *testing.T) {
		t.Parallel()
		e := newEnv(t)
		e.mustAdd("")
		if err := e.pod.Delete(); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := e.call(e.plugin.Del, ""); err != nil || e.records() != 0 {
				t.Errorf("DEL: %v, %d records", err, e.records())
			}
		}
		if err := e.node.Do(func() error { _, err := os.Stat(e.netns); return err }); err == nil {
			t.Error("DEL made a file at CNI_NETNS")
		}
	})
}

func TestPrivilegedCheck(t *testing.T) {
	t.Parallel()
	for change, word := range map[string]string{
		"rule del from 10.1.0.5":      "10.1.0.5",
		"-6 rule del from fd01::5":    "fd01::5",
		"route del default table 100": "default route by 10.1.0.1",
		"-6 route flush table 101":    "default route by fd01::1",
	} {
		e := newEnv(t)
		e.mustAdd("")
		e.ip(change)
		plugintest.WantCode(t, e.call(e.plugin.Check, e.prev), 102, word)
	}
	e := newEnv(t)
	plugintest.WantCode(t, e.call(e.plugin.Check, e.prev), 102, "10.1.0.5", "fd01::5")
	plugintest.WantCode(t, e.call(e.plugin.Check, ""), 7, "prevResult")
}

func TestPrivilegedGC(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	before := e.state()
	e.mustAdd("")
	during := e.state()
	if err := e.call(e.plugin.GC, `,"cni.dev/valid-attachments":[{"containerID":"a","ifname":"net1"}]`); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(during, e.state()); d != "" {
		t.Errorf("after a GC that keeps the pod:\n%s", d)
	}
	if err := e.call(e.plugin.GC, `,"cni.dev/valid-attachments":[]`); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(sorted(before), sorted(e.state())); d != "" || e.records() != 0 {
		t.Errorf("after GC, %d records (- before, + after):\n%s", e.records(), d)
	}
}

func TestPrivilegedRefusals(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	before := e.state()
	tests := []struct {
		keys, prev string
		code       uint
		words      []string
	}{
		{`,"table":0`, e.prev, 7, []string{"table", "0"}},
		{`,"table":255`, e.prev, 7, []string{"table", "255"}},
		{`,"table":"main"`, e.prev, 6, []string{"table"}},
		{`,"gateways":["10.1.0"]`, e.prev, 7, []string{"gateways[0]", "10.1.0"}},
		{`,"gateways":["10.1.0.1","10.1.0.2"]`, e.prev, 7, []string{"gateways[1]", "10.1.0.2", "10.1.0.1"}},
		{`,"gateways":["10.1.0.1","fd01::1","fd01::2"]`, e.prev, 7, []string{"gateways"}},
		{`,"gateways":["10.77.0.1"]`, e.prev, 100, []string{"10.77.0.1"}},
		{"", "", 7, []string{"prevResult"}},
		{"", prevResult(), 7, []string{"address"}},
	}
	for _, tt := range tests {
		e.prev = tt.prev
		_, err := e.add(tt.keys)
		plugintest.WantCode(t, err, tt.code, tt.words...)
		if d := cmp.Diff(sorted(before), sorted(e.state())); d != "" || e.records() != 0 {
			t.Errorf("%s: %d records, and the pod has changed:\n%s", fmt.Sprint(tt.words), e.records(), d)
		}
	}
	e.prev, e.netns = prevResult(v4), "/run/netns/none"
	_, err := e.add("")
	plugintest.WantCode(t, err, 8, "/run/netns/none")
	for keys, code := range map[string]uint{"": 0, `,"table":0`: 50} {
		if err := e.call(e.plugin.Status, keys); code == 0 && err != nil {
			t.Errorf("STATUS: %v", err)
		} else if code != 0 {
			plugintest.WantCode(t, err, code)
		}
	}
}

// The pod's own processes can lock its namespace, for ever: no call waits for them.
func TestPrivilegedLockedByThePod(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	var held *netns.NS
	if err := e.node.Do(func() (err error) { held, err = netns.Open(e.pod.Path); return err }); err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := unix.Flock(held.Fd(), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	release := time.AfterFunc(netlab.Patient(20*time.Second), held.Close)
	defer release.Stop()
	e.mustAdd("")
	if err := e.call(e.plugin.Del, ""); err != nil || e.records() != 0 {
		t.Errorf("DEL: %v, %d records", err, e.records())
	}
	if !release.Stop() {
		t.Error("a call waited for the pod's lock")
	}
}

// Calls for one namespace take turns by a file that only root can open. A call waits no longer than its deadline, and no file is left.
func TestPrivilegedTurns(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.mustAdd("")
	before := e.state()
	inode, err := e.pod.Inode()
	if err != nil {
		t.Fatal(err)
	}
	path := podns.LockPath(e.runs, inode)
	held, err := file.AcquireLock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	hurried := func(verb func(context.Context, *cniskel.Args) error) func(context.Context, *cniskel.Args) error {
		return func(ctx context.Context, a *cniskel.Args) error {
			ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
			return verb(ctx, a)
		}
	}
	plugintest.WantCode(t, e.call(hurried(e.plugin.Del), ""), 11, e.pod.Path)
	plugintest.WantCode(t, e.call(hurried(func(ctx context.Context, a *cniskel.Args) error { _, err := e.plugin.Add(ctx, a); return err }), e.prev), 11, e.pod.Path)
	if d := cmp.Diff(before, e.state()); d != "" {
		t.Errorf("changed without the lock:\n%s", d)
	}
	held.Close()
	if err := e.call(e.plugin.Del, ""); err != nil || e.records() != 0 {
		t.Errorf("DEL of a namespace that is free again: %v, %d records", err, e.records())
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lock file is left: %v", err)
	}
}

func sorted(s []string) []string { return slices.Sorted(slices.Values(s)) }
