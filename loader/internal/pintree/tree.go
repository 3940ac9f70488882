// SPDX-License-Identifier: Apache-2.0

// Package pintree has the pin tree of one network namespace, its lock, its maps, and the files beside it in the run directory. It loads
// and attaches nothing.
package pintree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/loadapi"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/sysctl"
)

// PinVersion is the version of the pin tree, part of the path of every pin. It changes when a key, a value or the name of a pin
// changes.
const PinVersion = 2

// DefaultRunDir is where decisions and locks are kept.
const DefaultRunDir = "/run/sluice"

// justNow is how long a look at the node holds for the verbs that follow: the plugins of one chain come within milliseconds of
// each other, each in a process of its own, on a busy node a few tens of them. A look takes longer with every address and route
// of the node, and a pod on a point-to-point link brings one of each: 4 ms with a thousand.
const justNow = 200 * time.Millisecond

// Tree is the handle that the packages of the loader share: the pin tree of one network namespace, its lock, and what is open of it. It is safe for
// concurrent use. The caller must close it.
type Tree struct {
	Config *nodeconf.Config
	RunDir string
	Log    *log.Logger
	Loader loadapi.Loader
	Paths  Paths

	NodeScanTTL time.Duration // how long a look at the node holds; only tests change it

	mu   sync.Mutex
	held *os.File               // the writers' lock
	maps map[string]*bpfsys.Map // opened on first use

	sysctls *sysctl.Dir // opened on first use
	cgroup  *os.File    // where cgroup v2 is not mounted; opened on first use
}

// Open returns the handle of the calling thread's network namespace. It opens nothing yet.
func Open(config *nodeconf.Config, runDir string, l *log.Logger, loader loadapi.Loader) (*Tree, error) {
	ns, err := namespaceName()
	if err != nil {
		return nil, err
	}
	return &Tree{
		Config: config, RunDir: runDir, Log: l, Loader: loader, Paths: NewPaths(runDir, findBPFFS(config.BPFFS), ns),
		NodeScanTTL: justNow, maps: make(map[string]*bpfsys.Map),
	}, nil
}

// Close releases what was opened on first use.
func (t *Tree) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, m := range t.maps {
		errs = append(errs, m.Close())
	}
	clear(t.maps)
	if t.sysctls != nil {
		t.sysctls.Close()
		t.sysctls = nil
	}
	if t.cgroup != nil {
		errs = append(errs, t.cgroup.Close())
		t.cgroup = nil
	}
	return errors.Join(errs...)
}

// Pinned returns the map of that name, opened once per handle.
func (t *Tree) Pinned(name string) (*bpfsys.Map, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m, ok := t.maps[name]; ok {
		return m, nil
	}
	m, err := bpfsys.OpenMap(t.Paths.MapPin(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: no map %s", ErrNotLoaded, name)
	}
	if err != nil {
		return nil, fmt.Errorf("open map %s: %w", name, err)
	}
	if m.ReadOnlyPin() && len(t.maps) == 0 {
		t.Log.Warn("the bpffs is read-only: pins stay until GC finds it writable", log.String("path", t.Paths.Dir))
	}
	t.maps[name] = m
	return m, nil
}

// CheckWritable returns an ErrUnavailable if the run directory, or what it would be made in, is on a file system that is read-only. No
// attachment is recorded there, and garbage collection removes the entries of those that no record names.
func (t *Tree) CheckWritable() error {
	for dir := t.RunDir; ; dir = filepath.Dir(dir) {
		err := unix.Access(dir, unix.W_OK)
		if errors.Is(err, unix.ENOENT) && dir != "/" {
			continue
		}
		if errors.Is(err, unix.EROFS) {
			return fmt.Errorf("%w: %s is on a read-only file system, so that attachments cannot be recorded: make it writable", ErrUnavailable, t.RunDir)
		}
		return nil // other errors show where something is written
	}
}

// Lock takes the writers' lock.
func (t *Tree) Lock(ctx context.Context) (func(), error) {
	f, err := file.AcquireLock(ctx, t.Paths.Lock)
	if err != nil {
		return nil, err
	}
	t.hold(f)
	return func() {
		t.hold(nil)
		_ = f.Close()
	}, nil
}

func (t *Tree) hold(f *os.File) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held = f
}

// LockFile returns the writers' lock. Only its holder may ask.
func (t *Tree) LockFile() *os.File { return t.held }

// Writer takes the writers' lock of this datapath and makes sure that it still exists: Unload may have come first.
func (t *Tree) Writer(ctx context.Context) (func(), error) {
	unlock, err := t.Lock(ctx)
	if err != nil {
		return nil, err
	}
	if _, ok := t.Paths.Committed(); !ok {
		unlock()
		return nil, fmt.Errorf("%w: nothing pinned at %s", ErrNotLoaded, t.Paths.Dir)
	}
	if err := t.Paths.repair(); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// WithMapIfLoaded calls f with what open returns, under the writers' lock. No datapath, or one whose pins an operator removed, is
// success: there is nothing to take away from.
func WithMapIfLoaded[M any](ctx context.Context, t *Tree, open func() (M, error), f func(M) error) error {
	var m M
	unlock, err := t.Writer(ctx)
	if err == nil {
		defer unlock()
		m, err = open()
	}
	if errors.Is(err, ErrNotLoaded) {
		return nil
	}
	if err != nil {
		return err
	}
	return f(m)
}

// IgnoreNotLoaded takes a map that is not there for an empty one, where something is taken away: a release that has just been installed has
// maps that the one which is loaded had not.
func IgnoreNotLoaded(err error) error {
	if errors.Is(err, ErrNotLoaded) {
		return nil
	}
	return err
}

// SysctlDir has the sysctls that sysctl reads.
const SysctlDir = "net/ipv4"

// Sysctl reads a parameter of the node. Its directory stays open: looking it up takes longer the more namespaces there are.
func (t *Tree) Sysctl(name string) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sysctls == nil {
		dir, err := sysctl.OpenDir(SysctlDir)
		if err != nil {
			return "", err
		}
		t.sysctls = dir
	}
	return t.sysctls.Get(name)
}

// CommittedDir returns where the programs in force are pinned.
func (t *Tree) CommittedDir() (string, error) {
	id, ok := t.Paths.Committed()
	if !ok {
		return "", fmt.Errorf("%w: no programs at %s", ErrNotLoaded, t.Paths.Progs())
	}
	return t.Paths.BuildDir(id), nil
}

// ProgramAt opens a pinned program. The caller must Close it.
func ProgramAt(dir, name string) (*bpfsys.Program, error) {
	p, err := bpfsys.OpenProgram(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: no program %s", ErrNotLoaded, name)
	}
	if err != nil {
		return nil, fmt.Errorf("open program %s: %w", name, err)
	}
	return p, nil
}
