// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

func TestRuns(t *testing.T) {
	t.Parallel()
	offs := []uint64{9, 1, 2, 3, 7, 8, 2}
	c := Claim{Runs: Runs(offs)}
	if diff := cmp.Diff([][2]uint64{{1, 3}, {7, 9}}, c.Runs); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]uint64{1, 2, 3, 7, 8, 9}, c.Offsets()); diff != "" {
		t.Error(diff)
	}
	if c.Has(4) || !c.Has(9) || c.Has(0) {
		t.Error("Has")
	}
}

func TestStateSurvives(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f, err := Open(context.Background(), dir, "kubernetes", "10.0.0.0-24")
	if err != nil {
		t.Fatal(err)
	}
	f.CIDR = netip.MustParsePrefix("10.0.0.0/24")
	f.Claims = []Claim{{ID: "a", Runs: [][2]uint64{{0, 3}}}, {ID: "b", Runs: [][2]uint64{{8, 9}}}}
	f.Used[2] = Use{ContainerID: "c", IfName: "eth0", Network: "n"}
	if err := f.Save(); err != nil {
		t.Fatal(err)
	}
	// While it is held, no other gets it.
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := Open(ctx, dir, "kubernetes", "10.0.0.0-24"); err == nil {
		t.Error("two have the lock")
	}
	f.Close()
	f, err = Open(context.Background(), dir, "kubernetes", "10.0.0.0-24")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := &pool.Range{CIDR: f.CIDR}
	r.First, r.Last, _ = pool.Usable(r.CIDR)
	if diff := cmp.Diff([]uint64{1, 3, 8, 9}, f.Spare(r)); diff != "" { // 0 is the network's address
		t.Error(diff)
	}
	for last, want := range map[uint64]uint64{0: 1, 1: 3, 3: 8, 9: 1} {
		if f.Last = last; true {
			if off, ok := f.Next(r); !ok || off != want {
				t.Errorf("behind %d comes %d", last, off)
			}
		}
	}
	f.GiveBack([]uint64{1, 9})
	if diff := cmp.Diff([]Claim{{ID: "a", Runs: [][2]uint64{{1, 1}}}, {ID: "b", Runs: [][2]uint64{{9, 9}}}}, f.Giving); diff != "" {
		t.Error(diff)
	}
	for off := range uint64(10) {
		if _, ok := f.Owns(off); ok != slices.Contains([]uint64{0, 2, 3, 8}, off) {
			t.Errorf("owns %d: %v", off, ok)
		}
	}
	if names, err := Pools(dir, "kubernetes"); err != nil || len(names) != 1 || names[0] != "10.0.0.0-24" {
		t.Errorf("%q %v", names, err)
	}
}

// A file that cannot be read is named, and not taken for an empty one: its addresses may be in use.
func TestBrokenFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(dir+"/etcd", 0o700); err != nil {
		t.Fatal(err)
	}
	path := Path(dir, "etcd", "p")
	for _, text := range []string{"{", `{"version":9,"pool":"p"}`, `{"version":2,"pool":"p","free":[3]}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(context.Background(), dir, "etcd", "p"); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := Open(context.Background(), dir, "etcd", "../x"); err == nil {
		t.Error("a name with a slash is accepted")
	}
}
