// SPDX-License-Identifier: Apache-2.0

package pintree

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sluice-cni/sluice/pkg/file"
)

// A directory of marks also has links from owners to the numbers of their marks, so that a verb finds what an owner has without a walk
// over all. A link says nothing by itself: the entry of the number must name the owner. What a kill leaves is replaced by the next ADD of
// the owner, or removed by GC.

// linkedName is the mark of a directory in which every entry has its link. Builds that make no links do not make it.
const linkedName = "linked"

const ownerPrefix = "of"

func ownerLink(dir string, owner uint64, kind uint32) string {
	return filepath.Join(dir, fmt.Sprintf("%s%016x_%d", ownerPrefix, owner, kind))
}

// LinkOwner leads from an owner to the number of what it has of a kind in dir.
func LinkOwner(dir string, owner uint64, kind, number uint32) error {
	path, target := ownerLink(dir, owner, kind), strconv.FormatUint(uint64(number), 10)
	if was, err := os.Readlink(path); err == nil && was == target {
		return nil
	}
	if err := file.Remove(path); err != nil {
		return err
	}
	return os.Symlink(target, path)
}

// Linked returns the number that LinkOwner has left; false for none.
func Linked(dir string, owner uint64, kind uint32) (number uint32, ok bool) {
	target, err := os.Readlink(ownerLink(dir, owner, kind))
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(target, 10, 32)
	return uint32(n), err == nil
}

// UnlinkOwner removes the link, if it leads to number.
func UnlinkOwner(dir string, owner uint64, kind, number uint32) error {
	if at, ok := Linked(dir, owner, kind); !ok || at != number {
		return nil
	}
	return RemovePin(ownerLink(dir, owner, kind))
}

// AllLinked reports whether every entry that dir is about has its link.
func AllLinked(dir string) bool { return Exists(filepath.Join(dir, linkedName)) }

// NoteAllLinked says so for good.
func NoteAllLinked(dir string) error {
	if AllLinked(dir) {
		return nil
	}
	return os.Symlink(linkedName, filepath.Join(dir, linkedName))
}

// CollectLinks removes the links in dir for which has is false.
func CollectLinks(dir string, has func(owner uint64, kind, number uint32) bool) error {
	names, err := Names(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		owner, kind, ok := parseOwnerLink(name)
		if !ok {
			continue
		}
		if number, ok := Linked(dir, owner, kind); ok && has(owner, kind, number) {
			continue
		}
		if err := file.Remove(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func parseOwnerLink(name string) (owner uint64, kind uint32, ok bool) {
	rest, ok := strings.CutPrefix(name, ownerPrefix)
	if !ok {
		return 0, 0, false
	}
	hex, number, ok := strings.Cut(rest, "_")
	if !ok {
		return 0, 0, false
	}
	owner, err := strconv.ParseUint(hex, 16, 64)
	if err != nil {
		return 0, 0, false
	}
	n, err := strconv.ParseUint(number, 10, 32)
	return owner, uint32(n), err == nil
}
