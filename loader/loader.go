// SPDX-License-Identifier: Apache-2.0

// Package loader is the only code that changes the kernel's BPF state: it probes what the kernel can do, loads and pins the
// programs and maps once per boot or build, attaches them to devices, writes what the control plane says into the maps, and
// takes all of it away again.
//
// State lives in pins below a bpffs, one tree per network namespace, so that nothing depends on a running process. Every
// function acts on the network namespace of the calling thread. docs/dev/design/loader has the pin tree, the order of
// the steps and what a crash between any two of them leaves.
package loader

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/internal/programs"
	"github.com/sluice-cni/sluice/loader/loadapi"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

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
type Datapath struct{ tree *pintree.Tree }

// Open returns a handle on the datapath of the calling thread's network namespace. It loads the programs when nothing is
// pinned yet or what is pinned is of another build or configuration; otherwise it looks for the pins and does nothing else.
// Config.Backend plays no part: who opens has chosen. The error wraps ErrUnavailable where this node cannot run it, ErrIncompatible where
// older pins are in the way.
func Open(ctx context.Context, o Options) (*Datapath, error) {
	d, err := newDatapath(o)
	if err != nil {
		return nil, err
	}
	if err := d.tree.CheckWritable(); err != nil {
		return nil, err
	}
	cfg, err := programs.ConstantsOf(d.tree)
	if err != nil {
		return nil, err
	}
	foreign := d.tree.Paths.CheckOwners()
	if foreign == nil && d.tree.Paths.Loaded(cfg.Build()) {
		return d, nil
	}
	if err := programs.CachedRefusal(d.tree, cfg); err != nil {
		return nil, err
	}
	// Root of another user namespace, which sees the owner of nothing, cannot load anyway: netfilter takes over.
	if foreign != nil && programs.AskCapabilities() == nil {
		return nil, foreign
	}
	unlock, err := d.tree.Lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if d.tree.Paths.Loaded(cfg.Build()) { // another process loaded it while we waited
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
	if err := d.tree.CheckLoaded(); err != nil {
		return nil, err
	}
	if _, ok := d.tree.Paths.Committed(); !ok {
		return nil, fmt.Errorf("%w: nothing pinned at %s", ErrNotLoaded, d.tree.Paths.Dir)
	}
	return d, nil
}

func newDatapath(o Options) (*Datapath, error) {
	o = o.withDefaults()
	t, err := pintree.Open(o.Config, o.RunDir, o.Log, o.Loader)
	if err != nil {
		return nil, err
	}
	return &Datapath{t}, nil
}

// Close releases the descriptors. The datapath goes on working.
func (d *Datapath) Close() error { return d.tree.Close() }

// Places returns where Sluice looks for the pins, and each other mount namespace that can be seen and has some.
func Places(o Options) ([]Place, error) {
	d, err := newDatapath(o)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.tree.Places()
}

// CheckOwners returns an ErrForeign if another user can change the pins or the run directory, for the operator's tool.
func CheckOwners(o Options) error {
	d, err := newDatapath(o)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.tree.CheckOwners()
}

// Unload is the method of that name for whatever is left of a datapath, also where nothing was ever committed. Nothing there is
// success.
func Unload(ctx context.Context, o Options) error {
	d, err := newDatapath(o)
	if err != nil {
		return err
	}
	if !pintree.Exists(d.tree.Paths.Dir) && !pintree.Exists(d.tree.Paths.State) {
		return nil
	}
	return d.Unload(ctx)
}

// Decision returns what was decided for the calling thread's network namespace: backend, reason, probes and configuration,
// the rest of Status empty. It is what there is to show when nothing is loaded. ErrNotLoaded: nothing was decided since boot.
func Decision(_ context.Context, o Options) (*Status, error) {
	d, err := newDatapath(o)
	if err != nil {
		return nil, err
	}
	return d.decision()
}

// Survey asks the kernel every question of a load, now, and says where the programs for the node's own processes would go. It
// writes nothing down and mounts nothing, so it may be called on a node that has nothing loaded.
func Survey(ctx context.Context, o Options) (report []Probe, cgroup string, err error) {
	d, err := newDatapath(o)
	if err != nil {
		return nil, "", err
	}
	defer d.Close()
	return programs.Survey(ctx, d.tree)
}

// HasFQ reports whether the kernel has the qdisc that honours departure times (sch_fq); if not, why. A yes holds until the next boot. A no
// is asked again after five minutes, or when the module is loaded.
func (d *Datapath) HasFQ() (bool, string) { return programs.HasFQ(d.tree) }

// LoadRequest returns by what the programs in force were made, for a copy of them and of their maps (ebpfload.NewCopy). The error says
// what to do where this build, or the configuration that there is now, is not theirs.
func (d *Datapath) LoadRequest(_ context.Context) (loadapi.LoadRequest, error) {
	return programs.LoadRequest(d.tree)
}

// InPrivateMountNS reports whether the calling thread is in a mount namespace apart from the machine's, as far as can be seen.
func InPrivateMountNS() bool { return pintree.InPrivateMountNS() }
