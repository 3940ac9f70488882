// SPDX-License-Identifier: Apache-2.0

// Package install lays multi-call binaries into a directory under the names of
// their plugins. It owns the temporary names it makes there (".sluice-install.*").
package install

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const tempPrefix = ".sluice-install."

// Action says what happened to one name.
type Action string

const (
	// Linked: the name is now a hard link to its binary.
	Linked Action = "linked"
	// Copied: the directory is on another file system; the name is a copy, or
	// a hard link to the copy another name got.
	Copied Action = "copied"
	// Unchanged: the name was its binary already.
	Unchanged Action = "unchanged"
)

// Result is the outcome for one name.
type Result struct {
	Name     string `json:"name"`
	Path     string `json:"path"`
	Action   Action `json:"action"`
	Replaced bool   `json:"replaced"` // another file had the name before
}

// Source is a binary and the names it gets.
type Source struct {
	Path  string
	Names []string
}

// Install makes every name in dir (created when missing) the binary of its
// source. Each name is replaced by one rename, so a runtime that starts a
// plugin meanwhile gets the old file or the new one, never a part. Everything
// is prepared under temporary names first: when that fails, nothing has
// changed. When a rename fails, the results tell which names are done. A name
// that is a directory is refused. Symbolic links are never made: they would
// break when the binary moves.
func Install(dir string, sources ...Source) (results []Result, err error) {
	binaries := make([]binary, len(sources))
	for i, src := range sources {
		if binaries[i], err = find(src.Path); err != nil {
			return nil, err
		}
	}
	unlock, err := prepare(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	s := &stage{dir: dir}
	defer s.cleanUp()
	for i, src := range sources {
		for _, n := range src.Names {
			if err := s.add(&binaries[i], n); err != nil {
				return nil, err
			}
		}
	}
	return s.commit()
}

// binary is a file that gets names.
type binary struct {
	path   string
	info   fs.FileInfo
	source string // what further names are linked to; a copy when not path
}

func find(path string) (binary, error) {
	self, err := filepath.EvalSymlinks(path)
	if err != nil {
		return binary{}, fmt.Errorf("find the binary: %w", err)
	}
	info, err := os.Stat(self)
	if err != nil {
		return binary{}, fmt.Errorf("find the binary: %w", err)
	}
	if !info.Mode().IsRegular() {
		return binary{}, fmt.Errorf("%s is not a regular file", self)
	}
	return binary{path: self, info: info}, nil
}

// prepare makes and locks the directory and removes what a killed Install left.
func prepare(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // runtimes of any user look into it
		return nil, err
	}
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX); err != nil {
		d.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		d.Close()
		return nil, err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix) {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
	return func() { d.Close() }, nil
}

// stage holds the names that are ready under temporary names.
type stage struct {
	dir     string
	pending []pending
}

type pending struct {
	result Result
	temp   string // empty: nothing to do
}

func (s *stage) add(b *binary, name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsRune(name, '/') || strings.HasPrefix(name, tempPrefix) {
		return fmt.Errorf("%q is no name for a plugin", name)
	}
	p := pending{result: Result{Name: name, Path: filepath.Join(s.dir, name), Action: Unchanged}}
	old, err := os.Lstat(p.result.Path)
	switch {
	case err == nil && old.IsDir():
		return fmt.Errorf("%s is a directory and is left alone", p.result.Path)
	case err == nil && os.SameFile(old, b.info):
		s.pending = append(s.pending, p)
		return nil
	case err == nil:
		p.result.Replaced = true
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	p.temp = filepath.Join(s.dir, tempPrefix+name)
	p.result.Action, err = b.lay(p.temp)
	if err != nil {
		return fmt.Errorf("prepare %s: %w", p.result.Path, err)
	}
	s.pending = append(s.pending, p)
	return nil
}

// lay gives the binary a temporary name. Where a hard link to the binary
// is impossible (another file system, or one without links) the first name
// gets a copy and the others are linked to it, so that all are one file: the
// in-process call of IPAM depends on that.
func (b *binary) lay(temp string) (Action, error) {
	if b.source == "" {
		if os.Link(b.path, temp) == nil {
			return Linked, nil
		}
		if err := copyFile(b.path, temp); err != nil {
			return "", err
		}
		b.source = temp
		return Copied, nil
	}
	if os.Link(b.source, temp) == nil {
		return Copied, nil
	}
	return Copied, copyFile(b.path, temp)
}

func (s *stage) commit() ([]Result, error) {
	var done []Result
	for i := range s.pending {
		p := &s.pending[i]
		if p.temp != "" {
			if err := os.Rename(p.temp, p.result.Path); err != nil {
				return done, err
			}
			// rename does nothing when both names are one file already.
			_ = os.Remove(p.temp)
			p.temp = ""
		}
		done = append(done, p.result)
	}
	return done, nil
}

func (s *stage) cleanUp() {
	for _, p := range s.pending {
		if p.temp != "" {
			_ = os.Remove(p.temp)
		}
	}
}

func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o700)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := out.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			_ = os.Remove(to)
		}
	}()
	if _, err = io.Copy(out, in); err != nil {
		return err
	}
	// The mode does not depend on the umask of whoever installs.
	if err = out.Chmod(0o755); err != nil {
		return err
	}
	return out.Sync()
}
