// SPDX-License-Identifier: Apache-2.0

// Package image makes what a guest boots: the ELF kernel out of a bzImage, and
// an initramfs out of modules, tools of this machine and test binaries. The
// parts are separate cpio archives, since the kernel takes them concatenated
// (Documentation/driver-api/early-userspace/buffer-format.rst) and only the last
// part changes from run to run.
package image

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
)

// Archive writes a cpio archive in the "newc" format, uncompressed. Parent
// directories are made as needed. Paths have no leading slash.
type Archive struct {
	w     *bufio.Writer
	file  *os.File
	inode int
	dirs  map[string]bool
	err   error
}

// Create starts an archive in a new file. The caller must Close it.
func Create(name string) (*Archive, error) {
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	return &Archive{w: bufio.NewWriterSize(f, 1<<20), file: f, dirs: map[string]bool{".": true}}, nil
}

// Close ends the archive and returns the first error of all of its methods.
func (a *Archive) Close() error {
	a.header("TRAILER!!!", 0, 1, 0)
	a.pad(512) // the next archive may follow
	if err := a.w.Flush(); a.err == nil {
		a.err = err
	}
	if err := a.file.Close(); a.err == nil {
		a.err = err
	}
	return a.err
}

const (
	modeDir     = 0o040000
	modeFile    = 0o100000
	modeSymlink = 0o120000
)

// Dir makes a directory and its parents, unless they are there.
func (a *Archive) Dir(name string) {
	name = path.Clean(name)
	if a.dirs[name] {
		return
	}
	a.Dir(path.Dir(name))
	a.dirs[name] = true
	a.header(name, modeDir|0o755, 2, 0)
}

// Symlink makes a symbolic link. Its name then counts as a directory, so that
// nothing is made in its place.
func (a *Archive) Symlink(target, name string) {
	a.Dir(path.Dir(name))
	a.dirs[name] = true
	a.header(name, modeSymlink|0o777, 1, len(target))
	a.data(strings.NewReader(target), len(target))
}

// Text makes a file with the given permissions.
func (a *Archive) Text(name, content string, perm os.FileMode) {
	a.Dir(path.Dir(name))
	a.header(name, modeFile|int(perm.Perm()), 1, len(content))
	a.data(strings.NewReader(content), len(content))
}

// File copies a file of the machine, following links.
func (a *Archive) File(from, name string) { a.Files(from, name) }

// Files copies a file of the machine to several names, which are hard links to
// one another.
func (a *Archive) Files(from string, names ...string) {
	if a.err != nil {
		return
	}
	f, err := os.Open(from)
	if err != nil {
		a.err = err
		return
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		a.err = err
		return
	}
	if !st.Mode().IsRegular() {
		a.err = fmt.Errorf("%s is no regular file", from)
		return
	}
	a.inode++
	inode := a.inode
	for i, name := range names {
		a.Dir(path.Dir(name))
		size := 0
		if i == len(names)-1 { // the kernel takes the content from the last one
			size = int(st.Size())
		}
		a.entry(name, inode, modeFile|int(st.Mode().Perm()), len(names), size)
		if size > 0 {
			a.data(f, size)
		}
	}
}

func (a *Archive) header(name string, mode, links, size int) {
	a.inode++
	a.entry(name, a.inode, mode, links, size)
}

// entry writes the 110 bytes of struct cpio_newc_header and the name, padded to
// four bytes together. Owner, time and device numbers are 0.
func (a *Archive) entry(name string, inode, mode, links, size int) {
	if a.err != nil {
		return
	}
	const fixed = 110
	_, a.err = fmt.Fprintf(a.w, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		inode, mode, 0, 0, links, 0, size, 0, 0, 0, 0, len(name)+1, 0, name)
	a.zeros(-(fixed + len(name) + 1) & 3)
}

func (a *Archive) data(r io.Reader, size int) {
	if a.err != nil {
		return
	}
	n, err := io.CopyN(a.w, r, int64(size))
	if err != nil {
		a.err = fmt.Errorf("%d of %d bytes: %w", n, size, err)
		return
	}
	a.zeros(-size & 3)
}

func (a *Archive) zeros(n int) {
	if a.err == nil {
		_, a.err = a.w.Write(make([]byte, n))
	}
}

// pad is a gap that the kernel skips between archives: zeros.
func (a *Archive) pad(n int) { a.zeros(n) }
