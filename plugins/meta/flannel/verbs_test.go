// SPDX-License-Identifier: Apache-2.0

package flannel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
)

// fakeDelegate notes the calls it gets and fails with err, all of them or those
// of one verb.
type fakeDelegate struct {
	calls   []string
	stdin   []byte
	err     error
	failing string
}

func (f *fakeDelegate) verb(verb string, a *cniskel.Args, kind string) error {
	f.calls = append(f.calls, verb+" "+kind)
	f.stdin = a.StdinData
	if f.failing != "" && f.failing != verb {
		return nil
	}
	return f.err
}

func (f *fakeDelegate) Add(_ context.Context, a *cniskel.Args, kind string) (*types100.Result, error) {
	if err := f.verb("ADD", a, kind); err != nil {
		return nil, err
	}
	return &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		IPs:        []*types100.IPConfig{{Address: net.IPNet{IP: net.IPv4(10, 244, 1, 2), Mask: net.CIDRMask(24, 32)}}},
	}, nil
}

func (f *fakeDelegate) Del(_ context.Context, a *cniskel.Args, kind string) error {
	return f.verb("DEL", a, kind)
}

func (f *fakeDelegate) Check(_ context.Context, a *cniskel.Args, kind string) error {
	return f.verb("CHECK", a, kind)
}

func (f *fakeDelegate) GC(_ context.Context, a *cniskel.Args, kind string) error {
	return f.verb("GC", a, kind)
}

func (f *fakeDelegate) Status(_ context.Context, a *cniskel.Args, kind string) error {
	return f.verb("STATUS", a, kind)
}

// node is a plugin with a fake delegate and directories of its own.
type node struct {
	*testing.T
	fake    *fakeDelegate
	p       *cniskel.Plugin
	env     string
	dataDir string
	records *attachments.Dir
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{T: t, fake: &fakeDelegate{}, env: writeEnv(t, dualEnv), dataDir: filepath.Join(t.TempDir(), "flannel"), records: attachments.Open(t.TempDir())}
	n.p = New(Deps{Delegate: n.fake, Records: n.records})
	return n
}

func (n *node) args(id, ifname string, more map[string]any) *cniskel.Args {
	c := map[string]any{"subnetFile": n.env, "dataDir": n.dataDir}
	for k, v := range more {
		c[k] = v
	}
	return &cniskel.Args{
		CmdArgs: cniskel.CmdArgs{ContainerID: id, IfName: ifname, Netns: "/ns", StdinData: conf(n.T, c)},
		Log:     log.NewNop(),
	}
}

func (n *node) wantFiles(names ...string) {
	n.Helper()
	entries, err := os.ReadDir(n.dataDir)
	if err != nil && len(names) > 0 {
		n.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if d := cmp.Diff(names, got); d != "" {
		n.Errorf("saved configurations (-want +got):\n%s", d)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// What ADD saved is what DEL uses, with flanneld's file gone and another
// configuration given.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	n, ctx := newNode(t), context.Background()
	res, err := n.p.Add(ctx, n.args("c1", "eth0", nil))
	must(t, err)
	if res.Version() != "1.0.0" {
		t.Errorf("result of version %s", res.Version())
	}
	saved := n.fake.stdin
	onDisk, err := os.ReadFile(filepath.Join(n.dataDir, "c1"))
	must(t, err)
	if d := cmp.Diff(string(saved), string(onDisk)); d != "" {
		t.Errorf("saved differs from what the delegate got:\n%s", d)
	}
	fi, err := os.Stat(n.dataDir)
	must(t, err)
	if fi.Mode().Perm() != 0o700 {
		t.Errorf("dataDir has mode %v", fi.Mode())
	}
	prev := map[string]any{"cniVersion": "1.0.0", "ips": []any{map[string]any{"address": "10.244.1.2/24"}}}
	must(t, n.p.Check(ctx, n.args("c1", "eth0", map[string]any{"prevResult": prev})))
	if got, ok := asAny(t, n.fake.stdin).(map[string]any); !ok || cmp.Diff(prev, got["prevResult"]) != "" || got["type"] != "bridge" {
		t.Errorf("CHECK gave the delegate %s", n.fake.stdin)
	}
	must(t, os.Remove(n.env))
	must(t, n.p.Del(ctx, n.args("c1", "eth0", map[string]any{"delegate": map[string]any{"type": "ptp"}})))
	if d := cmp.Diff(string(saved), string(n.fake.stdin)); d != "" {
		t.Errorf("DEL gave the delegate something else:\n%s", d)
	}
	must(t, n.p.Del(ctx, n.args("c1", "eth0", nil)))
	if d := cmp.Diff([]string{"ADD bridge", "CHECK bridge", "DEL bridge"}, n.fake.calls); d != "" {
		t.Errorf("calls (-want +got):\n%s", d)
	}
	n.wantFiles()
	if left, err := n.records.List(""); err != nil || len(left) != 0 {
		t.Errorf("records left: %v %v", left, err)
	}
}

// A failed delegate leaves what the DEL that follows needs; a failed DEL can be
// repeated.
func TestFailures(t *testing.T) {
	t.Parallel()
	n, ctx := newNode(t), context.Background()
	n.fake.err = cnierr.New(cnierr.CodeTryAgain, "later", "")
	if _, err := n.p.Add(ctx, n.args("c1", "eth0", nil)); cnierr.From(err).Code != cnierr.CodeTryAgain {
		t.Errorf("ADD: %v, want the delegate's error", err)
	}
	n.wantFiles("c1")
	if err := n.p.Del(ctx, n.args("c1", "eth0", nil)); !errors.Is(err, n.fake.err) {
		t.Errorf("DEL: %v, want the delegate's error", err)
	}
	n.wantFiles("c1")
	n.fake.err = nil
	must(t, n.p.Del(ctx, n.args("c1", "eth0", nil)))
	n.wantFiles()
}

// The specification has the caller run DEL on a delegate whose ADD failed: a
// runtime that does not call DEL itself would keep half a pod.
func TestFailedAddIsUndone(t *testing.T) {
	t.Parallel()
	n, ctx := newNode(t), context.Background()
	n.fake.failing = "ADD"
	failedAdd := func() {
		n.fake.err = cnierr.New(cnierr.CodeTryAgain, "later", "")
		if _, err := n.p.Add(ctx, n.args("c1", "eth0", nil)); cnierr.From(err).Code != cnierr.CodeTryAgain {
			t.Errorf("ADD: %v, want the delegate's error", err)
		}
		n.fake.err = nil
	}
	failedAdd()
	n.wantFiles()
	if left, err := n.records.List(""); err != nil || len(left) != 0 {
		t.Errorf("records left: %v %v", left, err)
	}
	if _, err := n.p.Add(ctx, n.args("c1", "eth0", map[string]any{"dataDir": "/proc/none"})); cnierr.From(err).Code != cnierr.CodeIO {
		t.Errorf("ADD without a place: %v, want code 5", err)
	}
	if left, err := n.records.List(""); err != nil || len(left) != 0 {
		t.Errorf("records left when nothing could be saved: %v %v", left, err)
	}
	_, err := n.p.Add(ctx, n.args("c1", "eth0", nil))
	must(t, err)
	failedAdd() // what the one before made may be in use
	n.wantFiles("c1")
	if d := cmp.Diff([]string{"ADD bridge", "DEL bridge", "ADD bridge", "ADD bridge"}, n.fake.calls); d != "" {
		t.Errorf("calls (-want +got):\n%s", d)
	}
}

// What cannot be read or written is named by its key.
func TestFilesRefused(t *testing.T) {
	t.Parallel()
	file, loop := filepath.Join(t.TempDir(), "file"), filepath.Join(t.TempDir(), "loop")
	must(t, os.WriteFile(file, nil, 0o600))
	must(t, os.Symlink(loop, loop))
	for key, path := range map[string]string{"dataDir": filepath.Join(file, "dir"), "subnetFile": loop} {
		n := newNode(t)
		_, err := n.p.Add(context.Background(), n.args("c1", "eth0", map[string]any{key: path}))
		if e := cnierr.From(err); err == nil || e.Code != cnierr.CodeIO || !strings.Contains(e.Msg, fmt.Sprintf("%s %q", key, path)) {
			t.Errorf("%s: %v, want code 5 and the key", key, err)
		}
	}
}

// Two attachments of one container; upstream keeps the last one only.
func TestTwoInterfaces(t *testing.T) {
	t.Parallel()
	n, ctx := newNode(t), context.Background()
	for _, ifname := range []string{"eth0", "net1", "eth0"} {
		_, err := n.p.Add(ctx, n.args("c1", ifname, nil))
		must(t, err)
	}
	n.wantFiles("c1", "c1-net1")
	must(t, n.p.Del(ctx, n.args("c1", "eth0", nil)))
	n.wantFiles("c1-net1")
	must(t, n.p.Del(ctx, n.args("c1", "net1", nil)))
	n.wantFiles()
}

// After a reboot the records are gone, and the files are not: each DEL finds its own, in any order.
func TestTwoInterfacesAfterReboot(t *testing.T) {
	t.Parallel()
	kinds := map[string]string{"eth0": "bridge", "net1": "ptp"}
	for _, order := range [][]string{{"eth0", "net1"}, {"net1", "eth0"}} {
		n, ctx := newNode(t), context.Background()
		call := func(ifname string) *cniskel.Args {
			return n.args("c1", ifname, map[string]any{"name": "of-" + ifname, "delegate": map[string]any{"type": kinds[ifname]}})
		}
		for _, ifname := range []string{"eth0", "net1"} {
			_, err := n.p.Add(ctx, call(ifname))
			must(t, err)
		}
		must(t, os.RemoveAll(n.records.Path()))
		n.fake.calls = nil
		var want []string
		for _, ifname := range order {
			must(t, n.p.Del(ctx, call(ifname)))
			want = append(want, "DEL "+kinds[ifname])
		}
		if d := cmp.Diff(want, n.fake.calls); d != "" {
			t.Errorf("DEL of %v (-want +got):\n%s", order, d)
		}
		n.wantFiles()
	}
}

// A pod that upstream attached: its file, no record.
func TestUpstreamState(t *testing.T) {
	t.Parallel()
	n, ctx := newNode(t), context.Background()
	must(t, os.MkdirAll(n.dataDir, 0o700))
	for id, content := range map[string]string{"old": `{"name":"cbr0","type":"ptp"}`, "gone": `{"name":"cbr0","type":"bridge"}`, "other": `{"name":"elsewhere","type":"bridge"}`, "torn": `{"na`} {
		must(t, os.WriteFile(filepath.Join(n.dataDir, id), []byte(content), 0o600))
	}
	must(t, n.p.Del(ctx, n.args("torn", "eth0", nil)))
	must(t, n.p.Del(ctx, n.args("never", "eth0", nil)))
	if len(n.fake.calls) != 0 {
		t.Errorf("called %v for what says nothing", n.fake.calls)
	}
	_, err := n.p.Add(ctx, n.args("mine", "eth0", nil))
	must(t, err)
	_, err = n.p.Add(ctx, n.args("stale", "eth0", nil))
	must(t, err)
	must(t, n.p.GC(ctx, n.args("", "", map[string]any{"cni.dev/valid-attachments": []any{
		map[string]any{"containerID": "old", "ifname": "eth0"}, map[string]any{"containerID": "mine", "ifname": "eth0"},
	}})))
	n.wantFiles("mine", "old", "other")
	got, _ := asAny(t, n.fake.stdin).(map[string]any)
	if list, _ := got["cni.dev/valid-attachments"].([]any); len(list) != 2 || got["name"] != "cbr0" {
		t.Errorf("GC gave the delegate %s", n.fake.stdin)
	}
	must(t, n.p.Del(ctx, n.args("old", "eth0", nil)))
	if last := n.fake.calls[len(n.fake.calls)-1]; last != "DEL ptp" {
		t.Errorf("last call %s", last)
	}
	n.wantFiles("mine", "other")
}

// What a killed ADD was just writing goes with the next GC, but not what another
// network's ADD may be writing.
func TestGCOfPartialFiles(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	must(t, os.MkdirAll(n.dataDir, 0o700))
	for name, age := range map[string]time.Duration{".tmp-1": time.Hour, ".tmp-2": 0} {
		file := filepath.Join(n.dataDir, name)
		must(t, os.WriteFile(file, nil, 0o600))
		must(t, os.Chtimes(file, time.Time{}, time.Now().Add(-age)))
	}
	must(t, n.p.GC(context.Background(), n.args("", "", map[string]any{"cni.dev/valid-attachments": []any{}})))
	n.wantFiles(".tmp-2")
}

func TestStatusAndGCWithoutFlanneld(t *testing.T) {
	t.Parallel()
	n, ctx := newNode(t), context.Background()
	must(t, n.p.Status(ctx, n.args("", "", nil)))
	must(t, os.Remove(n.env))
	if e := cnierr.From(n.p.Status(ctx, n.args("", "", nil))); e == nil || e.Code != cnierr.CodeUnavailable {
		t.Errorf("STATUS without flanneld: %+v, want 50", e)
	}
	must(t, n.p.GC(ctx, n.args("", "", map[string]any{"cni.dev/valid-attachments": []any{}})))
	var got struct {
		IPAM json.RawMessage `json:"ipam"`
	}
	must(t, json.Unmarshal(n.fake.stdin, &got))
	if string(got.IPAM) != `{"type":"host-local"}` {
		t.Errorf("GC gave the delegate's ipam %s", got.IPAM)
	}
}
