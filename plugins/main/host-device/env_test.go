// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// fakeIPAM hands out one address of each family and remembers who has them.
type fakeIPAM struct {
	held  map[string]bool
	calls []string
	err   error
}

func (f *fakeIPAM) Add(_ context.Context, a *cniskel.Args, _ string) (*types100.Result, error) {
	f.calls = append(f.calls, "ADD")
	f.held[a.ContainerID] = true
	if f.err != nil {
		return nil, f.err
	}
	return &types100.Result{IPs: []*types100.IPConfig{
		{Address: net.IPNet{IP: net.IPv4(10, 1, 0, 2).To4(), Mask: net.CIDRMask(24, 32)}, Gateway: net.IPv4(10, 1, 0, 1)},
		{Address: net.IPNet{IP: net.ParseIP("fd00::2"), Mask: net.CIDRMask(64, 128)}},
	}}, nil
}

func (f *fakeIPAM) Del(_ context.Context, a *cniskel.Args, _ string) error {
	f.calls = append(f.calls, "DEL")
	delete(f.held, a.ContainerID)
	return nil
}

func (f *fakeIPAM) verb(name string) error { f.calls = append(f.calls, name); return f.err }

func (f *fakeIPAM) Check(context.Context, *cniskel.Args, string) error { return f.verb("CHECK") }
func (f *fakeIPAM) GC(context.Context, *cniskel.Args, string) error    { return f.verb("GC") }
func (f *fakeIPAM) Status(context.Context, *cniskel.Args, string) error {
	return f.verb("STATUS")
}

// env is a node with a device to lend (nic0, a veth end) and a pod.
type env struct {
	t       *testing.T
	node    *netlab.Node
	pod     *netlab.Pod
	ipam    *fakeIPAM
	root    string
	runs    *attachments.Dir
	plugin  *cniskel.Plugin
	warned  *observer.ObservedLogs
	log     *log.Logger
	conf    string // keys of the configuration besides the common ones
	netns   string
	version string
}

func newEnv(t *testing.T, conf string) *env {
	t.Helper()
	l := netlab.NewT(t)
	core, logs := observer.New(zapcore.WarnLevel)
	e := &env{
		t: t, node: l.Node, pod: l.Node.PodT(t, "pod"), ipam: &fakeIPAM{held: map[string]bool{}}, root: t.TempDir(),
		runs: attachments.Open(filepath.Join(t.TempDir(), "attachments")), warned: logs, log: log.NewCore(core), conf: conf, version: "1.1.0",
	}
	e.netns = e.pod.Path
	e.plugin = New(Deps{IPAM: e.ipam, Records: e.runs, Root: e.root})
	e.ip(e.node.NS, "link add nic0 mtu 1400 type veth peer name wire0")
	e.ip(e.node.NS, "link set nic0 address 02:00:00:00:00:07")
	e.ip(e.node.NS, "link set wire0 up addrgenmode none") // a link-local address takes its time
	return e
}

// ip runs ip(8) in a namespace and returns what it prints.
func (e *env) ip(ns *netlab.NS, args string) string {
	e.t.Helper()
	return ns.IPT(e.t, args)
}

// facts is what the node is like, less what the kernel makes of an IPv6 address
// later. Given what it should be, it waits a while for that.
func (e *env) facts(want netlab.Snapshot) netlab.Snapshot {
	e.t.Helper()
	end := time.Now().Add(netlab.Patient(3 * time.Second))
	for {
		s, err := e.node.Snapshot()
		if err != nil {
			e.t.Fatal(err)
		}
		s = s.Without("addr nic0 fe80", "route local fe80", "route local 2001:db8:77::7 dev nic0", "route fe80::/64 dev nic0", "route multicast")
		if want == nil || slices.Equal(s, want) || time.Now().After(end) {
			return s
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// links returns the names of a namespace's devices with their aliases.
func (e *env) links(ns *netlab.NS) map[string]string {
	e.t.Helper()
	var list []struct {
		Name  string `json:"ifname"`
		Alias string `json:"ifalias"`
	}
	if err := json.Unmarshal([]byte(e.ip(ns, "-j -d link")), &list); err != nil {
		e.t.Fatal(err)
	}
	out := map[string]string{}
	for _, l := range list {
		out[l.Name] = l.Alias
	}
	return out
}

func (e *env) args(id, more string) *cniskel.Args {
	conf := fmt.Sprintf(`{"cniVersion":%q,"name":"net","type":"host-device",%s%s}`, e.version, e.conf, more)
	return &cniskel.Args{Log: e.log, CmdArgs: cniskel.CmdArgs{ContainerID: id, IfName: "eth0", Netns: e.netns, StdinData: []byte(conf)}}
}

func (e *env) add(id string) (*types100.Result, error) {
	var res *types100.Result
	err := e.node.Do(func() error {
		r, err := e.plugin.Add(context.Background(), e.args(id, ""))
		if err != nil {
			return err
		}
		res, err = types100.NewResultFromResult(r)
		return err
	})
	return res, err
}

func (e *env) mustAdd(id string) *types100.Result {
	e.t.Helper()
	res, err := e.add(id)
	if err != nil {
		e.t.Fatalf("ADD: %v", err)
	}
	return res
}

func (e *env) call(verb func(context.Context, *cniskel.Args) error, id, more string) error {
	return e.node.Do(func() error { return verb(context.Background(), e.args(id, more)) })
}

func (e *env) mustDel(id string) {
	e.t.Helper()
	if err := e.call(e.plugin.Del, id, ""); err != nil {
		e.t.Fatalf("DEL: %v", err)
	}
}

// check is CHECK with the result of an ADD.
func (e *env) check(id string, res *types100.Result) error {
	e.t.Helper()
	c := *res
	c.CNIVersion = "1.1.0"
	raw, err := json.Marshal(&c)
	if err != nil {
		e.t.Fatal(err)
	}
	return e.call(e.plugin.Check, id, `,"prevResult":`+string(raw))
}

func (e *env) records() int {
	e.t.Helper()
	list, err := e.runs.List("")
	if err != nil {
		e.t.Fatal(err)
	}
	return len(list)
}

// home fails the test unless nic0 is on the host as it was, and nothing is left.
func (e *env) home() {
	e.t.Helper()
	got := e.ip(e.node.NS, "-d link show nic0")
	if !strings.Contains(got, "mtu 1400") || !strings.Contains(got, "02:00:00:00:00:07") || strings.Contains(got, "alias") {
		e.t.Errorf("nic0 is not as it was: %s", got)
	}
	if n := e.records(); n != 0 {
		e.t.Errorf("%d attachment records are left", n)
	}
	if len(e.ipam.held) != 0 {
		e.t.Errorf("addresses are left: %v", e.ipam.held)
	}
}

func mustWrite(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

func mustLink(t *testing.T, target, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}
