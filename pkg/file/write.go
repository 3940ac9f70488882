// SPDX-License-Identifier: Apache-2.0

// Package file replaces files by one rename, takes file locks, says who owns a directory, and knows what a full file system says.
//
// Everything that keeps state of the node in files uses it: the loader, the attachment records, the plugins and the agent.
// It knows no format and no path, and imports no other package of Sluice.
package file

import (
	"os"
	"path/filepath"
	"strings"
)

// Options say how Write replaces a file. The zero value makes a file of mode 0600 that may be lost with the power.
type Options struct {
	// Temp is what the file is called until it is whole, in the directory of its path. The empty name is that of the path
	// with ".new" behind it. The caller has a lock, so that no other process uses the name, and the next Write takes over
	// what a killed one left there. A Temp with a "*" needs no lock: each Write has a name of its own, as of os.CreateTemp.
	// The caller then sweeps what killed ones left.
	Temp string
	// Mode is that of the file, 0: 0600. With a "*" in Temp the umask does not count.
	Mode os.FileMode
	// Sync is what survives a loss of power.
	Sync Sync
}

// Sync is what Write waits for.
type Sync int

// A Write without SyncContent may leave an empty file after a loss of power, one without SyncName the old one.
const (
	NoSync Sync = iota
	SyncContent
	SyncName // and the content
)

// Write makes content the file at path by one rename: a reader gets the old content or the new, also after a crash. A symbolic link at
// path is replaced, not followed. On an error nothing is left, because half a file must not take the last room of a file system.
func Write(path string, content []byte, o Options) (err error) {
	f, err := o.create(path)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	if _, err = f.Write(content); err == nil && o.Sync != NoSync {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err == nil && o.Sync == SyncName {
		err = syncDir(filepath.Dir(path))
	}
	return err
}

func (o Options) create(path string) (*os.File, error) {
	dir, name, mode := filepath.Dir(path), o.Temp, o.Mode
	if name == "" {
		name = filepath.Base(path) + ".new"
	}
	if mode == 0 {
		mode = privateMode
	}
	if !strings.Contains(name, "*") {
		return os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	}
	f, err := os.CreateTemp(dir, name)
	if err != nil || mode == privateMode {
		return f, err
	}
	if err := f.Chmod(mode); err != nil {
		_ = f.Close()
		_ = os.Remove(f.Name())
		return nil, err
	}
	return f, nil
}

// privateMode is that of os.CreateTemp.
const privateMode os.FileMode = 0o600

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
