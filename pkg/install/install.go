// SPDX-License-Identifier: Apache-2.0

// Package install lays a multi-call binary into a directory under the names of
// its plugins. It owns the temporary names it makes there (".sluice-install.*")
// and imports none of our packages.
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
	// Linked: the name is now a hard link to the given binary.
	Linked Action = "linked"
	// Copied: the directory is on another file system; the name is a copy, or
	// a hard link to the copy another name got.
	Copied Action = "copied"
	// Unchanged: the name was this binary already.
	Unchanged Action = "unchanged"
)

// Result is the outcome for one name.
type Result struct {
	Name     string `json:"name"`
	Path     string `json:"path"`
	Action   Action `json:"action"`
	Replaced bool   `json:"replaced"` // another file had the name before
}

// Install makes every name in dir (created when missing) the binary at
// selfPath. Each name is replaced by one rename, so a runtime that starts a
// plugin meanwhile gets the old file or the new one, never a part. Everything
// is prepared under temporary names first: when that fails, nothing has
// changed. When a rename fails, the results tell which names are done. A name
// that is a directory is refused. Symbolic links are never made: they would
// break when the binary moves.
func Install(dir, selfPath string, names []string) (results []Result, err error) {
	self, err := filepath.EvalSymlinks(selfPath)
	if err != nil {
		return nil, fmt.Errorf("find the binary: %w", err)
	}
	selfInfo, err := os.Stat(self)
	if err != nil {
		return nil, fmt.Errorf("find the binary: %w", err)
	}
	if !selfInfo.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", self)
	}
	unlock, err := prepare(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	s := &stage{dir: dir, self: self, selfInfo: selfInfo}
	defer s.cleanUp()
	for _, n := range names {
		if err := s.add(n); err != nil {
			return nil, err
		}
	}
	return s.commit()
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
	dir, self string
	selfInfo  fs.FileInfo
	source    string // what further names are linked to; a copy when not self
	pending   []pending
}

type pending struct {
	result Result
	temp   string // empty: nothing to do
}

func (s *stage) add(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsRune(name, '/') || strings.HasPrefix(name, tempPrefix) {
		return fmt.Errorf("%q is no name for a plugin", name)
	}
	p := pending{result: Result{Name: name, Path: filepath.Join(s.dir, name), Action: Unchanged}}
	old, err := os.Lstat(p.result.Path)
	switch {
	case err == nil && old.IsDir():
		return fmt.Errorf("%s is a directory and is left alone", p.result.Path)
	case err == nil && os.SameFile(old, s.selfInfo):
		s.pending = append(s.pending, p)
		return nil
	case err == nil:
		p.result.Replaced = true
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	p.temp = filepath.Join(s.dir, tempPrefix+name)
	p.result.Action, err = s.make(p.temp)
	if err != nil {
		return fmt.Errorf("prepare %s: %w", p.result.Path, err)
	}
	s.pending = append(s.pending, p)
	return nil
}

// make lays the binary under a temporary name. Where a hard link to the binary
// is impossible (another file system, or one without links) the first name
// gets a copy and the others are linked to it, so that all are one file: the
// in-process call of IPAM depends on that.
func (s *stage) make(temp string) (Action, error) {
	if s.source == "" {
		if os.Link(s.self, temp) == nil {
			return Linked, nil
		}
		if err := copyFile(s.self, temp); err != nil {
			return "", err
		}
		s.source = temp
		return Copied, nil
	}
	if os.Link(s.source, temp) == nil {
		return Copied, nil
	}
	return Copied, copyFile(s.self, temp)
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
