// SPDX-License-Identifier: Apache-2.0

package file

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// IsFull reports whether a write failed because the file system, or the user's quota, is full.
func IsFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// Overwrite replaces the content of an existing file with one write and without truncation, which needs no free block.
// A DEL notes by it what it has removed when the disk is full.
// Spaces fill what is left of the old content. Content that is longer than the file is an error, ENOSPC.
func Overwrite(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	old, err := f.Stat()
	if err != nil {
		return err
	}
	spare := int(old.Size()) - len(content)
	if spare < 0 {
		return &fs.PathError{Op: "overwrite", Path: path, Err: unix.ENOSPC}
	}
	_, err = f.WriteAt(slices.Concat(content, bytes.Repeat([]byte(" "), spare)), 0)
	return err
}
