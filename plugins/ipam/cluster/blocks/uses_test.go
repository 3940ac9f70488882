// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// openFile opens the pool of a test, for all attachments or for one.
func openFile(t testing.TB, dir, containerID string) *File {
	t.Helper()
	open := func() (*File, error) { return OpenFor(t.Context(), dir, "kubernetes", "p", containerID, "eth0") }
	if containerID == "" {
		open = func() (*File, error) { return Open(t.Context(), dir, "kubernetes", "p") }
	}
	f, err := open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

// claimed makes a file with the offsets 0 to 9, and attachments a, b and c that have 0, 1 and 2.
func claimed(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	f := openFile(t, dir, "")
	f.Node, f.Machine, f.Boot = "n", "m", "boot"
	f.Claims = []Claim{{ID: "x", Runs: [][2]uint64{{0, 9}}}}
	for i, id := range []string{"a", "b", "c"} {
		f.Used[uint64(i)] = Use{ContainerID: id, IfName: "eth0"}
	}
	if err := f.Save(); err != nil {
		t.Fatal(err)
	}
	f.Close()
	return dir
}

// An ADD and a DEL that read one attachment leave what those that read all would leave.
func TestOneAttachment(t *testing.T) {
	t.Parallel()
	dir := claimed(t)
	f := openFile(t, dir, "d")
	if len(f.Used) != 0 || !slices.Equal(f.Unused(), []uint64{3, 4, 5, 6, 7, 8, 9}) {
		t.Fatalf("used %v, unused %v", f.Used, f.Unused())
	}
	f.Used[5] = Use{ContainerID: "d", IfName: "eth0", Range: 1}
	if err := f.Save(); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if f = openFile(t, dir, "d"); !slices.Equal(f.Of("d", "eth0"), []uint64{5}) || f.Used[5].Range != 1 {
		t.Errorf("d has %v", f.Used)
	}
	f.Close()
	f = openFile(t, dir, "b")
	if !f.Release("b", "eth0") || f.Release("b", "eth0") {
		t.Error("Release")
	}
	if err := f.Save(); err != nil {
		t.Fatal(err)
	}
	f.Close()
	all := openFile(t, dir, "")
	if diff := cmp.Diff([]uint64{1, 3, 4, 6, 7, 8, 9}, all.Unused()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(all.Unused(), all.FreeList); diff != "" || len(all.Used) != 3 || !all.Released("b", "eth0") {
		t.Errorf("%v %s", all.Used, diff)
	}
}

// Killed at any of its writes, a change gives no address to two attachments, and loses none for good.
func TestKilledSave(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, c := range map[string]struct {
		id   string
		do   func(f *File)
		free []uint64 // what may be free before, in between or behind
	}{
		"ADD":         {"d", func(f *File) { f.Used[5] = Use{ContainerID: "d", IfName: "eth0"} }, []uint64{3, 4, 5, 6, 7, 8, 9}},
		"DEL":         {"b", func(f *File) { f.Release("b", "eth0") }, []uint64{1, 3, 4, 5, 6, 7, 8, 9}},
		"export":      {"", func(f *File) { f.Drop([]uint64{1}); delete(f.Used, 1) }, []uint64{3, 4, 5, 6, 7, 8, 9}},
		"another use": {"", func(f *File) { f.Used[1] = Use{ContainerID: "e", IfName: "eth0"} }, []uint64{3, 4, 5, 6, 7, 8, 9}},
	} {
		for steps := range 5 {
			t.Run(fmt.Sprint(name, " killed behind ", steps), func(t *testing.T) {
				dir := claimed(t)
				f := openFile(t, dir, c.id)
				c.do(f)
				want, err := f.wantedUses()
				if err != nil {
					t.Fatal(err)
				}
				for _, step := range []func() error{
					func() error { return f.removeUses(want, true) },
					func() error { return f.writePool(false) },
					func() error { return f.removeUses(want, false) },
					func() error { return f.writeUses(want) },
				}[:min(steps, 4)] {
					if err := step(); err != nil {
						t.Fatal(err)
					}
				}
				f.Close()
				one, err := OpenFor(ctx, dir, "kubernetes", "p", "new", "eth0")
				if err != nil {
					t.Fatal(err)
				}
				free := one.Unused()
				one.Close()
				all := openFile(t, dir, "")
				for _, off := range free {
					if u, used := all.Used[off]; used || !slices.Contains(c.free, off) {
						t.Errorf("offset %d is free, and %+v has it", off, u)
					}
				}
				for _, off := range all.Unused() {
					if !slices.Contains(c.free, off) && name != "another use" { // that one never happens: nothing returned it
						t.Errorf("offset %d is free", off)
					}
				}
				for off := range uint64(10) {
					_, owned := all.Owns(off)
					_, used := all.Used[off]
					if owned && !used && !slices.Contains(all.Unused(), off) {
						t.Errorf("offset %d is lost", off)
					}
				}
			})
		}
	}
}

// Uses of an earlier boot do not count, and go away with the next change of the store program.
func TestUsesOfEarlierBoot(t *testing.T) {
	t.Parallel()
	dir := claimed(t)
	f := openFile(t, dir, "")
	f.Boot, f.Used = "later", map[uint64]Use{}
	if err := f.writePool(false); err != nil { // and killed
		t.Fatal(err)
	}
	f.Close()
	f = openFile(t, dir, "")
	if len(f.Used) != 0 || len(f.Unused()) != 10 {
		t.Errorf("%v", f.Used)
	}
	if err := f.Save(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "kubernetes", "p.used")); err != nil || len(left) != 0 {
		t.Errorf("%v %v", left, err)
	}
}

// A damaged file of an attachment is named: its address may be in use. One that says what another says is named too.
func TestBrokenUse(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"not JSON":       "{",
		"another's name": `{"boot":"boot","uses":[{"offset":7,"id":"z","ifname":"eth0"}]}`,
	} {
		dir := claimed(t)
		path := filepath.Join(dir, "kubernetes", "p.used", useName("q", "eth0"))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), dir, "kubernetes", "p"); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
	dir := claimed(t)
	path := filepath.Join(dir, "kubernetes", "p.used", useName("q", "eth0"))
	if err := os.WriteFile(path, []byte(`{"boot":"boot","uses":[{"offset":1,"id":"q","ifname":"eth0"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), dir, "kubernetes", "p"); err == nil || !strings.Contains(err.Error(), "offset 1") {
		t.Errorf("two have offset 1: %v", err)
	}
}

// What an ADD and a DEL read and write does not grow with the attachments of the node.
func TestSizeOfAdd(t *testing.T) {
	t.Parallel()
	size := func(attachments int) int64 {
		dir := t.TempDir()
		f := openFile(t, dir, "")
		f.Claims = []Claim{{ID: "x", Runs: [][2]uint64{{0, uint64(attachments) + 31}}}}
		for i := range attachments {
			f.Used[uint64(i)] = Use{ContainerID: fmt.Sprint("c", i), IfName: "eth0", Network: "net", PodRef: "ns/pod", PodUID: "uid"}
		}
		if err := f.Save(); err != nil {
			t.Fatal(err)
		}
		f.Close()
		info, err := os.Stat(Path(dir, "kubernetes", "p"))
		if err != nil {
			t.Fatal(err)
		}
		one := openFile(t, dir, "new")
		defer one.Close()
		if len(one.written) > 0 || len(one.Used) > 0 {
			t.Errorf("%d uses were read", len(one.Used))
		}
		return info.Size()
	}
	if few, many := size(10), size(500); many > few+100 {
		t.Errorf("%d bytes with 10 attachments, %d with 500", few, many)
	}
}

func BenchmarkAddDel(b *testing.B) {
	for _, attachments := range []int{100, 700} {
		b.Run(fmt.Sprint(attachments), func(b *testing.B) {
			dir := b.TempDir()
			f := openFile(b, dir, "")
			for i := range uint64(attachments+32) / 32 { // as blocks
				f.Claims = append(f.Claims, Claim{ID: fmt.Sprintf("sluice/node/01234567.01234567.%012x", i), Runs: [][2]uint64{{i * 32, i*32 + 31}}})
			}
			for i := range attachments {
				f.Used[uint64(i)] = Use{ContainerID: fmt.Sprintf("%064x", i), IfName: "eth0", Network: "net", PodRef: "ns/pod", PodUID: "uid"}
			}
			if err := f.Save(); err != nil {
				b.Fatal(err)
			}
			f.Close()
			for b.Loop() {
				for _, add := range []bool{true, false} {
					f, err := OpenFor(b.Context(), dir, "kubernetes", "p", "new", "eth0")
					if err != nil {
						b.Fatal(err)
					}
					if add {
						f.Used[f.Unused()[0]] = Use{ContainerID: "new", IfName: "eth0"}
					} else {
						f.Release("new", "eth0")
					}
					if err := f.Save(); err != nil {
						b.Fatal(err)
					}
					f.Close()
				}
			}
		})
	}
}
