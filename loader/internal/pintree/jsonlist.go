// SPDX-License-Identifier: Apache-2.0

package pintree

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/log"
)

// JSONList is a list in a file of the run directory. It belongs to a map of the datapath, and is empty on almost every node: a map of
// its own would waste memory. Its readers and writers hold the writers' lock.
type JSONList[T any] struct {
	path, what string
	equal      func(T, T) bool
	All        []T // as in the file
}

// ReadList reads a list. Without a file it is empty. So is one that does not parse: it must not stop pods. what is for messages.
func ReadList[T any](t *Tree, path, what string, equal func(T, T) bool) (JSONList[T], error) {
	l := JSONList[T]{path: path, what: what, equal: equal}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return l, fmt.Errorf("%s: %w", what, err)
	}
	if err := json.Unmarshal(raw, &l.All); err != nil {
		t.Log.Warn(what+" do not come back", log.Error(fmt.Errorf("%s: %w", path, err)))
		l.All = nil
	}
	return l, nil
}

// Set replaces the list. A full file system fails what makes it longer, but not what makes it shorter, which makes room: that is
// written over the old content. A read-only one keeps the old content then: readers ask whether a waiter is alive.
func (l *JSONList[T]) Set(now []T) error {
	if slices.EqualFunc(l.All, now, l.equal) {
		return nil
	}
	if err := l.write(now); err != nil && (!errors.Is(err, unix.EROFS) || len(now) > len(l.All)) {
		return fmt.Errorf("%s: %w", l.what, err)
	}
	l.All = now
	return nil
}

func (l *JSONList[T]) write(now []T) error {
	if len(now) == 0 {
		return file.Remove(l.path)
	}
	raw, err := json.Marshal(now)
	if err != nil {
		return err
	}
	err = WriteFile(l.path, raw)
	if len(now) < len(l.All) && file.IsFull(err) {
		return file.Overwrite(l.path, raw)
	}
	return err
}

// RemoveStaleList deletes the list at path if its map is empty: the map is new then, and the waiters are of the old one.
func RemoveStaleList(path string, entries func() (int, error)) error {
	n, err := entries()
	if err != nil || n > 0 {
		return err
	}
	return file.Remove(path)
}
