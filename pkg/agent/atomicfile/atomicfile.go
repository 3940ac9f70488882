// SPDX-License-Identifier: Apache-2.0

// Package atomicfile replaces a whole file by one rename: a reader gets the old content or the new, also after a crash.
//
// The agent's rooms write the network's configuration and the node's by it. Their files have one writer, so there is no lock.
package atomicfile

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// temporary is the end of a name that no runtime reads as a configuration.
const temporary = ".sluice-agent"

// Read returns the content of the file at path, and nil if there is none.
func Read(path string) ([]byte, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return content, err
}

// Write makes content the file at path, with that mode, and makes its directory if it is missing. changed is false if it was the
// content already. A symbolic link at path is replaced, not followed.
func Write(path string, content []byte, mode os.FileMode) (changed bool, err error) {
	old, err := Read(path)
	if err != nil {
		return false, err
	}
	if old != nil && bytes.Equal(old, content) {
		return false, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // runtimes of any user look into it
		return false, err
	}
	CleanUp(path)
	if err := replace(path, content, mode); err != nil {
		return false, err
	}
	return true, nil
}

func replace(path string, content []byte, mode os.FileMode) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, pattern(path))
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

func pattern(path string) string { return "." + filepath.Base(path) + ".*" + temporary }

// Remove removes the file at path, and what a killed Write left beside it. Nothing there is success.
func Remove(path string) error {
	CleanUp(path)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// CleanUp removes what a killed Write left beside path.
func CleanUp(path string) {
	left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), pattern(path)))
	for _, name := range left {
		_ = os.Remove(name)
	}
}
