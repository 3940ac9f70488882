// SPDX-License-Identifier: Apache-2.0

package garbage

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// node has attachments that libcni made by a plugin, which notes what it is asked for. TestPrivilegedContainerdGarbage has real ones.
type node struct {
	t     *testing.T
	dir   string
	list  *libcni.NetworkConfigList
	cni   *libcni.CNIConfig
	known map[string]bool // sandboxes
	pods  map[string]bool
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, dir: t.TempDir(), known: map[string]bool{}, pods: map[string]bool{}}
	script := fmt.Sprintf(`#!/bin/sh
[ "$CNI_COMMAND" != DEL ] || echo "$CNI_CONTAINERID $CNI_NETNS" >> %[1]s/dels
[ ! -e %[1]s/broken ] || { echo '{"code": 11, "msg": "broken"}'; exit 1; }
echo '{"cniVersion": "1.0.0"}'
`, n.dir)
	if err := testbin.WriteScript(filepath.Join(n.dir, "ptp"), script); err != nil {
		t.Fatal(err)
	}
	var err error
	if n.list, err = libcni.NetworkConfFromBytes([]byte(`{"cniVersion": "1.0.0", "name": "sluice", "plugins": [{"type": "ptp"}]}`)); err != nil {
		t.Fatal(err)
	}
	n.cni = libcni.NewCNIConfigWithCacheDir([]string{n.dir}, n.dir, nil)
	return n
}

// add makes an attachment of that age.
func (n *node) add(id string, age time.Duration, args ...[2]string) {
	n.t.Helper()
	rt := &libcni.RuntimeConf{ContainerID: id, NetNS: filepath.Join(n.dir, "netns-"+id), IfName: "eth0", Args: args}
	if _, err := n.cni.AddNetworkList(n.t.Context(), n.list, rt); err != nil {
		n.t.Fatal(err)
	}
	made := time.Now().Add(-age)
	if err := os.Chtimes(filepath.Join(n.dir, "results", "sluice-"+id+"-eth0"), made, made); err != nil {
		n.t.Fatal(err)
	}
}

func pod(name string) [][2]string {
	return [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "ns"}, {"K8S_POD_NAME", name}, {"K8S_POD_UID", "uid-" + name}}
}

func (n *node) collector() *Collector {
	ask := func(m map[string]bool) func(context.Context) (map[string]bool, error) {
		return func(context.Context) (map[string]bool, error) { return m, nil }
	}
	return &Collector{Network: "sluice", CacheDir: n.dir, BinDirs: []string{n.dir}, Pods: ask(n.pods), Sandboxes: ask(n.known), Grace: Grace, Log: log.NewNop()}
}

// dels are the DELs so far, sorted.
func (n *node) dels() []string {
	n.t.Helper()
	b, err := os.ReadFile(filepath.Join(n.dir, "dels"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		n.t.Fatal(err)
	}
	lines := slices.DeleteFunc(strings.Split(string(b), "\n"), func(s string) bool { return s == "" })
	slices.Sort(lines)
	return lines
}

// In doubt an attachment stays.
func TestCollect(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	const old = Grace + time.Minute
	n.add("garbage", old, pod("gone")...)
	n.add("garbage-netns", old, pod("gone-too")...)
	n.add("runtime-knows", old, pod("a")...)
	n.add("server-knows-uid", old, pod("b")...)
	n.add("server-knows-name", old, pod("static")...)
	n.add("young", Grace-time.Minute, pod("c")...)
	n.add("no-pod", old)
	netns := filepath.Join(n.dir, "netns-garbage-netns")
	if err := os.WriteFile(netns, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.known["runtime-knows"], n.pods["uid-b"], n.pods["ns/static"] = true, true, true

	for name, change := range map[string]func(*Collector){
		"the runtime is away": func(c *Collector) {
			c.Sandboxes = func(context.Context) (map[string]bool, error) { return nil, errors.New("away") }
		},
		"the API server is away": func(c *Collector) {
			c.Pods = func(context.Context) (map[string]bool, error) { return nil, errors.New("away") }
		},
	} {
		c := n.collector()
		change(c)
		if removed, err := c.Collect(t.Context()); removed != 0 || err == nil || !strings.Contains(err.Error(), "away") || len(n.dels()) != 0 {
			t.Errorf("%s: %d removed, %v, %q", name, removed, err, n.dels())
		}
	}
	removed, err := n.collector().Collect(t.Context())
	if want := []string{"garbage ", "garbage-netns " + netns}; removed != 2 || err != nil || !slices.Equal(n.dels(), want) {
		t.Errorf("%d removed, %v, %q, want %q", removed, err, n.dels(), want)
	}
	if removed, err := n.collector().Collect(t.Context()); removed != 0 || err != nil {
		t.Errorf("again: %d, %v", removed, err)
	}
	other := n.collector()
	other.Network = "another"
	clear(n.pods)
	if removed, err := other.Collect(t.Context()); removed != 0 || err != nil {
		t.Errorf("another network: %d, %v", removed, err)
	}
}

// A runtime that knows none of the attachments may be the wrong one. Then those with a network namespace stay.
func TestCollectWrongRuntime(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add("alive", time.Hour, pod("static")...)
	n.add("garbage", time.Hour, pod("gone")...)
	if err := os.WriteFile(filepath.Join(n.dir, "netns-alive"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.known["of-another-network"] = true
	removed, err := n.collector().Collect(t.Context())
	if removed != 1 || err == nil || !strings.Contains(err.Error(), "is it the right one") || !slices.Equal(n.dels(), []string{"garbage "}) {
		t.Errorf("%d removed, %v, %q", removed, err, n.dels())
	}
}

// An attachment that cannot be removed is tried again, and does not keep others.
func TestCollectFails(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add("a", time.Hour, pod("a")...)
	n.add("b", time.Hour, pod("b")...)
	broken := filepath.Join(n.dir, "broken")
	if err := os.WriteFile(broken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if removed, err := n.collector().Collect(t.Context()); removed != 0 || err == nil || strings.Count(err.Error(), "broken") < 2 {
		t.Errorf("%d removed, %v", removed, err)
	}
	if err := os.Remove(broken); err != nil {
		t.Fatal(err)
	}
	if removed, err := n.collector().Collect(t.Context()); removed != 2 || err != nil {
		t.Errorf("%d removed, %v", removed, err)
	}
}

// runtime answers as a CRI runtime, over a socket.
type runtime struct {
	cri.UnimplementedRuntimeServiceServer
	ids []string
}

func (r *runtime) ListPodSandbox(context.Context, *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	answer := &cri.ListPodSandboxResponse{}
	for _, id := range r.ids {
		answer.Items = append(answer.Items, &cri.PodSandbox{Id: id, State: cri.PodSandboxState_SANDBOX_NOTREADY})
	}
	return answer, nil
}

func serve(t *testing.T, path string, ids ...string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(s, &runtime{ids: ids})
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
}

// Each runtime in a known place is asked. If one does not answer, the answer is an error.
func TestCRI(t *testing.T) {
	t.Parallel()
	root, err := os.MkdirTemp("", "cri-") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	on := func(p string) string { return filepath.Join(root, p) }
	if _, err := CRI("", on)(t.Context()); err == nil || !strings.Contains(err.Error(), "runtimeEndpoint") {
		t.Errorf("no runtime: %v", err)
	}
	serve(t, on("/run/containerd/containerd.sock"), "a", "b")
	serve(t, on("/run/crio/crio.sock"), "c")
	ids, err := CRI("", on)(t.Context())
	if err != nil || !ids["a"] || !ids["b"] || !ids["c"] || len(ids) != 3 {
		t.Errorf("%v, %v", ids, err)
	}
	if ids, err := CRI("unix:///run/crio/crio.sock", on)(t.Context()); err != nil || len(ids) != 1 {
		t.Errorf("one: %v, %v", ids, err)
	}
	dead, err := net.Listen("unix", on("/run/cri-dockerd.sock"))
	if err != nil {
		t.Fatal(err)
	}
	dead.(*net.UnixListener).SetUnlinkOnClose(false)
	dead.Close()
	if _, err := CRI("", on)(t.Context()); err == nil || !strings.Contains(err.Error(), "/run/cri-dockerd.sock") {
		t.Errorf("one that is dead: %v", err)
	}
}
