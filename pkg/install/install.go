// SPDX-License-Identifier: Apache-2.0

// Package install puts the plugins into a directory of CNI plugins: each program as a copy, and each plugin name as a file of its
// own that starts its program. "sluice install" uses it. It owns the names in the directory that begin with ".sluice-install.".
//
// Each name is a separate file, because installers of other suites copy over names in place ("cp -f flannel /opt/cni/bin/flannel").
// With hard or symbolic links such a copy would replace every plugin at once.
package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/sluice-cni/sluice/pkg/file"
)

const (
	tempPrefix = ".sluice-install."
	// lockName is only readable by root. The directory itself cannot be the lock: every local user may read it, and who can
	// open a file can hold a lock on it.
	lockName = tempPrefix + "lock"
)

// Action says what happened to one name.
type Action string

const (
	// Installed means that the name is a new file.
	Installed Action = "installed"
	// Unchanged means that the name had the right content and mode already.
	Unchanged Action = "unchanged"
)

// Result is the outcome for one name.
type Result struct {
	Name     string `json:"name"`
	Path     string `json:"path"`
	Action   Action `json:"action"`
	Replaced bool   `json:"replaced"` // another file had the name before
}

// Source is a program and the plugins that it implements.
type Source struct {
	Path    string   // of the program's file
	Program string   // its name in the directory; empty: the last element of Path
	Names   []string // the plugins that get a file that starts the program
}

// Options say how Install works. The zero value is right on the node itself.
type Options struct {
	// RuntimeDir is the directory as the container runtime sees it, where that differs: an installer in a container has it
	// mounted elsewhere. Empty means dir.
	RuntimeDir string
}

// Install makes each program of sources a file in dir, and each plugin name a file that starts its program. It creates dir if it is
// missing. One rename replaces one name, so a runtime that starts a plugin at that moment gets the old or the new file, never a part.
//
// All files are prepared under temporary names first. If that fails, nothing has changed. If a rename fails, the results say which
// names are done. The error names a directory that has a plugin's name. ctx bounds the wait for another Install.
func Install(ctx context.Context, dir string, o Options, sources ...Source) (results []Result, err error) {
	runtimeDir := o.RuntimeDir
	if runtimeDir == "" {
		if runtimeDir, err = filepath.Abs(dir); err != nil {
			return nil, err
		}
	}
	if !filepath.IsAbs(runtimeDir) {
		return nil, fmt.Errorf("runtime directory %q: must be absolute", runtimeDir)
	}
	for _, src := range sources {
		if err := check(src.Path); err != nil {
			return nil, err
		}
	}
	unlock, err := prepare(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	s := &stage{dir: dir, added: map[string]bool{}}
	defer s.cleanUp()
	for _, src := range sources {
		if err := s.addSource(src, runtimeDir); err != nil {
			return nil, err
		}
	}
	return s.commit()
}

// mode is the mode of every file, whatever the installer's umask is: a runtime of any user starts plugins.
const mode = 0o755

func check(program string) error {
	info, err := os.Stat(program)
	if err != nil {
		return fmt.Errorf("find the program: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", program)
	}
	return nil
}

// content is that of a file: text, or what another file has. The node agent may have less memory than one program takes, so a program is
// read in pieces.
type content struct {
	text []byte
	file string // if text is nil
}

// pieceSize is that of the largest folio of the page cache. File systems with large folios (xfs since Linux 5.18, ext4 since 6.16) keep a
// file in the pieces that write(2) has brought, up to this size. A process that starts from it then has a third of the page faults.
const pieceSize = 2 << 20

// writeTo writes the content to an empty file.
func (c content) writeTo(out io.Writer) error {
	if c.text != nil {
		_, err := out.Write(c.text)
		return err
	}
	in, err := os.Open(c.file)
	if err != nil {
		return fmt.Errorf("read the program: %w", err)
	}
	defer in.Close()
	for piece := make([]byte, pieceSize); ; {
		n, err := io.ReadFull(in, piece)
		if err != nil && !ended(err) {
			return fmt.Errorf("read the program: %w", err)
		}
		if _, err := out.Write(piece[:n]); err != nil {
			return err
		}
		if err != nil {
			return nil
		}
	}
}

// ended says that a file has no more than was read.
func ended(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

// is reports whether the file at path, of that size, has the content.
func (c content) is(path string, size int64) bool {
	if c.text != nil {
		have, err := os.ReadFile(path)
		return err == nil && bytes.Equal(have, c.text)
	}
	a, err := os.Open(path)
	if err != nil {
		return false
	}
	defer a.Close()
	b, err := os.Open(c.file)
	if err != nil {
		return false
	}
	defer b.Close()
	if info, err := b.Stat(); err != nil || info.Size() != size {
		return false
	}
	const piece = 64 << 10
	for one, two := make([]byte, piece), make([]byte, piece); ; {
		n, errA := io.ReadFull(a, one)
		m, errB := io.ReadFull(b, two)
		if !bytes.Equal(one[:n], two[:m]) {
			return false
		}
		if errA != nil || errB != nil {
			return ended(errA) && ended(errB)
		}
	}
}

// prepare makes and locks the directory and removes what a killed Install left.
func prepare(ctx context.Context, dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // runtimes of any user look into it
		return nil, err
	}
	lock, err := file.AcquireLock(ctx, filepath.Join(dir, lockName))
	if err != nil {
		return nil, fmt.Errorf("another install may be running: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		lock.Close()
		return nil, err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix) && e.Name() != lockName {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
	return func() { lock.Close() }, nil
}

// stage holds the names that are ready under temporary names.
type stage struct {
	dir     string
	added   map[string]bool // a program that several sources name is installed once
	pending []pending
}

type pending struct {
	result Result
	temp   string // empty: nothing to do
}

// addSource prepares a program and its plugins. The program comes first: a new starter must not find an old program.
func (s *stage) addSource(src Source, runtimeDir string) error {
	name := src.Program
	if name == "" {
		name = filepath.Base(src.Path)
	}
	program := content{file: src.Path}
	if err := s.add(name, program); err != nil {
		return err
	}
	plugin := program
	if starter, ok := Starter(filepath.Join(runtimeDir, name)); ok {
		plugin = content{text: starter}
	}
	for _, n := range src.Names {
		if err := s.add(n, plugin); err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) add(name string, c content) error {
	if name == "" || name == "." || name == ".." || strings.ContainsRune(name, '/') || strings.HasPrefix(name, tempPrefix) {
		return fmt.Errorf("%q is not a plugin name", name)
	}
	if s.added[name] {
		return nil
	}
	s.added[name] = true
	p := pending{result: Result{Name: name, Path: filepath.Join(s.dir, name), Action: Unchanged}}
	old, err := os.Lstat(p.result.Path)
	switch {
	case err == nil && old.IsDir():
		return fmt.Errorf("%s is a directory; Install does not replace it", p.result.Path)
	case err == nil && upToDate(p.result.Path, old, c):
		s.pending = append(s.pending, p)
		return nil
	case err == nil:
		p.result.Replaced = true
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	p.temp = filepath.Join(s.dir, tempPrefix+name)
	p.result.Action = Installed
	if err := copyTo(p.temp, c); err != nil {
		return fmt.Errorf("prepare %s: %w", p.result.Path, err)
	}
	s.pending = append(s.pending, p)
	return nil
}

// upToDate reports whether the file has the content and the mode already, and shares its inode with no other name.
func upToDate(path string, info fs.FileInfo, c content) bool {
	if info.Mode() != mode {
		return false
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink != 1 {
		return false
	}
	return c.is(path, info.Size())
}

func (s *stage) commit() ([]Result, error) {
	var done []Result
	for i := range s.pending {
		p := &s.pending[i]
		if p.temp != "" {
			if err := os.Rename(p.temp, p.result.Path); err != nil {
				return done, err
			}
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

// copyTo makes a file of that content. What fails leaves none.
func copyTo(path string, c content) (err error) {
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o700)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := out.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			_ = os.Remove(path)
		}
	}()
	if err = c.writeTo(out); err != nil {
		return err
	}
	if err = out.Chmod(mode); err != nil {
		return err
	}
	return out.Sync()
}
