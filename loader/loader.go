// SPDX-License-Identifier: Apache-2.0

// Package loader is the only code that changes the kernel's BPF state: it probes what the kernel can do, loads and pins the
// programs and maps once per boot or build, attaches them to devices, writes what the control plane says into the maps, and
// takes all of it away again.
//
// State lives in pins below a bpffs, one tree per network namespace, so that nothing depends on a running process. Every
// function acts on the network namespace of the calling thread. docs/design/loader has the pin tree, the order of
// the steps and what a crash between any two of them leaves.
package loader

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/sluice-cni/sluice/loader/loadapi"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/filelock"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/sysctl"
)

// PinVersion is the version of the pin tree, part of the path of every pin. It changes when a key, a value or the name of a pin
// changes. migrate.go takes over a tree of the version before.
const PinVersion = 2

// DefaultRunDir is where decisions and locks are kept.
const DefaultRunDir = "/run/sluice"

// Options say where and how the datapath lives. The zero value works.
type Options struct {
	Config *nodeconf.Config // nil: nodeconf.Default
	RunDir string           // empty: DefaultRunDir
	Log    *log.Logger      // nil: none
	Loader loadapi.Loader   // nil: the program beside this one
}

func (o Options) withDefaults() Options {
	if o.Config == nil {
		o.Config = nodeconf.Default()
	}
	if o.RunDir == "" {
		o.RunDir = DefaultRunDir
	}
	if o.Log == nil {
		o.Log = log.NewNop()
	}
	if o.Loader == nil {
		o.Loader = loadapi.Subprocess{}
	}
	return o
}

// Datapath is a handle on the pinned datapath of one network namespace. It is safe for concurrent use; writers of several
// handles and processes are serialised by a lock file. The caller must Close it; closing changes nothing in the kernel.
type Datapath struct {
	opts  Options
	log   *log.Logger
	paths paths

	nodeScanTTL time.Duration // justNow, but for tests

	mu   sync.Mutex
	held *os.File               // the writers' lock; only who holds it asks
	maps map[string]*bpfsys.Map // opened on first use

	sysctls *sysctl.Dir // opened on first use
	cgroup  *os.File    // where cgroup v2 is not mounted; opened on first use
}

// Open returns a handle on the datapath of the calling thread's network namespace. It loads the programs when nothing is
// pinned yet or what is pinned is of another build or configuration; otherwise it looks for the pins and does nothing else.
// The error wraps ErrUnavailable where this node cannot run it, ErrIncompatible where older pins are in the way.
func Open(ctx context.Context, o Options) (*Datapath, error) {
	d, err := newDatapath(o)
	if err != nil {
		return nil, err
	}
	if b := d.opts.Config.Backend; b != nodeconf.BackendAuto && b != nodeconf.BackendEBPF {
		return nil, fmt.Errorf("%w: the node configuration asks for the backend %q", ErrUnavailable, b)
	}
	cfg, err := d.constants()
	if err != nil {
		return nil, err
	}
	foreign := d.paths.checkOwners()
	if foreign == nil && d.paths.loaded(cfg.build()) {
		return d, nil
	}
	if err := d.cachedRefusal(cfg); err != nil {
		return nil, err
	}
	// Root of another user namespace, which sees the owner of nothing, cannot load anyway: netfilter takes over.
	if foreign != nil && askCapabilities() == nil {
		return nil, foreign
	}
	unlock, err := d.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := d.migrateLocked(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if d.paths.loaded(cfg.build()) { // somebody else loaded it while we waited
		return d, nil
	}
	if err := d.load(ctx, cfg); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// OpenExisting is Open that never loads: it takes the pinned datapath of whatever build, or returns ErrNotLoaded. It is for
// DEL, GC, CHECK and the operator's tool.
func OpenExisting(ctx context.Context, o Options) (*Datapath, error) {
	d, err := newDatapath(o)
	if err != nil {
		return nil, err
	}
	if err := d.checkLoaded(); err != nil {
		return nil, err
	}
	if _, ok := d.paths.committed(); !ok {
		if err := d.migrate(ctx); err != nil {
			return nil, err
		}
	}
	if _, ok := d.paths.committed(); !ok {
		return nil, fmt.Errorf("%w: nothing pinned at %s", ErrNotLoaded, d.paths.dir)
	}
	return d, nil
}

func newDatapath(o Options) (*Datapath, error) {
	o = o.withDefaults()
	ns, err := namespaceName()
	if err != nil {
		return nil, err
	}
	return &Datapath{opts: o, log: o.Log, paths: newPaths(o, findBPFFS(o.Config.BPFFS), ns), maps: make(map[string]*bpfsys.Map), nodeScanTTL: justNow}, nil
}

// Close releases the descriptors. The datapath goes on working.
func (d *Datapath) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for _, m := range d.maps {
		errs = append(errs, m.Close())
	}
	clear(d.maps)
	if d.sysctls != nil {
		d.sysctls.Close()
		d.sysctls = nil
	}
	if d.cgroup != nil {
		errs = append(errs, d.cgroup.Close())
		d.cgroup = nil
	}
	return errors.Join(errs...)
}

// pinned returns the map of that name, opened once per handle.
func (d *Datapath) pinned(name string) (*bpfsys.Map, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m, ok := d.maps[name]; ok {
		return m, nil
	}
	m, err := bpfsys.OpenMap(d.paths.mapPin(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: no map %s", ErrNotLoaded, name)
	}
	if err != nil {
		return nil, fmt.Errorf("open map %s: %w", name, err)
	}
	d.maps[name] = m
	return m, nil
}

// lock takes the writers' lock.
func (d *Datapath) lock(ctx context.Context) (func(), error) {
	f, err := filelock.Acquire(ctx, d.paths.lock)
	if err != nil {
		return nil, err
	}
	d.hold(f)
	return func() {
		d.hold(nil)
		_ = f.Close()
	}, nil
}

func (d *Datapath) hold(f *os.File) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held = f
}

// writer takes the writers' lock of this datapath and makes sure that it still exists: Unload may have come first.
func (d *Datapath) writer(ctx context.Context) (func(), error) {
	unlock, err := d.lock(ctx)
	if err != nil {
		return nil, err
	}
	if _, ok := d.paths.committed(); !ok {
		unlock()
		return nil, fmt.Errorf("%w: nothing pinned at %s", ErrNotLoaded, d.paths.dir)
	}
	if err := d.paths.repair(); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// withMapIfLoaded calls f with what open returns, under the writers' lock. No datapath, or one whose pins somebody removed, is
// success: there is nothing to take away from.
func withMapIfLoaded[M any](ctx context.Context, d *Datapath, open func() (M, error), f func(M) error) error {
	var m M
	unlock, err := d.writer(ctx)
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

// ignoreNotLoaded takes a map that is not there for an empty one, where something is taken away: a release that has just been installed has
// maps that the one which is loaded had not.
func ignoreNotLoaded(err error) error {
	if errors.Is(err, ErrNotLoaded) {
		return nil
	}
	return err
}
