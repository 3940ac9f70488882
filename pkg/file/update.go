// SPDX-License-Identifier: Apache-2.0

package file

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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

// ReadLine returns the content of a small file without the space around it. It is empty if the file cannot be read.
func ReadLine(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}

// Update is Write for a file with one writer, and without a lock: the node agent's. It makes the directory if it is missing, and survives
// a loss of power. changed is false if the file had that content already.
func Update(path string, content []byte, mode os.FileMode) (changed bool, err error) {
	old, err := Read(path)
	if err != nil {
		return false, err
	}
	if old != nil && bytes.Equal(old, content) {
		return false, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return false, err
	}
	sweep(path)
	if err := Write(path, content, Options{Temp: pattern(path), Mode: mode, Sync: SyncName}); err != nil {
		return false, err
	}
	return true, nil
}

// Discard removes a file of Update, and what a killed Update left beside it. Nothing there is success.
func Discard(path string) error {
	sweep(path)
	return Remove(path)
}

// Remove removes the file at path. Nothing there is success.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func pattern(path string) string { return "." + filepath.Base(path) + ".*" + temporary }

func sweep(path string) {
	left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), pattern(path)))
	for _, name := range left {
		_ = os.Remove(name)
	}
}
