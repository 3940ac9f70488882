// SPDX-License-Identifier: Apache-2.0

// Package installer keeps the plugins in the node's directory of CNI plugins: it installs them, sees when a third party removes or
// overwrites one, and installs them again.
//
// pkg/install has the files and their order. The package touches no file that is not a plugin of Sluice, and none that has a plugin's name
// but belongs to flannel.
package installer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/sluice-cni/sluice/pkg/install"
	"github.com/sluice-cni/sluice/pkg/log"
)

const (
	// checkEvery finds what inotify does not tell: the directory itself was replaced, or it lies on a network file system.
	checkEvery = 2 * time.Second
	// calm is how long a third party that writes several files is waited for.
	calm = 200 * time.Millisecond
)

// Installer installs into one directory. Ensure and Run may be called at the same time.
type Installer struct {
	from, dir, runtimeDir string
	log                   *log.Logger
	changed               chan struct{}

	mu        sync.Mutex
	installed map[string]mark // by path
}

// mark is what changes when a file's content does.
type mark struct {
	inode, size uint64
	mode        uint32
	mtime       syscall.Timespec
	ctime       syscall.Timespec
}

// New returns an Installer of the programs in from. dir is the directory as this process sees it, runtimeDir as the runtime does.
func New(from, dir, runtimeDir string, l *log.Logger) *Installer {
	return &Installer{from: from, dir: dir, runtimeDir: runtimeDir, log: l, changed: make(chan struct{}, 1)}
}

// Changed gets a value when files that Ensure has installed are missing or foreign.
func (i *Installer) Changed() <-chan struct{} { return i.changed }

// Ensure makes the files what they must be. It returns the names that were not, and only looks at the files' inodes if all are.
func (i *Installer) Ensure(ctx context.Context) (written []string, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.intact() {
		return nil, nil
	}
	names, err := i.names()
	if err != nil {
		return nil, err
	}
	defer debug.FreeOSMemory() // the programs were in memory one after the other, once for a long time
	results, err := install.Install(ctx, i.dir, install.Options{RuntimeDir: i.runtimeDir}, install.Sources(i.from, names)...)
	for _, r := range results {
		if r.Action == install.Installed {
			written = append(written, r.Name)
		}
	}
	if err != nil {
		i.installed = nil
		return written, fmt.Errorf("install the plugins into %s: %w", i.dir, err)
	}
	i.installed = map[string]mark{}
	for _, r := range results {
		m, err := look(r.Path)
		if err != nil {
			i.installed = nil
			return written, fmt.Errorf("%s is gone again: %w", r.Path, err)
		}
		i.installed[r.Path] = m
	}
	return written, nil
}

// flannelPlugin has one name in Sluice and in flannel, whose DaemonSet copies its own at each start. Both do the same.
const flannelPlugin = "flannel"

// names are the plugins to install: all but a flannel that is not Sluice's.
func (i *Installer) names() ([]string, error) {
	names := install.Plugins()
	path := filepath.Join(i.dir, flannelPlugin)
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return names, nil
	case err != nil:
		return nil, err
	case info.Mode().IsRegular() && install.Interpreter(path, info) == filepath.Join(i.runtimeDir, install.Multicall):
		return names, nil
	}
	return slices.DeleteFunc(names, func(n string) bool { return n == flannelPlugin }), nil
}

// intact says that all files are as Ensure left them.
func (i *Installer) intact() bool {
	for path, want := range i.installed {
		if m, err := look(path); err != nil || m != want {
			// A flannel that came from elsewhere stays: Ensure leaves it out from now on.
			return false
		}
	}
	return len(i.installed) > 0
}

func look(path string) (mark, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return mark{}, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return mark{}, fmt.Errorf("%s: no inode", path)
	}
	return mark{st.Ino, uint64(st.Size), st.Mode, st.Mtim, st.Ctim}, nil // a size is not negative
}

// Run watches the directory until ctx ends, and fills Changed. It installs nothing itself.
func (i *Installer) Run(ctx context.Context) error {
	w, err := fsnotify.NewWatcher()
	if err != nil { // no inotify instance left for root: the checks remain
		i.log.Warn("the plugins' directory is checked, not watched", log.Error(err))
		w = &fsnotify.Watcher{}
	} else {
		defer w.Close()
	}
	check := time.NewTicker(checkEvery)
	defer check.Stop()
	var watched mark
	var soon <-chan time.Time
	for {
		if m, err := look(i.dir); err == nil && m.inode != watched.inode && w.Events != nil {
			if err := w.Add(i.dir); err == nil {
				watched = m
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-w.Events:
			if soon == nil {
				soon = time.After(calm)
			}
			continue
		case err := <-w.Errors: // the queue was full: the next check sees what was lost
			i.log.Debug("watch of the plugins' directory", log.Error(err))
			continue
		case <-soon:
			soon = nil
		case <-check.C:
		}
		i.tell()
	}
}

func (i *Installer) tell() {
	i.mu.Lock()
	broken := len(i.installed) > 0 && !i.intact()
	i.mu.Unlock()
	if !broken {
		return
	}
	select {
	case i.changed <- struct{}{}:
	default:
	}
}

// Intact says that all files are as the last Ensure left them.
func (i *Installer) Intact() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.intact()
}
