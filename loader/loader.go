// SPDX-License-Identifier: Apache-2.0

// Package loader is the only code that changes the kernel's BPF state: it probes what the kernel can do, loads and pins the
// programs and maps once per boot or build, attaches them to devices, writes what the control plane says into the maps, and
// takes all of it away again.
//
// State lives in pins below a bpffs, one tree per network namespace, so that nothing depends on a running process. Every
// function acts on the network namespace of the calling thread. DESIGN.md beside this file has the pin tree, the order of the
// steps and what a crash between any two of them leaves.
package loader

import (
	"context"
	"errors"
	"sync"

	"go.uber.org/zap"

	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

// PinVersion is the version of the map layout, part of the path of every pin. It changes when a key or a value changes.
const PinVersion = 1

// DefaultRunDir is where decisions and locks are kept.
const DefaultRunDir = "/run/sluice"

// Options say where and how the datapath lives. The zero value works.
type Options struct {
	Config *nodeconf.Config // nil: nodeconf.Default
	RunDir string           // empty: DefaultRunDir
	Log    *zap.Logger      // nil: none
}

func (o Options) withDefaults() Options {
	if o.Config == nil {
		o.Config = nodeconf.Default()
	}
	if o.RunDir == "" {
		o.RunDir = DefaultRunDir
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	return o
}

// Datapath is a handle on the pinned datapath of one network namespace. It is safe for concurrent use; writers of several
// handles and processes are serialised by a lock file. The caller must Close it; closing changes nothing in the kernel.
type Datapath struct {
	opts  Options
	paths paths
	build string // of the programs that are pinned

	mu   sync.Mutex
	maps map[string]closer // opened on first use
}

type closer interface{ Close() error }

// Close releases the descriptors. The datapath goes on working.
func (d *Datapath) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for _, m := range d.maps {
		errs = append(errs, m.Close())
	}
	d.maps = nil
	return errors.Join(errs...)
}

// Open returns a handle on the datapath of the calling thread's network namespace. It loads the programs when nothing is
// pinned yet or what is pinned is of another build or configuration; otherwise it opens pins and does nothing else.
// The error wraps ErrUnavailable where this node cannot run it, ErrIncompatible where older pins are in the way.
func Open(ctx context.Context, o Options) (*Datapath, error) {
	return nil, ErrUnavailable
}

// OpenExisting is Open that never loads: it takes the pinned datapath of whatever build, or returns ErrNotLoaded. It is for
// DEL, GC, CHECK and the operator's tool.
func OpenExisting(ctx context.Context, o Options) (*Datapath, error) {
	return nil, ErrNotLoaded
}
