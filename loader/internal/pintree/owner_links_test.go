// SPDX-License-Identifier: Apache-2.0

package pintree

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// A link leads to the last number it was made for, is removed only with that, and GC takes those that lead nowhere.
func TestOwnerLinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	const owner, kind = 1<<63 | 7, 3
	want := func(when string, number uint32, there bool) {
		t.Helper()
		if got, ok := Linked(dir, owner, kind); got != number || ok != there {
			t.Errorf("%s: %d %t, want %d %t", when, got, ok, number, there)
		}
	}
	want("empty", 0, false)
	if AllLinked(dir) {
		t.Error("all are linked before a load has said so")
	}
	ok(LinkOwner(dir, owner, kind, 5))
	ok(LinkOwner(dir, owner, kind, 5))
	want("made", 5, true)
	ok(LinkOwner(dir, owner, kind, 65519))
	want("made anew", 65519, true)
	ok(UnlinkOwner(dir, owner, kind, 5))
	want("removed with another number", 65519, true)
	if _, there := Linked(dir, owner, kind+1); there {
		t.Error("another kind has the link")
	}

	ok(LinkOwner(dir, owner, 0, 9))
	ok(os.Symlink("4026531840 2", filepath.Join(dir, "dev9")))
	ok(NoteAllLinked(dir))
	ok(NoteAllLinked(dir))
	if !AllLinked(dir) {
		t.Error("the note that all are linked is not found")
	}
	ok(CollectLinks(dir, func(o uint64, k, number uint32) bool { return o == owner && k == kind && number == 65519 }))
	names, err := Names(dir)
	ok(err)
	slices.Sort(names)
	if !slices.Equal(names, []string{"dev9", linkedName, "of8000000000000007_3"}) {
		t.Errorf("GC left %v", names)
	}
	ok(UnlinkOwner(dir, owner, kind, 65519))
	ok(UnlinkOwner(dir, owner, kind, 65519))
	want("removed", 0, false)
}
