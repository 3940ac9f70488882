// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/test/addrhistory"
	"github.com/sluice-cni/sluice/pkg/test/kubetest"
)

// atOnce has all hosts add attachments at a time, as many as count says of the i-th one. It returns which attachment has which address, and
// fails the test if two have one.
func atOnce(t *testing.T, hosts []*host, count func(i int) int, add func(h *host, i int, id string) ([]netip.Addr, error)) map[netip.Addr]string {
	t.Helper()
	var mu sync.Mutex
	seen := map[netip.Addr]string{}
	var wg sync.WaitGroup
	for i, h := range hosts {
		wg.Go(func() {
			for n := range count(i) {
				id := fmt.Sprintf("c%d-%d", i, n)
				got, err := add(h, i, id)
				if err != nil {
					t.Errorf("%s of %s: %v", id, h.name, err)
					return
				}
				mu.Lock()
				if by, ok := seen[got[0]]; ok {
					t.Errorf("%s has %s and %s", got[0], by, id)
				}
				seen[got[0]] = id
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return seen
}

// Nodes with overlapping ranges get no address twice, and what a node has in one pool is taken in the others.
func testOverlapping(t *testing.T, s *kubetest.Server) {
	hosts := []*host{kubeHost(t, s, "over-1"), kubeHost(t, s, "over-2"), kubeHost(t, s, "over-3")}
	// Small blocks: what another node has claimed ahead of need in a larger pool is taken in the smallest one too.
	ranges := []string{`"range":"10.23.0.0/24","block_size":4`, `"range":"10.23.0.0/25","block_size":4`, `"range":"10.23.0.64/26","block_size":4`}
	seen := atOnce(t, hosts, func(int) int { return 16 }, func(h *host, i int, id string) ([]netip.Addr, error) {
		return h.add(h.args(id, ranges[i]))
	})
	small := allocations(t, s, "10.23.0.64-26")
	for a := range seen {
		if p := netip.MustParsePrefix("10.23.0.64/26"); p.Contains(a) {
			if _, ok := small[fmt.Sprint(a.As4()[3]-64)]; !ok {
				t.Errorf("%s is not taken in the pool of %s", a, p)
			}
		}
	}
	// Networks of different names have addresses of their own.
	a, b := kubeHost(t, s, "over-4"), kubeHost(t, s, "over-5")
	for i, h := range []*host{a, b} {
		for n := range 14 {
			if _, err := h.add(h.args(fmt.Sprintf("n%d", n), fmt.Sprintf(`"range":"10.24.0.0/28","network_name":"net%d"`, i))); err != nil {
				t.Fatalf("network net%d: %v", i, err)
			}
		}
	}
}

// After a reboot no pod of before lives: all addresses of the node are free, under new entries.
func testReboot(t *testing.T, s *kubetest.Server) {
	h := kubeHost(t, s, "reboot-1")
	extra := `"range":"10.25.0.0/24"`
	for i := range 40 {
		h.mustAdd(fmt.Sprintf("c%d", i), extra)
	}
	h.background.Wait()
	before := allocations(t, s, "10.25.0.0-24")
	h.boot++
	h.register(s)
	for i := range len(before) {
		h.mustAdd(fmt.Sprintf("d%d", i), extra)
	}
	h.background.Wait()
	after := allocations(t, s, "10.25.0.0-24")
	for off, e := range before {
		if _, ok := after[off]; !ok || after[off]["id"] == e["id"] {
			t.Errorf("offset %s: %v became %v", off, e, after[off])
		}
	}
	// Without the server nothing is known of what the node has, so nothing is handed out after a reboot.
	h.boot++
	s.Stop()
	_, err := h.add(h.args("e", extra))
	s.Start()
	wantCode(t, err, cnierr.CodeTryAgain)
	// A node that lost its file gets the addresses of its earlier boots back, not those of this one.
	h.boot++
	h.register(s)
	h.dir = t.TempDir()
	h.mustAdd("f", extra)
	lost := allocations(t, s, "10.25.0.0-24")
	for off := range after {
		if lost[off]["id"] == after[off]["id"] {
			t.Errorf("offset %s is still an earlier boot's", off)
		}
	}
	h.dir = t.TempDir()
	g := h.mustAdd("g", extra)
	if _, ok := lost[fmt.Sprint(g.As4()[3])]; ok {
		t.Errorf("%s may be in use by a pod of the lost file", g)
	}
}

// What a node had is free when its Node object is gone, or out of service, and not before.
func testDeadNodes(t *testing.T, s *kubetest.Server) {
	extra := `"range":"10.26.0.0/27"` // 30 addresses
	a, b, c := kubeHost(t, s, "dead-1"), kubeHost(t, s, "dead-2"), kubeHost(t, s, "dead-3")
	for i := range 15 {
		a.mustAdd(fmt.Sprintf("a%d", i), extra)
		b.mustAdd(fmt.Sprintf("b%d", i), extra)
	}
	a.background.Wait()
	b.background.Wait()
	_, err := c.add(c.args("c0", extra))
	wantCode(t, err, cnierr.CodeExhausted, "10.26.0.0-27", "10.26.0.0/27", "30 of 30", "node dead-1 15", "node dead-2 15")
	s.Kubectl("taint", "node", "dead-1", "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
	for i := range 15 {
		c.mustAdd(fmt.Sprintf("c%d", i), extra)
	}
	s.Kubectl("delete", "node", "dead-2")
	for i := range 15 {
		c.mustAdd(fmt.Sprintf("d%d", i), extra)
	}
	c.background.Wait()
	// The first comes back, and finds that it has nothing any more.
	s.Kubectl("taint", "node", "dead-1", "node.kubernetes.io/out-of-service-")
	a.boot++
	a.register(s)
	_, err = a.add(a.args("e", extra))
	wantCode(t, err, cnierr.CodeExhausted)
}

// A pool with exactly as many addresses as pods serves all of them, however the nodes share them.
func testExactPool(t *testing.T, s *kubetest.Server) {
	extra := `"range":"10.27.0.0/25"` // 126 addresses
	var hosts []*host
	for i := range 5 {
		hosts = append(hosts, kubeHost(t, s, fmt.Sprintf("exact-%d", i)))
	}
	want := []int{1, 2, 3, 50, 70} // the first have blocks that they hardly use
	seen := atOnce(t, hosts, func(i int) int { return want[i] }, func(h *host, _ int, id string) ([]netip.Addr, error) {
		got, err := h.add(h.args(id, extra))
		for try := 0; err != nil && try < 5 && cnierr.From(err).Code == cnierr.CodeExhausted; try++ { // the kubelet tries again, too
			got, err = h.add(h.args(id, extra))
		}
		return got, err
	})
	if len(seen) != 126 {
		t.Errorf("%d addresses of 126", len(seen))
	}
}

// What a person wrote into a pool is named, and not touched. A node that saw the pool a moment ago may add a claim.
func testEdited(t *testing.T, s *kubetest.Server) {
	h := kubeHost(t, s, "edited-1")
	h.mustAdd("c", `"range":"10.28.0.0/29","block_size":1`)
	for patch, want := range map[string]string{
		`{"spec":{"range":"10.28.0.0/24"}}`:                                                "10.28.0.0/24",
		`{"spec":{"range":"10.28.0.0/29","allocations":{"x7":{"id":"a","podref":"b/c"}}}}`: "x7",
		`{"spec":{"range":"10.28.0.1/29","allocations":{"x7":null}}}`:                      "10.28.0.1/29",
	} {
		s.Kubectl("-n", namespace, "patch", "ippool", "10.28.0.0-29", "--type=merge", "-p", patch)
		written := func() string {
			all := allocations(t, s, "10.28.0.0-29")
			maps.DeleteFunc(all, func(_ string, e map[string]string) bool { return strings.HasPrefix(e["id"], "sluice/edited-1/") })
			return s.Kubectl("-n", namespace, "get", "ippool", "10.28.0.0-29", "-o", "jsonpath={.spec.range}") + fmt.Sprint(all)
		}
		before, claimed := written(), len(allocations(t, s, "10.28.0.0-29"))
		_, err := h.add(h.args("d", `"range":"10.28.0.0/29","block_size":1`))
		wantCode(t, err, cnierr.CodeState, "10.28.0.0-29", want)
		if after := written(); after != before {
			t.Errorf("%s was changed to %s", before, after)
		}
		if more := len(allocations(t, s, "10.28.0.0-29")) - claimed; more > 0 && strings.Contains(before, "10.28.0.0/24") {
			t.Errorf("%d claims in a pool of another range", more)
		}
	}
	s.Kubectl("-n", namespace, "delete", "ippool", "10.28.0.0-29") // the operator's commands would name it
}

// A user that may not change pools gets an error that names the kubeconfig.
func testPermissions(t *testing.T, s *kubetest.Server) {
	h := kubeHost(t, s, "perm-1")
	h.open = openAs(s, "nobody")
	_, err := h.add(h.args("c", `"range":"10.30.0.0/24"`))
	wantCode(t, err, cnierr.CodeConfig, "ipam.kubernetes.kubeconfig", `"/k"`, "forbidden")
	// With the rights that docs/ipam.md names, and no others, all of it works.
	s.KubectlWith(role(t), "apply", "-f", "-")
	h.open = openAs(s, "system:serviceaccount:kube-system:sluice-ipam")
	a := h.mustAdd("c", `"range":"10.30.0.0/24"`)
	if id := allocations(t, s, "10.30.0.0-24")[fmt.Sprint(a.As4()[3])]["id"]; !strings.HasPrefix(id, "sluice/perm-1/") {
		t.Errorf("entry %q: the node's name was not found", id)
	}
}

func testSlices(t *testing.T, s *kubetest.Server) {
	h := kubeHost(t, s, "slice-1")
	s.KubectlWith(`{"apiVersion":"whereabouts.cni.cncf.io/v1alpha1","kind":"NodeSlicePool","metadata":{"name":"net","namespace":"kube-system"},
		"spec":{"range":"10.31.0.0/24","sliceSize":"/28"},
		"status":{"allocations":[{"nodeName":"other","sliceRange":"10.31.0.0/28"},{"nodeName":"slice-1","sliceRange":"10.31.0.16/28"}]}}`, "apply", "-f", "-")
	extra := `"range":"10.31.0.0/24","node_slice_size":"/28"`
	for i := range 14 {
		a := h.mustAdd(fmt.Sprintf("c%d", i), extra)
		if !netip.MustParsePrefix("10.31.0.16/28").Contains(a) {
			t.Fatalf("%s is not in the slice", a)
		}
	}
	if n := len(allocations(t, s, "slice-1-10.31.0.16-28")); n != 14 {
		t.Errorf("%d entries", n)
	}
	_, err := h.add(h.args("d", extra))
	wantCode(t, err, cnierr.CodeExhausted, "10.31.0.16")
	stranger := kubeHost(t, s, "slice-2")
	_, err = stranger.add(stranger.args("d", extra))
	wantCode(t, err, cnierr.CodeState, "slice-2")

	// Another range of the network overlaps the slice: it has none of its addresses, and none that whereabouts gave of another slice.
	other := kubeHost(t, s, "slice-3")
	_, err = other.add(other.args("o", `"range":"10.31.0.16/28"`))
	wantCode(t, err, cnierr.CodeExhausted, "14 of 14")
	taken := map[string]any{}
	for off := 1; off < 15; off++ {
		taken[fmt.Sprint(off)] = map[string]string{"id": "w", "podref": "ns/w", "ifname": "net1"}
	}
	text, _ := json.Marshal(map[string]any{"apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool", "metadata": map[string]string{"name": "other-10.31.0.0-28", "namespace": namespace},
		"spec": map[string]any{"range": "10.31.0.0/28", "allocations": taken}})
	s.KubectlWith(string(text), "apply", "-f", "-")
	_, err = other.add(other.args("o", `"range":"10.31.0.0/28"`))
	wantCode(t, err, cnierr.CodeExhausted, "14 of 14")
	if _, err := other.add(other.args("o", `"range":"10.31.0.0/28","enable_overlapping_ranges":false`)); err != nil {
		t.Errorf("without enable_overlapping_ranges: %v", err)
	}
	// The other way: what a range has, a slice of it has not. A name that is no node's is another network's.
	s.Kubectl("-n", namespace, "patch", "nodeslicepool", "net", "--type=merge", "-p", `{"status":{"allocations":[{"nodeName":"slice-4","sliceRange":"10.31.0.64/28"}]}}`)
	for i := range 14 {
		other.mustAdd(fmt.Sprintf("r%d", i), `"range":"10.31.0.64/28"`)
	}
	late := kubeHost(t, s, "slice-4")
	_, err = late.add(late.args("l", extra))
	wantCode(t, err, cnierr.CodeExhausted, "10.31.0.64")
	if _, err := other.add(other.args("n", `"range":"10.31.0.64/28","network_name":"far"`)); err != nil {
		t.Errorf("another network: %v", err)
	}

	// The controller gives the node another slice: the next claim is of that.
	s.Kubectl("-n", namespace, "patch", "nodeslicepool", "net", "--type=merge", "-p", `{"status":{"allocations":[{"nodeName":"slice-1","sliceRange":"10.31.0.96/28"}]}}`)
	if a := h.mustAdd("moved", extra); !netip.MustParsePrefix("10.31.0.96/28").Contains(a) {
		t.Errorf("%s is not of the new slice", a)
	}
}

// An attachment that whereabouts made passes CHECK and is released by DEL, with its reservation; also later, when the
// server was away.
func testForeign(t *testing.T, s *kubetest.Server) {
	h := kubeHost(t, s, "foreign-1")
	extra := `"range":"10.32.0.0/24"`
	write := func(off int, id string) {
		t.Helper()
		e := map[string]any{"spec": map[string]any{"range": "10.32.0.0/24", "allocations": map[string]any{
			fmt.Sprint(off): map[string]string{"id": id, "podref": "ns/" + id, "ifname": "net1"}}}}
		text, _ := json.Marshal(e)
		s.Kubectl("-n", namespace, "patch", "ippool", "10.32.0.0-24", "--type=merge", "-p", string(text))
		s.KubectlWith(fmt.Sprintf(`{"apiVersion":"whereabouts.cni.cncf.io/v1alpha1","kind":"OverlappingRangeIPReservation",
			"metadata":{"name":"10.32.0.%d","namespace":"kube-system"},"spec":{"podref":"ns/%s","ifname":"net1"}}`, off, id), "apply", "-f", "-")
	}
	h.mustAdd("own", extra)
	taken := allocations(t, s, "10.32.0.0-24")
	var free []int
	for off := 1; off < 255; off++ {
		if _, ok := taken[fmt.Sprint(off)]; !ok {
			free = append(free, off)
		}
	}
	write(free[0], "w0")
	write(free[1], "w1")
	if err := h.plugin.Check(context.Background(), h.args("w0", extra)); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	h.mustDel("w0", extra)
	s.Stop()
	h.mustDel("w1", extra)
	s.Start()
	for i := range 60 { // upkeep comes along
		h.mustAdd(fmt.Sprintf("x%d", i), extra)
	}
	h.background.Wait()
	for i := range 2 {
		if e, ok := allocations(t, s, "10.32.0.0-24")[fmt.Sprint(free[i])]; ok && e["podref"] != "" {
			t.Errorf("w%d still has %v", i, e)
		}
		if out := s.Kubectl("-n", namespace, "get", "overlappingrangeipreservations", "-o", "name"); strings.Contains(out, fmt.Sprintf("/10.32.0.%d\n", free[i])) {
			t.Errorf("the reservation of w%d is there", i)
		}
	}
}

// Nodes that fight for the addresses of a small pool, in blocks of two, give each to one pod at a time: porcupine finds an order
// of all ADDs and DELs in which that is so.
func testHistory(t *testing.T, s *kubetest.Server) {
	const extra = `"range":"10.36.0.0/28","block_size":2` // 14 addresses
	var past addrhistory.History
	var wg sync.WaitGroup
	for i := range 4 {
		h := kubeHost(t, s, fmt.Sprintf("history-%d", i))
		for k := range 2 {
			wg.Go(func() {
				for n := range 20 {
					id := fmt.Sprintf("h%d-%d-%d", i, k, n)
					begin := past.Time()
					got, err := h.add(h.args(id, extra))
					if err == nil {
						past.Took(got[0], id, begin)
					} else if code := cnierr.From(err).Code; code != cnierr.CodeExhausted && code != cnierr.CodeTryAgain {
						t.Errorf("%s: %v", id, err)
					}
					begin = past.Time()
					if derr := h.plugin.Del(context.Background(), h.args(id, extra)); derr != nil {
						t.Errorf("%s: %v", id, derr)
					}
					if err == nil {
						past.Released(got[0], id, begin)
					}
				}
			})
		}
	}
	wg.Wait()
	if past.Len() < 100 || !past.OK(time.Minute) {
		t.Errorf("%d steps, linearizable: %v", past.Len(), past.OK(time.Minute))
	}
}
