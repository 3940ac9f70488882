// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// The real whereabouts and Sluice allocate from the same pools of a real API server, on the way there, on the way back, and all the time in
// between. No address has two pods, and none is lost.
func TestPrivilegedWhereabouts(t *testing.T) {
	require.Asked(t, *volume >= 1000, "make test-ipam") // whereabouts' own program takes minutes to build
	b := newBeside(t)
	b.s.Kubectl("create", "namespace", "ns")
	for _, f := range []struct{ name, small, large, smallPool, largePool string }{
		{"IPv4", "10.81.%d.0/29", "10.81.%d.0/28", "10.81.%d.0-29", "10.81.%d.0-28"},
		{"IPv6", "fd81:0:0:%d::/125", "fd81:0:0:%d::/124", "fd81-0-0-%d---125", "fd81-0-0-%d---124"},
	} {
		world := func(i int) besideRanges {
			at := func(s string) string { return fmt.Sprintf(s, i) }
			return besideRanges{at(f.small), at(f.large), at(f.smallPool), at(f.largePool)}
		}
		t.Run(f.name+" the way back", func(t *testing.T) { testWayBack(t, b, world(1)) })
		t.Run(f.name+" import", func(t *testing.T) { testImported(t, b, world(2)) })
		t.Run(f.name+" DEL while the API server is away", func(t *testing.T) { testOwed(t, b, world(3)) })
		t.Run(f.name+" a reservation without an allocation", func(t *testing.T) { testReserved(t, b, world(4)) })
	}
	t.Run("lowest first", func(t *testing.T) { testLowestFirst(t, b) })
	t.Run("many DELs", func(t *testing.T) { testManyDELs(t, b) })
	t.Run("both at a time", func(t *testing.T) { testBoth(t, b) })
}

// besideRanges are two networks, of which the second contains the first, and their pools.
type besideRanges struct{ small, large, smallPool, largePool string }

// A node goes back to whereabouts while its pods run: whereabouts gives their addresses to nobody, in a pool that overlaps neither, and
// frees them by its own DEL.
func testWayBack(t *testing.T, b *beside, r besideRanges) {
	n := b.node(t)
	// A pool that whereabouts makes later would not have the claims: docs/known-gaps.md.
	first, err := n.whereabouts("ADD", rangeOf(r.large), "before-"+r.smallPool)
	if err != nil {
		t.Fatal(err)
	}
	has := map[netip.Addr]string{first: "before-" + r.smallPool}
	n.runs(has[first], first)
	for i := range 3 {
		id := fmt.Sprintf("back%d-%s", i, r.smallPool)
		a, err := n.sluice("ADD", rangeOf(r.small), id)
		if by := has[a]; err != nil || by != "" {
			t.Fatalf("%s of %s: %v", a, by, err)
		}
		has[a] = id
		n.runs(id, a)
	}
	n.operate(t, "release", "-to-whereabouts", "-yes")
	b.reconcile(t)
	want := map[string]string{}
	for a, id := range has {
		want[a.String()] = "ns/" + id
	}
	if got := b.reservations(r.large); !maps.Equal(got, want) {
		t.Errorf("reservations %v, want %v", got, want)
	}
	later := map[netip.Addr]string{}
	for i := range 4 {
		id := fmt.Sprintf("later%d-%s", i, r.smallPool)
		a, err := n.whereabouts("ADD", rangeOf(r.large), id)
		if by := has[a]; err != nil || by != "" {
			t.Errorf("%s has %s and %s: %v", a, by, id, err)
		}
		later[a] = id
	}
	for a, id := range has {
		ipam := rangeOf(r.small)
		if a == first {
			ipam = rangeOf(r.large)
		}
		if _, err := n.whereabouts("DEL", ipam, id); err != nil {
			t.Error(err)
		}
	}
	for _, id := range later {
		if _, err := n.whereabouts("DEL", rangeOf(r.large), id); err != nil {
			t.Error(err)
		}
	}
	if got := b.reservations(r.large); len(got) > 0 || len(b.entries(t, r.smallPool))+len(b.entries(t, r.largePool)) > 0 {
		t.Errorf("left: %v %v %v", got, b.entries(t, r.smallPool), b.entries(t, r.largePool))
	}
}

// A node takes over whereabouts' pods and ends them: nothing of them is left, and whereabouts can use all of the pool.
func testImported(t *testing.T, b *beside, r besideRanges) {
	n := b.node(t)
	for i := range 3 {
		id := fmt.Sprintf("import%d-%s", i, r.smallPool)
		a, err := n.whereabouts("ADD", rangeOf(r.small), id)
		if err != nil {
			t.Fatal(err)
		}
		n.runs(id, a)
	}
	if out := n.operate(t, "import", "-yes"); !strings.HasPrefix(out, "3 ") {
		t.Error(out)
	}
	for i := range 3 { // no reconciler runs any more
		if _, err := n.sluice("DEL", rangeOf(r.small), fmt.Sprintf("import%d-%s", i, r.smallPool)); err != nil {
			t.Error(err)
		}
	}
	n.operate(t, "release", "-unused", "-yes")
	if got := b.reservations(r.small); len(got) > 0 {
		t.Errorf("reservations %v", got)
	}
	for i := range 6 {
		if _, err := n.whereabouts("ADD", rangeOf(r.small), fmt.Sprintf("all%d-%s", i, r.smallPool)); err != nil {
			t.Errorf("of an empty pool: %v", err)
		}
	}
}

// DEL of whereabouts' pods on a node that has no address of the pool, and does not reach the API server, is done when it is back: by the
// program in the background, or by the operator's way back.
func testOwed(t *testing.T, b *beside, r besideRanges) {
	n := b.node(t)
	var link *link
	ids := []string{"owed0-" + r.smallPool, "owed1-" + r.smallPool}
	for _, id := range ids {
		if _, err := n.whereabouts("ADD", rangeOf(r.small), id); err != nil {
			t.Fatal(err)
		}
	}
	link, n.kubeconfig = newLink(t, b.s)
	del := func(id string) {
		t.Helper()
		link.set(true, false)
		if _, err := n.sluice("DEL", rangeOf(r.small), id); err != nil {
			t.Errorf("DEL: %v", err)
		}
		if got := b.reservations(r.small); len(got) == 0 {
			t.Error("released without the API server")
		}
		link.set(false, false)
	}
	del(ids[0])
	until := time.Now().Add(netlab.Patient(time.Minute))
	for len(b.reservations(r.small)) > 1 || len(b.entries(t, r.smallPool)) > 1 {
		if time.Now().After(until) {
			t.Fatalf("never released: %v %v", b.reservations(r.small), b.entries(t, r.smallPool))
		}
		time.Sleep(100 * time.Millisecond)
	}
	del(ids[1])
	endPrograms(t, b.bin)
	n.operate(t, "release", "-to-whereabouts", "-yes")
	if left := b.reservations(r.small); len(left)+len(b.entries(t, r.smallPool)) > 0 {
		t.Errorf("not released by the operator's command: %v %v", left, b.entries(t, r.smallPool))
	}
}

// An address that is reserved for a pod is given to no other, though no pool has it.
func testReserved(t *testing.T, b *beside, r besideRanges) {
	n := b.node(t)
	id := "reserved-" + r.smallPool
	reserved, err := n.whereabouts("ADD", rangeOf(r.small), id)
	if err != nil {
		t.Fatal(err)
	}
	b.s.Kubectl("-n", namespace, "delete", "ippool", r.smallPool)
	for i := range 5 {
		if a, err := n.sluice("ADD", rangeOf(r.small), fmt.Sprintf("r%d-%s", i, r.smallPool)); err != nil || a == reserved {
			t.Errorf("%s, and %s is reserved: %v", a, reserved, err)
		}
	}
	_, err = n.sluice("ADD", rangeOf(r.small), "one-too-many-"+r.smallPool)
	wantCode(t, err, cnierr.CodeExhausted, r.smallPool, "pod ns/"+id)
	b.s.Kubectl("-n", namespace, "delete", "overlappingrangeipreservations", "--all")
}

// With lowest_first pods get addresses in the order of whereabouts, from the first of a fresh pool on.
func testLowestFirst(t *testing.T, b *beside) {
	n := b.node(t)
	for _, cidr := range []string{"10.84.0.0/24", "fd84::/64"} {
		theirs, ours := rangeOf(cidr, `"network_name":"theirs"`), rangeOf(cidr, `"network_name":"ours"`, `"lowest_first":true`, `"block_size":1`)
		for i, verb := range []string{"ADD", "ADD", "ADD", "DEL", "ADD"} {
			id := fmt.Sprintf("low%d-%d", i, netip.MustParsePrefix(cidr).Bits())
			if verb == "DEL" {
				id = fmt.Sprintf("low0-%d", netip.MustParsePrefix(cidr).Bits())
			}
			want, err := n.whereabouts(verb, theirs, id)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := n.sluice(verb, ours, id); err != nil || got != want {
				t.Errorf("%s %s: %s, whereabouts gives %s: %v", verb, id, got, want, err)
			}
		}
	}
}

// long is how much of a test there is: less in CI than with "make test-ipam".
func long(short, all int) int {
	if *volume < 1000 {
		return short
	}
	return all
}

// Many pods of whereabouts end at a time on nodes with Sluice: few requests change the pool, and a DEL that succeeds has released.
func testManyDELs(t *testing.T, b *beside) {
	nodes := []*besideNode{b.node(t), b.node(t)}
	const poolName, cidr = "10.82.0.0-22", "10.82.0.0/22"
	manyDELs := long(60, 240)
	if _, err := nodes[0].whereabouts("ADD", rangeOf(cidr), "d0"); err != nil {
		t.Fatal(err)
	}
	all := map[string]any{}
	var objects []string
	for i := 1; i < manyDELs; i++ {
		pod := fmt.Sprint("d", i)
		all[fmt.Sprint(i+1)] = map[string]string{"id": pod, "podref": "ns/" + pod, "ifname": "net1"}
		objects = append(objects, fmt.Sprintf(`{"apiVersion":"whereabouts.cni.cncf.io/v1alpha1","kind":"OverlappingRangeIPReservation",
			"metadata":{"name":"10.82.0.%d","namespace":%q},"spec":{"podref":"ns/%s","ifname":"net1"}}`, i+1, namespace, pod))
	}
	text, err := json.Marshal(map[string]any{"spec": map[string]any{"allocations": all}})
	if err != nil {
		t.Fatal(err)
	}
	b.s.Kubectl("-n", namespace, "patch", "ippool", poolName, "--type=merge", "-p", string(text))
	b.s.KubectlWith(strings.Join(objects, "\n"), "create", "-f", "-")
	if n := len(b.reservations(cidr)); n != manyDELs {
		t.Fatalf("%d reservations", n)
	}
	before, began := b.patches(t), time.Now()
	var mu sync.Mutex
	var took []time.Duration
	var wg sync.WaitGroup
	for worker := range 8 {
		n := nodes[worker%2]
		wg.Go(func() {
			for i := worker; i < manyDELs; i += 8 {
				start := time.Now()
				if _, err := n.sluice("DEL", rangeOf(cidr), fmt.Sprint("d", i)); err != nil {
					t.Error(err)
				}
				mu.Lock()
				took = append(took, time.Since(start))
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	patches := b.patches(t) - before
	if entries, reserved := b.entries(t, poolName), b.reservations(cidr); len(entries)+len(reserved) > 0 {
		t.Errorf("DEL succeeded before the release: %v %v", entries, reserved)
	}
	if patches > float64(manyDELs)/2 {
		t.Errorf("%v changes of pools for %d DELs", patches, manyDELs)
	}
	slices.Sort(took)
	t.Logf("%d DELs, eight at a time on two nodes: %v, p99 %v, %v changes of the pool", manyDELs, time.Since(began).Round(time.Millisecond),
		took[len(took)*99/100].Round(time.Millisecond), patches)
}

// patches is how many changes of pools the API server had.
func (b *beside) patches(t *testing.T) (sum float64) {
	t.Helper()
	c, err := kubernetes.NewForConfig(b.s.Config())
	if err != nil {
		t.Fatal(err)
	}
	text, err := c.RESTClient().Get().AbsPath("/metrics").Do(context.Background()).Raw()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "apiserver_request_total{") && strings.Contains(line, `resource="ippools"`) && strings.Contains(line, `verb="PATCH"`) {
			var n float64
			if _, err := fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &n); err != nil {
				t.Fatal(err)
			}
			sum += n
		}
	}
	return sum
}

// Nodes of both share two pools that overlap: each address has one pod at a time, and at the end none is taken.
func testBoth(t *testing.T, b *beside) {
	const cidr = "10.83.0.0/26"
	rounds := long(6, 24)
	nodes := []*besideNode{b.node(t), b.node(t), b.node(t), b.node(t)}
	ranges := []string{rangeOf(cidr, `"block_size":4`), rangeOf(cidr, `"block_size":4`), rangeOf(cidr), rangeOf("10.83.0.0/27")}
	if _, err := nodes[3].whereabouts("ADD", ranges[3], "early"); err != nil { // whereabouts' pools are there
		t.Fatal(err)
	}
	if _, err := nodes[3].whereabouts("DEL", ranges[3], "early"); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	owner := map[netip.Addr]string{}
	var wg sync.WaitGroup
	for i, n := range nodes {
		call := n.sluice
		if i >= 2 {
			call = n.whereabouts
		}
		wg.Go(func() {
			for k := range rounds {
				id := fmt.Sprintf("both%d-%d", i, k)
				a, err := call("ADD", ranges[i], id)
				if err != nil {
					t.Errorf("%s: %v", id, err)
					continue
				}
				mu.Lock()
				if by, ok := owner[a]; ok {
					t.Errorf("%s has %s and %s", a, by, id)
				}
				owner[a] = id
				mu.Unlock()
				if k%3 == 0 {
					continue
				}
				mu.Lock()
				delete(owner, a)
				mu.Unlock()
				if _, err := call("DEL", ranges[i], id); err != nil {
					t.Errorf("%s: %v", id, err)
				}
			}
		})
	}
	wg.Wait()
	for i := range nodes { // a pod that whereabouts networked ends under Sluice
		for k := 0; k < rounds; k += 3 {
			if _, err := nodes[i].sluice("DEL", ranges[i], fmt.Sprintf("both%d-%d", i, k)); err != nil {
				t.Error(err)
			}
		}
		nodes[i].operate(t, "release", "-unused", "-yes")
	}
	if left := b.reservations(cidr); len(left)+len(allocations(t, b.s, "10.83.0.0-26"))+len(allocations(t, b.s, "10.83.0.0-27")) > 0 {
		t.Errorf("left: %v %v %v", left, allocations(t, b.s, "10.83.0.0-26"), allocations(t, b.s, "10.83.0.0-27"))
	}
}
