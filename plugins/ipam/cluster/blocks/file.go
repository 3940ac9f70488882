// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/file"
)

// version is that of the file. A build refuses a file of a version that it does not know: it could take an address for unused.
const version = 2

// File is the locked file of one pool.
type File struct {
	State

	path    string
	lock    *os.File
	text    []byte            // of the file, as it was read or written
	written map[string][]byte // the files of attachments that were read or written
}

// Path returns the file of a pool. Names of pools have no slash.
func Path(dir, place, poolName string) string { return filepath.Join(dir, place, poolName+suffix) }

const suffix = ".json"

// Open locks and reads the file of a pool, and the uses of all attachments. The caller must Close it. A file that is not
// there is an empty State with the name of the pool. One that cannot be read is an error: what it said of addresses in use
// is unknown.
func Open(ctx context.Context, dir, place, poolName string) (*File, error) {
	f, err := open(ctx, dir, place, poolName)
	if err != nil {
		return nil, err
	}
	if err := f.loadUses(); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// OpenFor is Open for one attachment, and does not take longer on a node with many. Used has only what the attachment has:
// Of, Next, Spare, Unused, Release, Released, Due and Save work. A file with addresses that are kept for owners is read whole.
func OpenFor(ctx context.Context, dir, place, poolName, containerID, ifName string) (*File, error) {
	f, err := open(ctx, dir, place, poolName)
	if err != nil {
		return nil, err
	}
	if !f.partial || slices.ContainsFunc(f.Claims, func(c Claim) bool { return c.Hold != "" }) {
		err = f.loadUses()
	} else {
		err = f.loadUse(useName(containerID, ifName))
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func open(ctx context.Context, dir, place, poolName string) (*File, error) {
	if poolName == "" || strings.ContainsRune(poolName, '/') || strings.HasPrefix(poolName, ".") {
		return nil, fmt.Errorf("%q is not the name of a pool", poolName)
	}
	if err := os.MkdirAll(filepath.Join(dir, place), 0o700); err != nil {
		return nil, err
	}
	f := &File{path: Path(dir, place, poolName), written: map[string][]byte{}}
	var err error
	if f.lock, err = file.AcquireLock(ctx, strings.TrimSuffix(f.path, suffix)+".lock"); err != nil {
		return nil, err
	}
	if err := f.read(); err != nil {
		f.Close()
		return nil, err
	}
	if f.Pool == "" {
		f.Pool, f.Place = poolName, place
	}
	f.Used = map[uint64]Use{}
	return f, nil
}

// read reads the file of the pool.
func (f *File) read() error {
	text, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		f.Version, f.partial = version, true
		return nil
	}
	if err != nil {
		return err
	}
	f.text = text
	if err := json.Unmarshal(text, &f.State); err != nil {
		return fmt.Errorf("%s: %w; if no pod of this node has an address of the pool, remove the file", f.path, err)
	}
	if f.Version != version {
		return fmt.Errorf("%s: version %d is not known", f.path, f.Version)
	}
	f.partial = true
	if err := f.check(); err != nil {
		return fmt.Errorf("%s: %w", f.path, err)
	}
	return nil
}

// Save writes the files. A kill at any time leaves no address of an attachment for another one: an address leaves the free
// ones before an attachment has it, and joins them after. One that a kill leaves in between is free after the next Open.
func (f *File) Save() error { return f.save(false) }

// SaveDurably is Save that also survives a loss of power. What gives addresses away needs it: a node that came up with
// the old content would use them.
func (f *File) SaveDurably() error { return f.save(true) }

func (f *File) save(durable bool) error {
	want, err := f.wantedUses()
	if err != nil {
		return err
	}
	if err := f.removeUses(want, true); err != nil {
		return err
	}
	if err := f.writePool(durable); err != nil {
		return err
	}
	if err := f.removeUses(want, false); err != nil {
		return err
	}
	return f.writeUses(want)
}

// writePool writes the file of the pool, if it differs or has to last.
func (f *File) writePool(durable bool) error {
	f.FreeList, f.Version = f.Unused(), version
	text, err := json.Marshal(&f.State)
	if err != nil {
		return err
	}
	text = append(text, '\n')
	var o file.Options
	if durable {
		o.Sync = file.SyncName
	} else if bytes.Equal(text, f.text) {
		return nil
	}
	if err := file.Write(f.path, text, o); err != nil {
		return err
	}
	f.text = text
	return nil
}

// Close releases the lock.
func (f *File) Close() { _ = f.lock.Close() }

// Pools lists the pools that the node has a file of.
func Pools(dir, place string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(dir, place))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), suffix); ok {
			out = append(out, name)
		}
	}
	return out, err
}
