// SPDX-License-Identifier: Apache-2.0

// Package install lays multi-call binaries into a directory under the names of
// their plugins: one copy of each, and hard links to it. It owns the temporary
// names it makes there (".sluice-install.*").
//
// A copy is right even where a link to the binary would do: what is built or
// unpacked over the binary later does not reach the plugins in use. And it is
// faster, see copyTo.
package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-cni/sluice/pkg/filelock"
)

const tempPrefix = ".sluice-install."

// Action says what happened to one name.
type Action string

const (
	// Copied: the name is now a copy of its binary, or a hard link to the copy
	// that lies in the directory under another name.
	Copied Action = "copied"
	// Unchanged: the name was that copy already.
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
// break when the binary moves. The wait for another Install ends with ctx.
func Install(ctx context.Context, dir string, sources ...Source) (results []Result, err error) {
	binaries := make([]binary, len(sources))
	for i, src := range sources {
		if binaries[i], err = load(src.Path); err != nil {
			return nil, err
		}
	}
	unlock, err := prepare(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	s := &stage{dir: dir}
	defer s.cleanUp()
	for i, src := range sources {
		if err := binaries[i].findCopy(dir); err != nil {
			return nil, err
		}
		for _, n := range src.Names {
			if err := s.add(&binaries[i], n); err != nil {
				return nil, err
			}
		}
	}
	return s.commit()
}

// mode is that of every copy, whatever the umask of who installs: runtimes of any user start it.
const mode = 0o755

// binary is a file that gets names.
type binary struct {
	source  fs.FileInfo // never linked to: what is written over it later would reach the plugins
	content []byte
	laid    string // what names are linked to: its copy in the directory, empty as long as there is none
}

func load(path string) (binary, error) {
	info, err := os.Stat(path)
	if err != nil {
		return binary{}, fmt.Errorf("find the binary: %w", err)
	}
	if !info.Mode().IsRegular() {
		return binary{}, fmt.Errorf("%s is not a regular file", path)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return binary{}, fmt.Errorf("read the binary: %w", err)
	}
	return binary{source: info, content: content}, nil
}

// findCopy looks for the binary in the directory: names that are laid one by one
// are one file too, which the in-process call of IPAM depends on.
func (b *binary) findCopy(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return err
		}
		if info.Mode() != mode || info.Size() != int64(len(b.content)) || os.SameFile(info, b.source) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if content, err := os.ReadFile(path); err == nil && bytes.Equal(content, b.content) {
			b.laid = path
			return nil
		}
	}
	return nil
}

// prepare makes and locks the directory and removes what a killed Install left.
func prepare(ctx context.Context, dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // runtimes of any user look into it
		return nil, err
	}
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := filelock.Lock(ctx, d); err != nil {
		return nil, fmt.Errorf("lock %s, which another install may hold: %w", dir, err)
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
	case err == nil && (b.isCopy(old) || old.Mode() == mode && os.SameFile(old, b.source)): // the source itself has its name already
		s.pending = append(s.pending, p)
		return nil
	case err == nil:
		p.result.Replaced = true
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	p.temp = filepath.Join(s.dir, tempPrefix+name)
	p.result.Action = Copied
	if err := b.lay(p.temp); err != nil {
		return fmt.Errorf("prepare %s: %w", p.result.Path, err)
	}
	s.pending = append(s.pending, p)
	return nil
}

func (b *binary) isCopy(old fs.FileInfo) bool {
	if b.laid == "" {
		return false
	}
	info, err := os.Lstat(b.laid)
	return err == nil && os.SameFile(old, info)
}

// lay gives the binary a temporary name. The first is a copy and the others are
// linked to it; a file system without hard links gets more copies.
func (b *binary) lay(temp string) error {
	if b.laid != "" && os.Link(b.laid, temp) == nil {
		return nil
	}
	if err := copyTo(temp, b.content); err != nil {
		return err
	}
	b.laid = temp
	return nil
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

// copyTo writes the file by one write(2): so a file system that can (xfs since Linux
// 5.18, ext4 since 6.16) keeps it in the page cache in pieces of up to 2 MiB, as long
// as it stays there, and a new process maps its program with a third of the faults.
// What the linker wrote, or came in small writes, lies there in single pages.
func copyTo(path string, content []byte) (err error) {
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
	if _, err = out.Write(content); err != nil {
		return err
	}
	if err = out.Chmod(mode); err != nil {
		return err
	}
	return out.Sync()
}
