// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/file"
)

// Who has which address is not in the file of the pool but beside it, in a file for each attachment. So an ADD reads and
// writes the same amount on a node with 10 pods and on one with 700. docs/dev/adr/0040-cluster-addresses.md has the order of
// writes.

// attachment is the content of one of these files. Uses of another boot do not count: their pods are gone.
type attachment struct {
	Boot string   `json:"boot"`
	Uses []useRow `json:"uses"`
}

type useRow struct {
	Offset uint64 `json:"offset"`
	Use
}

const (
	usesSuffix = ".used"
	newUse     = ".new" // no attachment's file has this name
)

// useName is the name of an attachment's file. IDs of containers and names of interfaces are the runtime's, so they are
// hashed.
func useName(containerID, ifName string) string { return longHash(containerID + "/" + ifName) }

func (f *File) usesDir() string { return strings.TrimSuffix(f.path, suffix) + usesSuffix }

// loadUses reads the files of all attachments.
func (f *File) loadUses() error {
	entries, err := os.ReadDir(f.usesDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f.partial = false
	for _, e := range entries {
		if e.Name() == newUse {
			continue
		}
		if err := f.loadUse(e.Name()); err != nil {
			return err
		}
	}
	return nil
}

// loadUse reads the file of one attachment, if there is one.
func (f *File) loadUse(name string) error {
	if _, done := f.written[name]; done {
		return nil
	}
	path := filepath.Join(f.usesDir(), name)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var a attachment
	if err := json.Unmarshal(text, &a); err != nil {
		return fmt.Errorf("%s: %w; if the container is gone, remove the file", path, err)
	}
	f.written[name] = text
	if a.Boot != f.Boot {
		return nil
	}
	for _, row := range a.Uses {
		if u, ok := f.Used[row.Offset]; ok && u != row.Use {
			return fmt.Errorf("%s: offset %d is also container %s interface %s; remove the file of the container that is gone", path, row.Offset, u.ContainerID, u.IfName)
		}
		if useName(row.ContainerID, row.IfName) != name {
			return fmt.Errorf("%s: not the file of container %s interface %s", path, row.ContainerID, row.IfName)
		}
		f.Used[row.Offset] = row.Use
	}
	return nil
}

// wantedUses returns the content of each attachment's file.
func (f *File) wantedUses() (map[string][]byte, error) {
	all := map[string]*attachment{}
	for _, off := range slices.Sorted(maps.Keys(f.Used)) {
		u := f.Used[off]
		name := useName(u.ContainerID, u.IfName)
		if all[name] == nil {
			all[name] = &attachment{Boot: f.Boot}
		}
		all[name].Uses = append(all[name].Uses, useRow{off, u})
	}
	out := make(map[string][]byte, len(all))
	for name, a := range all {
		text, err := json.Marshal(a)
		if err != nil {
			return nil, err
		}
		out[name] = append(text, '\n')
	}
	return out, nil
}

// writeUses replaces the files that differ.
func (f *File) writeUses(want map[string][]byte) error {
	for name, text := range want {
		if bytes.Equal(f.written[name], text) {
			continue
		}
		path := filepath.Join(f.usesDir(), name)
		err := file.Write(path, text, file.Options{Temp: newUse})
		if errors.Is(err, fs.ErrNotExist) {
			if err = os.MkdirAll(f.usesDir(), 0o700); err == nil {
				err = file.Write(path, text, file.Options{Temp: newUse})
			}
		}
		if err != nil {
			return err
		}
		f.written[name] = text
	}
	return nil
}

// removeUses removes the files of attachments that have nothing any more. released chooses those whose addresses the node
// still has.
func (f *File) removeUses(want map[string][]byte, released bool) error {
	for name, text := range f.written {
		if _, ok := want[name]; ok || f.stillClaimed(text) != released {
			continue
		}
		if err := file.Remove(filepath.Join(f.usesDir(), name)); err != nil {
			return err
		}
		delete(f.written, name)
	}
	return nil
}

// stillClaimed reports whether the node still has an address of an attachment's file.
func (f *File) stillClaimed(text []byte) bool {
	var a attachment
	_ = json.Unmarshal(text, &a) // it was read before
	return a.Boot == f.Boot && slices.ContainsFunc(a.Uses, func(r useRow) bool {
		_, ok := f.Owns(r.Offset)
		return ok
	})
}
