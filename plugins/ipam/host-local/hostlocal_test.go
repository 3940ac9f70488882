// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
)

// bench is a node with a data directory.
type bench struct {
	t    testing.TB
	data string
	node Node
	conf string // with %s for more keys of ipam; %D is the data directory
	args string // CNI_ARGS
}

const onePool = `{"cniVersion":"1.1.0","name":"net","ipam":{"type":"host-local","dataDir":"%D","ranges":[[{"subnet":"10.1.0.0/29"}]]}%s}`

func newBench(t testing.TB, conf string) *bench {
	t.Helper()
	return &bench{t: t, data: t.TempDir(), conf: conf, node: Node{MachineID: "m", BootID: "boot-1", Booted: time.Now().Add(-time.Hour)}}
}

func (b *bench) call(id, ifname string, more ...string) *cniskel.Args {
	conf := strings.ReplaceAll(b.conf, "%D", b.data)
	if strings.Contains(conf, "%s") {
		conf = fmt.Sprintf(conf, strings.Join(more, ""))
	}
	return &cniskel.Args{Log: log.NewNop(), CmdArgs: cniskel.CmdArgs{
		ContainerID: id, IfName: ifname, Netns: "/ns", Args: b.args, StdinData: []byte(conf),
	}}
}

func (b *bench) plugin() *cniskel.Plugin {
	return New(Deps{Node: func() Node { return b.node }})
}

func (b *bench) add(id, ifname string, more ...string) ([]string, error) {
	b.t.Helper()
	res, err := b.plugin().Add(context.Background(), b.call(id, ifname, more...))
	if err != nil {
		return nil, err
	}
	r, err := types100.NewResultFromResult(res)
	if err != nil {
		b.t.Fatal(err)
	}
	var out []string
	for _, ip := range r.IPs {
		out = append(out, ip.Address.String())
	}
	return out, nil
}

func (b *bench) mustAdd(id string, more ...string) []string {
	b.t.Helper()
	got, err := b.add(id, "eth0", more...)
	if err != nil {
		b.t.Fatalf("ADD %s: %v", id, err)
	}
	return got
}

func (b *bench) mustDel(id string, more ...string) {
	b.t.Helper()
	if err := b.plugin().Del(context.Background(), b.call(id, "eth0", more...)); err != nil {
		b.t.Fatalf("DEL %s: %v", id, err)
	}
}

// files returns the network's directory: name to content, without the lock.
func (b *bench) files() map[string]string {
	b.t.Helper()
	out := map[string]string{}
	entries, err := os.ReadDir(filepath.Join(b.data, "net"))
	if err != nil {
		b.t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() == lockName {
			continue
		}
		c, err := os.ReadFile(filepath.Join(b.data, "net", e.Name()))
		if err != nil {
			b.t.Fatal(err)
		}
		out[e.Name()] = string(c)
	}
	return out
}

// put writes a file as the upstream plugin does.
func (b *bench) put(name, content string) {
	b.t.Helper()
	dir := filepath.Join(b.data, "net")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func wantCode(t testing.TB, err error, code uint, words ...string) {
	t.Helper()
	e := cnierr.From(err)
	if code == 0 {
		if err != nil {
			t.Errorf("error %v, want none", err)
		}
		return
	}
	if e == nil || e.Code != code {
		t.Errorf("error %+v, want code %d", e, code)
		return
	}
	for _, w := range words {
		if !strings.Contains(e.Error(), w) {
			t.Errorf("error %q does not say %q", e.Error(), w)
		}
	}
}

func TestFormat(t *testing.T) {
	t.Parallel()
	b := newBench(t, onePool)
	if diff := cmp.Diff([]string{"10.1.0.2/29"}, b.mustAdd(" pod ")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want := map[string]string{"10.1.0.2": "pod\r\neth0", "last_reserved_ip.0": "10.1.0.2"}
	if diff := cmp.Diff(want, b.files()); diff != "" {
		t.Errorf("directory (-want +got):\n%s", diff)
	}
	for name, mode := range map[string]os.FileMode{"net": 0o755, "net/10.1.0.2": 0o600} {
		if fi, err := os.Stat(filepath.Join(b.data, name)); err != nil || fi.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, fi.Mode(), err)
		}
	}
	if fi, err := os.Stat(filepath.Join(b.data, "net", lockName)); err != nil || fi.Size() != 0 {
		t.Errorf("lock: %v", err)
	}
	b.mustDel("pod")
	b.mustDel("pod")
	if diff := cmp.Diff(map[string]string{"last_reserved_ip.0": "10.1.0.2"}, b.files()); diff != "" {
		t.Errorf("after DEL (-want +got):\n%s", diff)
	}
}

// wantFullWarning wants STATUS to succeed, and to warn of a full pool ("": of none).
func (b *bench) wantFullWarning(set string) {
	b.t.Helper()
	a := b.call("", "")
	core, logs := observer.New(zapcore.InfoLevel)
	a.Log = log.NewCore(core)
	if err := b.plugin().Status(context.Background(), a); err != nil {
		b.t.Errorf("STATUS: %v", err)
	}
	entries := logs.AllUntimed()
	if set == "" {
		if len(entries) != 0 {
			b.t.Errorf("STATUS logs %v", entries)
		}
		return
	}
	if len(entries) != 1 || entries[0].Level != zapcore.WarnLevel || !strings.Contains(entries[0].Message, "no free address") || entries[0].ContextMap()["ranges"] != set {
		b.t.Errorf("STATUS logs %v, want one warning about %s", entries, set)
	}
}

func TestRoundRobinAndExhaustion(t *testing.T) {
	t.Parallel()
	b := newBench(t, onePool)
	var got []string
	for i := range 5 {
		got = append(got, b.mustAdd(fmt.Sprint("c", i))...)
	}
	if diff := cmp.Diff([]string{"10.1.0.2/29", "10.1.0.3/29", "10.1.0.4/29", "10.1.0.5/29", "10.1.0.6/29"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	_, err := b.add("c9", "eth0")
	wantCode(t, err, 104, "10.1.0.1-10.1.0.6")
	b.wantFullWarning("10.1.0.1-10.1.0.6")
	b.mustDel("c3")
	b.wantFullWarning("")
	if got := b.mustAdd("c9"); got[0] != "10.1.0.5/29" {
		t.Errorf("got %s, want the freed one", got)
	}
}

func TestAddIsRefusedTwice(t *testing.T) {
	t.Parallel()
	b := newBench(t, onePool)
	b.mustAdd("pod")
	_, err := b.add("pod", "eth0")
	wantCode(t, err, 103, "10.1.0.2")
	if got, err := b.add("pod", "eth1"); err != nil || got[0] != "10.1.0.3/29" {
		t.Errorf("another interface got %v, %v", got, err)
	}
	if len(b.files()) != 3 {
		t.Errorf("files %v", b.files())
	}
}

const dual = `{"cniVersion":"1.0.0","name":"net","ipam":{"type":"host-local","dataDir":"%D",
 "subnet":"10.1.0.0/24","rangeStart":"10.1.0.10","rangeEnd":"10.1.0.12","gateway":"10.1.0.254",
 "ranges":[[{"subnet":"10.2.0.0/30"},{"subnet":"10.2.1.0/30"}],[{"subnet":"fd00::/64","rangeStart":"fd00::10"}]],
 "routes":[{"dst":"0.0.0.0/0"},{"dst":"fd01::/16","gw":"fd00::1","mtu":1400,"table":0}]},
 "args":{"cni":{"ips":[%s]}}}`

func TestSeveralSets(t *testing.T) {
	t.Parallel()
	b := newBench(t, dual)
	res, err := b.plugin().Add(context.Background(), b.call("pod", "eth0"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(res)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"cniVersion":"1.0.0","ips":[` +
		`{"address":"10.1.0.10/24","gateway":"10.1.0.254"},{"address":"10.2.0.2/30","gateway":"10.2.0.1"},{"address":"fd00::10/64","gateway":"fd00::1"}],` +
		`"routes":[{"dst":"0.0.0.0/0"},{"dst":"fd01::/16","gw":"fd00::1","mtu":1400,"table":0}]}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := b.mustAdd("pod2"); got[1] != "10.2.1.2/30" {
		t.Errorf("the second range of a set is not used: %v", got)
	}
	// The v4 pool of the second set is exhausted: everything this call took goes back.
	before := b.files()
	_, err = b.add("pod3", "eth0")
	wantCode(t, err, 104)
	after := b.files()
	delete(before, "last_reserved_ip.0")
	delete(after, "last_reserved_ip.0")
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("a failed ADD left something (-want +got):\n%s", diff)
	}
}

func TestRuntimeConfig(t *testing.T) {
	t.Parallel()
	b := newBench(t, onePool)
	got := b.mustAdd("pod", `,"runtimeConfig":{"ipRanges":[[{"subnet":"10.9.0.0/24"}]],"ips":["10.9.0.77/24"]}`)
	if diff := cmp.Diff([]string{"10.9.0.77/24", "10.1.0.2/29"}, got); diff != "" {
		t.Errorf("runtime ranges come first and add (-want +got):\n%s", diff)
	}
	b.mustDel("pod") // without the runtimeConfig
	if n := len(b.files()); n != 2 {
		t.Errorf("files %v", b.files())
	}
}

func TestDelWithBadConfig(t *testing.T) {
	t.Parallel()
	b := newBench(t, onePool)
	b.mustAdd("pod")
	b.mustAdd("pod2")
	b.conf = `{"cniVersion":"1.1.0","name":"net","ipam":{"dataDir":"%D","ranges":[[{"subnet":"broken"}]]}}`
	b.mustDel("pod")
	b.conf = `{"cniVersion":"0.2.0","name":"net","ipam":{"dataDir":"%D","ranges":[[{"subnet":"10.0.0.0/24"}],[{"subnet":"10.0.1.0/24"}]]}}`
	wantCode(t, b.plugin().Del(context.Background(), b.call("pod2", "eth0")), 7)
	if diff := cmp.Diff(map[string]string{"last_reserved_ip.0": "10.1.0.3"}, b.files()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestResolvConf(t *testing.T) {
	t.Parallel()
	b := newBench(t, `{"cniVersion":"1.1.0","name":"net","ipam":{"dataDir":"%D","subnet":"10.0.0.0/24","resolvConf":"%D/resolv"}}`)
	text := "# c\n; c\nnameserver 1.1.1.1\nnameserver fd00::1 x\ndomain a.b\nsearch a b\nsearch c\noptions ndots:5\nnameserver\nsortlist x\n"
	if err := os.WriteFile(filepath.Join(b.data, "resolv"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	res, err := b.plugin().Add(context.Background(), b.call("pod", "eth0"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(res.(*types100.Result).DNS)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(`{"nameservers":["1.1.1.1","fd00::1"],"domain":"a.b","search":["a","b","c"],"options":["ndots:5"]}`, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	b := newBench(t, onePool)
	check := func(id, prev string) error {
		return b.plugin().Check(context.Background(), b.call(id, "eth0", prev))
	}
	prev := func(ips ...string) string {
		return `,"prevResult":{"cniVersion":"1.1.0","ips":[{"address":"` + strings.Join(ips, `"},{"address":"`) + `"}]}`
	}
	wantCode(t, check("pod", ""), 102)
	b.mustAdd("pod")
	b.mustAdd("other")
	wantCode(t, check("pod", ""), 0)
	wantCode(t, check("pod", prev("10.1.0.2/29")), 0)
	wantCode(t, check("pod", prev("10.1.0.2/29", "192.168.0.1/24")), 0) // another plugin's
	wantCode(t, check("pod", prev("10.1.0.3/29")), 102, "10.1.0.3")
	wantCode(t, check("third", prev("10.1.0.2/29")), 102)
	b.put("10.1.0.4", " old \n")
	wantCode(t, check("old", prev("10.1.0.4/29")), 0)
}

func TestGC(t *testing.T) {
	t.Parallel()
	b := newBench(t, onePool)
	b.mustAdd("keep")
	b.mustAdd("drop")
	b.put("10.1.0.4", "keep") // an old version's, without interface
	b.put("10.1.0.5", "gone")
	b.put("10.1.0.6", "keep\r\neth9")
	b.put("notes.txt", "gone")
	gc := func(list string) error {
		return b.plugin().GC(context.Background(), b.call("", "", list))
	}
	wantCode(t, gc(""), 7)
	wantCode(t, gc(`,"cni.dev/valid-attachments":[{"containerID":"keep","ifname":"eth0"}]`), 0)
	want := map[string]string{"10.1.0.2": "keep\r\neth0", "10.1.0.4": "keep", "notes.txt": "gone", "last_reserved_ip.0": "10.1.0.3"}
	if diff := cmp.Diff(want, b.files()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	wantCode(t, gc(`,"cni.dev/valid-attachments":[]`), 0)
	if diff := cmp.Diff(map[string]string{"notes.txt": "gone", "last_reserved_ip.0": "10.1.0.3"}, b.files()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	b.data = t.TempDir()
	wantCode(t, gc(`,"cni.dev/valid-attachments":[]`), 0)
}

func TestStatus(t *testing.T) {
	t.Parallel()
	b := newBench(t, onePool)
	status := func() error { return b.plugin().Status(context.Background(), b.call("", "")) }
	wantCode(t, status(), 0)
	if entries, err := os.ReadDir(b.data); err != nil || len(entries) != 0 {
		t.Errorf("STATUS made %v", entries)
	}
	b.put("10.1.0.2", "")
	wantCode(t, status(), 0)
	if err := os.WriteFile(filepath.Join(b.data, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.data = filepath.Join(b.data, "file")
	wantCode(t, status(), 50, b.data)
}

// What upstream writes must be seen at once, whatever the index holds.
func TestUpstreamTakesTurns(t *testing.T) {
	t.Parallel()
	b := newBench(t, onePool)
	b.mustAdd("ours")
	b.put("10.1.0.3", "ref\r\neth0")
	if got := b.mustAdd("ours2"); got[0] != "10.1.0.4/29" {
		t.Errorf("got %v", got)
	}
	b.put("10.1.0.5", "ref2\r\neth0")
	_, err := b.add("ref2", "eth0")
	wantCode(t, err, 103, "10.1.0.5")
	b.mustDel("ref")
	b.mustDel("ref2")
	// Upstream releases ours and reserves the same address for another.
	if err := os.Remove(filepath.Join(b.data, "net", "10.1.0.2")); err != nil {
		t.Fatal(err)
	}
	b.put("10.1.0.2", "ref3\r\neth0")
	b.mustDel("ours")
	want := map[string]string{"10.1.0.2": "ref3\r\neth0", "10.1.0.4": "ours2\r\neth0", "last_reserved_ip.0": "10.1.0.4"}
	if diff := cmp.Diff(want, b.files()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A file written in place leaves the directory as it was; its content counts. Old versions of upstream note the
// container alone.
func TestFileWrittenInPlace(t *testing.T) {
	t.Parallel()
	b := newBench(t, onePool)
	b.mustAdd("pod")
	b.mustAdd("other")
	b.put("10.1.0.2", "pod")
	b.mustDel("pod")
	want := map[string]string{"10.1.0.3": "other\r\neth0", "last_reserved_ip.0": "10.1.0.3"}
	if diff := cmp.Diff(want, b.files()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestBrokenFilesAreFree(t *testing.T) {
	t.Parallel()
	b := newBench(t, onePool)
	for i, content := range []string{"", " \n", "\x00\x00\x00"} {
		b.put(fmt.Sprintf("10.1.0.%d", i+2), content)
	}
	for i := range 5 {
		b.mustAdd(fmt.Sprint("c", i))
	}
	// Truncated in place: the directory does not change, so only the try shows it.
	if err := os.Truncate(filepath.Join(b.data, "net", "10.1.0.4"), 0); err != nil {
		t.Fatal(err)
	}
	if got := b.mustAdd("c9"); got[0] != "10.1.0.4/29" {
		t.Errorf("got %v", got)
	}
	b.mustDel("c2")
	if b.files()["10.1.0.4"] != "c9\r\neth0" {
		t.Error("the former owner released the new owner's address")
	}
}

func TestUnusableSideDirectory(t *testing.T) {
	t.Parallel()
	b := newBench(t, onePool)
	if err := os.WriteFile(filepath.Join(b.data, sideDir), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.mustAdd("a")
	b.mustAdd("b")
	_, err := b.add("a", "eth0")
	wantCode(t, err, 103)
	b.mustDel("a")
	if diff := cmp.Diff([]string{"10.1.0.3", "last_reserved_ip.0"}, sorted(b.files())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func sorted(m map[string]string) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// Runtimes give the ranges to ADD, CHECK and DEL, but not to STATUS.
func TestStatusWithoutRanges(t *testing.T) {
	t.Parallel()
	b := newBench(t, `{"cniVersion":"1.1.0","name":"net","type":"bridge","capabilities":{"ipRanges":true},"ipam":{"type":"host-local","dataDir":"%D"}%s}`)
	const rc = `,"runtimeConfig":{"ipRanges":[[{"subnet":"10.1.0.0/29"}]]}`
	b.mustAdd("c1", rc)
	if err := b.plugin().Status(t.Context(), b.call("", "")); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	b.mustAdd("c2", rc)
}

// A runtime that always writes IP=, with nothing after it, wants no address in particular.
func TestEmptyIPArg(t *testing.T) {
	t.Parallel()
	b := newBench(t, onePool)
	b.args = "IgnoreUnknown=1;IP=;K8S_POD_NAME=x"
	if _, err := b.add("c1", "eth0"); err != nil {
		t.Errorf("ADD: %v", err)
	}
}
