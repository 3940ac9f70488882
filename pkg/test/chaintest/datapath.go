// SPDX-License-Identifier: Apache-2.0

// Package chaintest is what the tests of the chained plugins share: a datapath
// in memory, a node that runs one plugin on it, and pods that a stranger's main
// plugin might have made, for the real one.
package chaintest

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cniskel"
)

// Datapath behaves like the loader's, in memory, as far as endpoints go.
type Datapath struct {
	OpenErr error // of both ways to open
	Loads   int
	Held    map[uint64]*Endpoint
	Fail    map[string]error // by method name

	loaded  bool
	handles int // not closed
}

// Endpoint is one that the datapath has.
type Endpoint struct {
	loader.Endpoint
	Features loader.Feature
	Gone     bool // its device
}

// NewDatapath returns one that is not loaded.
func NewDatapath() *Datapath {
	return &Datapath{Held: map[uint64]*Endpoint{}, Fail: map[string]error{}}
}

// Openers are the two ways to open dp, which counts in base.
func Openers[D any](base *Datapath, dp D) (open, existing func(context.Context, *cniskel.Args) (D, error)) {
	var none D
	existing = func(context.Context, *cniskel.Args) (D, error) {
		switch {
		case base.OpenErr != nil:
			return none, base.OpenErr
		case !base.loaded:
			return none, loader.ErrNotLoaded
		}
		base.handles++
		return dp, nil
	}
	open = func(ctx context.Context, a *cniskel.Args) (D, error) {
		if base.OpenErr == nil {
			base.loaded = true
			base.Loads++
		}
		return existing(ctx, a)
	}
	return open, existing
}

// Close gives a handle back.
func (d *Datapath) Close() error { d.handles--; return nil }

// Enable keeps the endpoint with the feature.
func (d *Datapath) Enable(_ context.Context, ep loader.Endpoint, f loader.Feature) error {
	if err := d.Fail["Enable"]; err != nil {
		return err
	}
	have := d.Held[ep.Ref.Owner()]
	if have == nil {
		have = &Endpoint{}
		d.Held[ep.Ref.Owner()] = have
	}
	have.Endpoint = ep
	have.Features |= f
	return nil
}

// Disable takes the feature off, and the endpoint with its last one.
func (d *Datapath) Disable(_ context.Context, owner uint64, f loader.Feature) error {
	if err := d.Fail["Disable"]; err != nil {
		return err
	}
	if ep := d.Held[owner]; ep != nil {
		if ep.Features &^= f; ep.Features == 0 {
			delete(d.Held, owner)
		}
	}
	return nil
}

// CheckEndpoint compares.
func (d *Datapath) CheckEndpoint(_ context.Context, ep loader.Endpoint, f loader.Feature) error {
	have := d.Held[ep.Ref.Owner()]
	switch {
	case have == nil:
		return fmt.Errorf("%w: no endpoint", loader.ErrDiffers)
	case have.Features&f == 0:
		return fmt.Errorf("%w: features %b", loader.ErrDiffers, have.Features)
	case !slices.Equal(have.Addrs, ep.Addrs):
		return fmt.Errorf("%w: addresses %v", loader.ErrDiffers, have.Addrs)
	}
	return nil
}

// Endpoints lists them.
func (d *Datapath) Endpoints(context.Context) ([]loader.EndpointStatus, error) {
	var out []loader.EndpointStatus
	for _, owner := range slices.Sorted(maps.Keys(d.Held)) {
		st := loader.EndpointStatus{Owner: owner, HostIfName: "veth0"}
		if d.Held[owner].Gone {
			st.HostIfName = ""
		}
		out = append(out, st)
	}
	return out, nil
}

// GC forgets the endpoints of owners that are not to be kept.
func (d *Datapath) GC(_ context.Context, keep func(uint64) bool) error {
	if err := d.Fail["GC"]; err != nil {
		return err
	}
	maps.DeleteFunc(d.Held, func(owner uint64, _ *Endpoint) bool { return !keep(owner) })
	return nil
}
