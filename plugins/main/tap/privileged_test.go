// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/plugintest"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// fakeIPAM hands out one address and remembers who has it.
type fakeIPAM struct {
	held map[string]bool
	err  error
}

func (f *fakeIPAM) Add(_ context.Context, a *cniskel.Args, _ string) (*types100.Result, error) {
	f.held[a.ContainerID] = true
	return &types100.Result{IPs: []*types100.IPConfig{
		{Address: net.IPNet{IP: net.IPv4(10, 1, 0, 2).To4(), Mask: net.CIDRMask(24, 32)}},
		{Address: net.IPNet{IP: net.ParseIP("fd00::2"), Mask: net.CIDRMask(64, 128)}},
	}}, f.err
}

func (f *fakeIPAM) Del(_ context.Context, a *cniskel.Args, _ string) error {
	delete(f.held, a.ContainerID)
	return nil
}

func (f *fakeIPAM) Check(context.Context, *cniskel.Args, string) error  { return f.err }
func (f *fakeIPAM) GC(context.Context, *cniskel.Args, string) error     { return f.err }
func (f *fakeIPAM) Status(context.Context, *cniskel.Args, string) error { return f.err }

// fakeSELinux runs the command and remembers the label.
type fakeSELinux struct {
	on     bool
	labels []string
}

func (f *fakeSELinux) Enabled() bool { return f.on }

func (f *fakeSELinux) Run(label string, argv []string) error {
	f.labels = append(f.labels, label)
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

type env struct {
	t       *testing.T
	node    *netlab.Node
	pod     *netlab.Pod
	ipam    *fakeIPAM
	selinux *fakeSELinux
	runs    *attachments.Dir
	plugin  *cniskel.Plugin
	conf    string
	cniArgs string
	netns   string
	version string
}

func newEnv(t *testing.T, conf string) *env {
	t.Helper()
	require.Link(t, "tap")
	l := netlab.NewT(t)
	e := &env{
		t: t, node: l.Node, pod: l.Node.PodT(t, "pod"), ipam: &fakeIPAM{held: map[string]bool{}}, selinux: &fakeSELinux{},
		runs: attachments.Open(filepath.Join(t.TempDir(), "attachments")), conf: conf, version: "1.1.0",
	}
	e.netns = e.pod.Path
	e.plugin = New(Deps{IPAM: e.ipam, Records: e.runs, SELinux: e.selinux})
	return e
}

func (e *env) ip(args string) string {
	e.t.Helper()
	return e.pod.IPT(e.t, args)
}

func (e *env) links() []rtnl.Link {
	e.t.Helper()
	var links []rtnl.Link
	if err := e.pod.Do(func() error {
		h, err := rtnl.New()
		if err != nil {
			return err
		}
		defer h.Close()
		links, err = h.Links()
		return err
	}); err != nil {
		e.t.Fatal(err)
	}
	return links
}

func (e *env) link(name string) rtnl.Link {
	e.t.Helper()
	for _, l := range e.links() {
		if l.Name == name {
			return l
		}
	}
	e.t.Fatalf("the pod has no %s", name)
	return rtnl.Link{}
}

func (e *env) call(verb func(context.Context, *cniskel.Args) error, more string) error {
	keys := e.conf
	if keys != "" {
		keys = "," + keys
	}
	conf := fmt.Sprintf(`{"cniVersion":%q,"name":"net","type":"tap"%s%s}`, e.version, keys, more)
	a := &cniskel.Args{Log: log.NewNop(), CmdArgs: cniskel.CmdArgs{ContainerID: "a", IfName: "eth0", Netns: e.netns, Args: e.cniArgs, StdinData: []byte(conf)}}
	return e.node.Do(func() error { return verb(context.Background(), a) })
}

func (e *env) add() (res *types100.Result, err error) {
	err = e.call(func(ctx context.Context, a *cniskel.Args) error {
		r, err := e.plugin.Add(ctx, a)
		if err != nil {
			return err
		}
		res, err = types100.NewResultFromResult(r)
		return err
	}, "")
	return res, err
}

func (e *env) mustAdd() *types100.Result {
	e.t.Helper()
	res, err := e.add()
	if err != nil {
		e.t.Fatalf("ADD: %v", err)
	}
	return res
}

func (e *env) check(res *types100.Result) error {
	e.t.Helper()
	c := *res
	c.CNIVersion = "1.1.0"
	raw, err := json.Marshal(&c)
	if err != nil {
		e.t.Fatal(err)
	}
	return e.call(e.plugin.Check, `,"prevResult":`+string(raw))
}

// empty fails the test unless the pod, the records and IPAM are as at the start.
func (e *env) empty() {
	e.t.Helper()
	if links := e.links(); len(links) != 1 {
		e.t.Errorf("devices are left: %+v", links)
	}
	list, err := e.runs.List("")
	if err != nil || len(list) != 0 || len(e.ipam.held) != 0 {
		e.t.Errorf("records %v (%v), addresses %v are left", list, err, e.ipam.held)
	}
}

func ptr[T any](v T) *T { return &v }

const all = `"owner":1000,"group":36,"multiQueue":true,"mtu":1400,"mac":"02:00:00:00:00:01","ipam":{"type":"fake"}`

// Every key does what it says, by the kernel's own word, also when ip(8) makes
// the device under a label.
func TestPrivilegedKeys(t *testing.T) {
	tests := []struct {
		name, conf, cniArgs, mac string
		mtu                      int
		tun                      rtnl.Tun
		labels                   []string
	}{
		{"none", "", "", "", 1500, rtnl.Tun{}, nil},
		{"all", all, "", "02:00:00:00:00:01", 1400, rtnl.Tun{Owner: ptr(uint32(1000)), Group: ptr(uint32(36)), MultiQueue: true}, nil},
		{"owner alone, and zero", `"owner":0`, "", "", 1500, rtnl.Tun{Owner: ptr(uint32(0))}, nil},
		{"MAC of CNI_ARGS", `"mac":"02:00:00:00:00:01"`, "MAC=02:00:00:00:00:02", "02:00:00:00:00:02", 1500, rtnl.Tun{}, nil},
		{"MAC of the runtime", `"mac":"02:00:00:00:00:01","runtimeConfig":{"mac":"02:00:00:00:00:03"}`, "MAC=02:00:00:00:00:02", "02:00:00:00:00:03", 1500, rtnl.Tun{}, nil},
		{"placeholders", `"mac":"placeholder","runtimeConfig":{"mac":"02:00:00:00:00:03"}`, "MAC=placeholder", "02:00:00:00:00:03", 1500, rtnl.Tun{}, nil},
		{"args.cni.mac is not read", `"mac":"02:00:00:00:00:01","args":{"cni":{"mac":"02:00:00:00:00:04"}}`, "", "02:00:00:00:00:01", 1500, rtnl.Tun{}, nil},
		{"label", all + `,"selinuxContext":"system_u:system_r:container_t:s0"`, "", "02:00:00:00:00:01", 1400,
			rtnl.Tun{Owner: ptr(uint32(1000)), Group: ptr(uint32(36)), MultiQueue: true}, []string{"system_u:system_r:container_t:s0"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, tt.conf)
			e.cniArgs, e.selinux.on = tt.cniArgs, true
			res := e.mustAdd()
			l := e.link("eth0")
			tt.tun.Tap, tt.tun.Persist = true, true
			if d := cmp.Diff(&tt.tun, l.Tun); d != "" {
				t.Errorf("device (- want, + got):\n%s", d)
			}
			if l.MTU != tt.mtu || !l.Up || tt.mac != "" && l.MAC.String() != tt.mac {
				t.Errorf("device %+v", l)
			}
			want := []*types100.Interface{{Name: "eth0", Mac: l.MAC.String(), Mtu: tt.mtu, Sandbox: e.pod.Path}}
			if d := cmp.Diff(want, res.Interfaces); d != "" {
				t.Errorf("interfaces (- want, + got):\n%s", d)
			}
			if !slices.Equal(e.selinux.labels, tt.labels) {
				t.Errorf("labels %q, want %q", e.selinux.labels, tt.labels)
			}
			if strings.Contains(tt.conf, "ipam") {
				if got := e.ip("addr show eth0"); !strings.Contains(got, "10.1.0.2/24") || !strings.Contains(got, "fd00::2/64") {
					t.Errorf("addresses: %s", got)
				}
			}
			if err := e.check(res); err != nil {
				t.Errorf("CHECK: %v", err)
			}
			for range 2 {
				if err := e.call(e.plugin.Del, ""); err != nil {
					t.Fatalf("DEL: %v", err)
				}
				e.empty()
			}
		})
	}
}

// The tap becomes a port of a bridge in the pod, and can be opened by the pod's
// program: the frames that it writes arrive.
func TestPrivilegedBridge(t *testing.T) {
	e := newEnv(t, `"bridge":"br0"`)
	_, err := e.add()
	plugintest.WantCode(t, err, 7, "bridge", `"br0"`)
	e.empty()
	e.ip("link add br0 type veth peer name x0")
	_, err = e.add()
	plugintest.WantCode(t, err, 7, "bridge", `"br0"`, "no bridge")
	e.ip("link del br0")
	e.ip("link add br0 type bridge")
	res := e.mustAdd()
	if l := e.link("eth0"); l.MasterIndex != e.link("br0").Index {
		t.Errorf("device %+v is no port of br0", l)
	}
	if err := e.check(res); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	e.ip("link set eth0 nomaster")
	plugintest.WantCode(t, e.check(res), 102, "br0")
}

func TestPrivilegedAddFails(t *testing.T) {
	tests := []struct {
		name, conf, cniArgs string
		prep                func(e *env)
		code                uint
		words               []string
	}{
		{"MTU", `"mtu":67`, "", nil, 7, []string{"mtu", "67"}},
		{"MTU of the driver", `"mtu":65535`, "", nil, 100, []string{"mtu 65535"}},
		{"MAC", `"mac":"x"`, "", nil, 7, []string{"mac", `"x"`}},
		{"MAC of CNI_ARGS", "", "MAC=01:00:00:00:00:01", nil, 4, []string{"MAC", "01:00:00:00:00:01"}},
		{"MAC of the runtime", `"runtimeConfig":{"mac":"x"}`, "", nil, 7, []string{"runtimeConfig.mac"}},
		{"owner negative", `"owner":-1`, "", nil, 6, []string{"owner"}},
		{"group no number", `"group":"wheel"`, "", nil, 6, []string{"group"}},
		{"bridge", `"bridge":"a/b"`, "", nil, 7, []string{"bridge", "a/b"}},
		{"label", `"selinuxContext":"a\nb"`, "", nil, 7, []string{"selinuxContext"}},
		{"name taken", "", "", func(e *env) { e.ip("link add eth0 type veth peer name x0") }, 103, []string{"CNI_IFNAME", "eth0"}},
		{"netns missing", "", "", func(e *env) { e.netns = "/run/netns/none" }, 8, []string{"/run/netns/none"}},
		{"no result in this version", "", "", func(e *env) { e.version = "0.1.0" }, 2, []string{"0.1.0"}},
		{"IPAM", `"ipam":{"type":"fake"}`, "", func(e *env) { e.ipam.err = cnierr.New(11, "later", "") }, 11, []string{"later"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, tt.conf)
			e.cniArgs = tt.cniArgs
			if tt.prep != nil {
				tt.prep(e)
			}
			before := len(e.links())
			_, err := e.add()
			plugintest.WantCode(t, err, tt.code, tt.words...)
			if after := e.links(); len(after) != before {
				t.Errorf("%d devices before, now %+v", before, after)
			}
			if list, _ := e.runs.List(""); len(list) != 0 || len(e.ipam.held) != 0 {
				t.Errorf("records %v, addresses %v are left", list, e.ipam.held)
			}
		})
	}
}

func TestPrivilegedCheck(t *testing.T) {
	tests := []struct{ name, change, word string }{
		{"address", "addr del 10.1.0.2/24 dev eth0", "10.1.0.2/24"},
		{"hardware address", "link set eth0 address 02:00:00:00:00:99", "02:00:00:00:00:99"},
		{"MTU", "link set eth0 mtu 1300", "1300"},
		{"down", "link set eth0 down", "down"},
		{"gone", "link del eth0", "does not exist"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, all)
			res := e.mustAdd()
			e.ip(tt.change)
			plugintest.WantCode(t, e.check(res), 102, tt.word)
		})
	}
	t.Run("what it is", func(t *testing.T) {
		e := newEnv(t, `"mac":"02:00:00:00:00:01"`)
		res := e.mustAdd()
		for conf, word := range map[string]string{`"owner":7`: "owner", `"group":7`: "group", `"multiQueue":true`: "multiQueue", `"bridge":"br9"`: "br9"} {
			e.conf = conf
			plugintest.WantCode(t, e.check(res), 102, word)
		}
		e.conf = ""
		e.ip("link del eth0")
		e.ip("link add eth0 address 02:00:00:00:00:01 type veth peer name x0")
		plugintest.WantCode(t, e.check(res), 102, "not a tap")
	})
	t.Run("what the configuration does not name", func(t *testing.T) {
		e := newEnv(t, `"owner":0,"group":36`)
		res := e.mustAdd()
		e.conf = ""
		if err := e.check(res); err != nil {
			t.Error(err)
		}
	})
}

// DEL finds the device with no more than its name, and leaves others alone.
func TestPrivilegedDel(t *testing.T) {
	tests := []struct {
		name string
		prep func(e *env)
		left int // devices besides lo
	}{
		{"never added", func(*env) {}, 0},
		{"CNI_NETNS empty", func(e *env) { e.mustAdd(); e.netns = "" }, 0},
		{"CNI_NETNS missing", func(e *env) { e.mustAdd(); e.netns = "/run/netns/none" }, 0},
		{"configuration wrong", func(e *env) { e.mustAdd(); e.conf = `"mtu":"x","ipam":{"type":"fake"}` }, 0},
		{"configuration empty", func(e *env) { e.mustAdd(); e.conf = "" }, 0},
		{"record lost", func(e *env) {
			e.mustAdd()
			if err := e.runs.Remove(attachments.ID{Network: "net", ContainerID: "a", IfName: "eth0"}, Name); err != nil {
				e.t.Fatal(err)
			}
		}, 0},
		{"another kind of device", func(e *env) { e.ip("link add eth0 type veth peer name x0") }, 2},
		{"a namespace of the same path", func(e *env) {
			e.mustAdd()
			if err := e.pod.Delete(); err != nil {
				e.t.Fatal(err)
			}
			e.pod = e.node.PodT(e.t, "pod")
			e.ip("tuntap add mode tap name eth0")
		}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, all)
			tt.prep(e)
			if err := e.call(e.plugin.Del, ""); err != nil {
				t.Fatalf("DEL: %v", err)
			}
			if got := len(e.links()) - 1; got != tt.left {
				t.Errorf("%d devices are left, want %d", got, tt.left)
			}
			if tt.left > 0 {
				return // without a record the next DEL knows the namespace by its path only
			}
			e.empty()
			if err := e.call(e.plugin.Del, ""); err != nil {
				t.Fatalf("second DEL: %v", err)
			}
			e.empty()
		})
	}
}

func TestPrivilegedGCAndStatus(t *testing.T) {
	e := newEnv(t, all)
	e.mustAdd()
	gc := func(list string) {
		t.Helper()
		if err := e.call(e.plugin.GC, `,"cni.dev/valid-attachments":[`+list+`]`); err != nil {
			t.Fatalf("GC: %v", err)
		}
	}
	gc(`{"containerID":"a","ifname":"eth0"}`)
	e.link("eth0")
	gc(`{"containerID":"a","ifname":"eth1"}`)
	e.empty()
	if err := e.call(e.plugin.Status, ""); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	e.conf = `"mtu":1`
	plugintest.WantCode(t, e.call(e.plugin.Status, ""), 50, "mtu")
	e.conf, e.ipam.err = all, errors.New("daemon is down")
	if err := e.call(e.plugin.Status, ""); err == nil || !strings.Contains(err.Error(), "daemon is down") {
		t.Errorf("IPAM's trouble is not passed on: %v", err)
	}
}
