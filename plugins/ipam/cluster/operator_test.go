// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/test/kubetest"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/claims"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/kubestore"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/operator"
)

// tool is the operator's tool on a host.
func (h *host) tool(s *kubetest.Server) *operator.Tool {
	h.t.Helper()
	st, err := kubestore.New(s.Config(), namespace)
	if err != nil {
		h.t.Fatal(err)
	}
	return &operator.Tool{
		Store: st, Cluster: st, Dir: h.dir, Node: h.node(),
		Claimer: &claims.Claimer{Store: st, Node: h.node(), Dir: h.dir, Log: log.NewNop()},
	}
}

// pod makes a pod that reports an address by Multus' annotation.
func pod(s *kubetest.Server, name, node, addr string) {
	status := fmt.Sprintf(`[{\"name\":\"ns/net\",\"interface\":\"net1\",\"ips\":[\"%s\"],\"default\":false}]`, addr)
	s.KubectlWith(fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":"default","annotations":{"k8s.v1.cni.cncf.io/network-status":"%s"}},
		"spec":{"nodeName":%q,"containers":[{"name":"c","image":"none"}]}}`, name, status, node), "apply", "-f", "-")
}

// entry writes an allocation as whereabouts does.
func entry(s *kubetest.Server, name string, off int, id, podRef string) {
	s.Kubectl("-n", namespace, "patch", "ippool", name, "--type=merge", "-p",
		fmt.Sprintf(`{"spec":{"allocations":{"%d":{"id":%q,"podref":%q,"ifname":"net1"}}}}`, off, id, podRef))
}

func testOperator(t *testing.T, s *kubetest.Server) {
	h, gone := kubeHost(t, s, "op-1"), kubeHost(t, s, "op-2")
	const name, extra = "10.33.0.0-24", `"range":"10.33.0.0/24","block_size":4`
	a := h.mustAdd("c1", extra)
	gone.mustAdd("c2", extra)
	h.background.Wait()
	gone.background.Wait()
	taken := allocations(t, s, name)
	var free []int
	for off := 1; off < 255; off++ {
		if _, ok := taken[fmt.Sprint(off)]; !ok {
			free = append(free, off)
		}
	}
	entry(s, name, free[0], "w0", "default/leaked")
	entry(s, name, free[1], "w1", "default/lives")
	pod(s, "lives", "op-1", fmt.Sprintf("10.33.0.%d", free[1]))
	pod(s, "twin", "op-2", fmt.Sprintf("10.33.0.%d", free[1]))
	pod(s, "lost", "op-2", fmt.Sprintf("10.33.0.%d", free[2]))
	s.Kubectl("delete", "node", "op-2")
	tool, ctx := h.tool(s), t.Context()

	find := func(fix bool) (out []string) {
		t.Helper()
		found, err := tool.Check(ctx, fix)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			if f.Pool == name || f.Pool == "" && strings.HasPrefix(f.Address, "10.33.") {
				out = append(out, fmt.Sprintf("%s %s %s %v", f.Kind, f.Address, f.Text, f.Fixed))
			}
		}
		return out
	}
	has := func(list []string, want string) bool {
		for _, l := range list {
			if strings.Contains(l, want) {
				return true
			}
		}
		return false
	}
	twice := fmt.Sprintf("10.33.0.%d pods default/", free[1])
	for _, fix := range []bool{false, true} {
		list := find(fix)
		for _, want := range []string{
			fmt.Sprintf("leak 10.33.0.%d pod default/leaked is not there %v", free[0], fix), "node op-2 is gone", "duplicate " + twice,
			fmt.Sprintf("lost 10.33.0.%d pod default/lost", free[2]),
		} {
			if !has(list, want) {
				t.Errorf("fix %v: no finding %q in\n%s", fix, want, strings.Join(list, "\n"))
			}
		}
	}
	list := find(false)
	if has(list, "leak") || !has(list, "duplicate") || !has(list, "lost") {
		t.Errorf("after it:\n%s", strings.Join(list, "\n"))
	}

	// import: the pod's allocation is the node's, and its container's DEL frees it. release --to-whereabouts is the way back.
	if n, err := tool.Import(ctx, ""); err != nil || n != 1 {
		t.Errorf("import: %d %v", n, err)
	}
	e := allocations(t, s, name)[fmt.Sprint(free[1])]
	if !strings.HasPrefix(e["id"], "sluice/op-1/") || e["podref"] != "" {
		t.Errorf("imported: %v", e)
	}
	views, err := tool.List(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	owners := map[string]string{}
	for _, v := range views {
		owners[v.Address] = v.Container + " " + v.State
	}
	if owners[a.String()] != "c1 used" || owners[fmt.Sprintf("10.33.0.%d", free[1])] != "w1 used" {
		t.Errorf("list: %v", owners)
	}
	h.mustDel("w1", extra)
	if n, err := tool.Export(ctx); err != nil || n < 1 {
		t.Errorf("export: %d %v", n, err)
	}
	left := allocations(t, s, name)
	if e := left[fmt.Sprint(a.As4()[3])]; len(left) != 1 || e["id"] != "c1" || e["podref"] != "ns/c1" || e["ifname"] != "net1" {
		t.Errorf("after the way back: %v", left)
	}
	// What is the pods' by now is no more the node's.
	if b := h.mustAdd("c3", extra); b == a {
		t.Errorf("%s twice", b)
	}
	if holder, err := tool.ReleaseAddress(ctx, name, a); err != nil || holder != "pod ns/c1" {
		t.Errorf("release: %s %v", holder, err)
	}
	if n, err := tool.ReleaseNode(ctx, "op-1"); err != nil || n == 0 {
		t.Errorf("release of a node: %d %v", n, err)
	}
	pools, err := tool.Pools(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pools {
		if p.Name == name && (p.Taken != 0 || p.Size != 254) {
			t.Errorf("pools: %+v", p)
		}
	}
	if err := tool.ReleaseUnused(ctx); err != nil {
		t.Error(err)
	}
}
