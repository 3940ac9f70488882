// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/sluice-cni/sluice/pkg/diskfull"
	"github.com/sluice-cni/sluice/pkg/log"
)

// rows is a list in a file of the run directory: what belongs to a map of the datapath and is so seldom there that a map of its own
// would be empty on almost every node. Whoever reads or writes it holds the writers' lock.
type rows[T comparable] struct {
	path, what string
	all        []T // as in the file
}

// readRows reads a list; without a file it is empty. One that cannot be understood must not stop pods: it is empty too. what is for
// messages.
func readRows[T comparable](d *Datapath, path, what string) (rows[T], error) {
	r := rows[T]{path: path, what: what}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, fmt.Errorf("%s: %w", what, err)
	}
	if err := json.Unmarshal(raw, &r.all); err != nil {
		d.log.Warn(what+" do not come back", log.Error(fmt.Errorf("%s: %w", path, err)))
		r.all = nil
	}
	return r, nil
}

// set replaces the list. A file system that is full stops what makes it longer, but not those that go and so make room: what has
// become shorter is written over what is there.
func (r *rows[T]) set(now []T) error {
	if slices.Equal(r.all, now) {
		return nil
	}
	if err := r.write(now); err != nil {
		return fmt.Errorf("%s: %w", r.what, err)
	}
	r.all = now
	return nil
}

func (r *rows[T]) write(now []T) error {
	if len(now) == 0 {
		return removeIfThere(r.path)
	}
	raw, err := json.Marshal(now)
	if err != nil {
		return err
	}
	err = writeFile(r.path, raw)
	if len(now) < len(r.all) && diskfull.Is(err) {
		return diskfull.Overwrite(r.path, raw)
	}
	return err
}

// removeRowsOf removes the list of a map that has no entry. Nobody waits for what nobody has: it was of a map that is gone.
func removeRowsOf(path string, entries func() (int, error)) error {
	n, err := entries()
	if err != nil || n > 0 {
		return err
	}
	return removeIfThere(path)
}
