// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cniskel"
)

// Datapath behaves like the loader's, in memory, as far as endpoints go. The zero
// value is not loaded.
type Datapath struct {
	mu sync.Mutex
	// OpenErr is the error of both ways to open.
	OpenErr error
	// Fail has the errors of the other methods, by the method's name.
	Fail map[string]error
	// Only are the features that Enable takes, 0 for any.
	Only loader.Feature
	// Held are the endpoints by owner.
	Held map[uint64]*Endpoint
	// Loaded says whether OpenExisting finds something.
	Loaded bool
	// Served are the devices that ServeClients was called with.
	Served []string
	// Opens counts the calls of both ways to open, Loads those that may load.
	Opens, Loads int

	handles int // not closed
}

// Endpoint is one that the datapath has.
type Endpoint struct {
	loader.Endpoint
	Features loader.Feature
	Gone     bool // its device
	// MACCheck is what Enable got with loader.FeatureMACCheck.
	MACCheck loader.Endpoint
}

// Openers are the two ways to open dp, as a plugin wants them. base counts the
// calls: it is dp, or what dp embeds.
func Openers[D any](base *Datapath, dp D) (open, existing func(context.Context, *cniskel.Args) (D, error)) {
	by := func(load bool) func(context.Context, *cniskel.Args) (D, error) {
		return func(context.Context, *cniskel.Args) (none D, _ error) {
			if err := base.open(load); err != nil {
				return none, err
			}
			return dp, nil
		}
	}
	return by(true), by(false)
}

func (d *Datapath) open(load bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Opens++
	switch {
	case d.OpenErr != nil:
		return d.OpenErr
	case load:
		d.Loaded = true
		d.Loads++
	case !d.Loaded:
		return loader.ErrNotLoaded
	}
	d.handles++
	return nil
}

// Close gives a handle back.
func (d *Datapath) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.handles--
	return nil
}

// wantClosed fails the test when it ends with a handle that was not closed.
func (d *Datapath) wantClosed(t testing.TB) {
	t.Cleanup(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.handles != 0 {
			t.Errorf("%d handles were not closed", d.handles)
		}
	})
}

// CheckFree finds each address free, but for Fail.
func (d *Datapath) CheckFree(context.Context, uint64, []netip.Prefix) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.Fail["CheckFree"]
}

// Enable keeps the endpoint with the feature.
func (d *Datapath) Enable(_ context.Context, ep loader.Endpoint, f loader.Feature) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.Fail["Enable"]; err != nil {
		return err
	}
	if d.Only != 0 && f&^d.Only != 0 {
		return fmt.Errorf("unexpected feature %d", f)
	}
	if d.Held == nil {
		d.Held = make(map[uint64]*Endpoint)
	}
	have := d.Held[ep.Ref.Owner()]
	if have == nil {
		have = &Endpoint{}
		d.Held[ep.Ref.Owner()] = have
	}
	if f == loader.FeatureMACCheck {
		have.MACCheck = ep
		have.HostIfName = ep.HostIfName
	} else {
		have.Endpoint = ep
	}
	have.Features |= f
	return nil
}

// Disable takes the feature off, and the endpoint with its last one.
func (d *Datapath) Disable(_ context.Context, owner uint64, f loader.Feature, _ loader.Held) error {
	d.mu.Lock()
	defer d.mu.Unlock()
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

// CheckEndpoint compares the endpoint as a whole.
func (d *Datapath) CheckEndpoint(_ context.Context, ep loader.Endpoint, f loader.Feature) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	have := d.Held[ep.Ref.Owner()]
	switch {
	case have == nil:
		return fmt.Errorf("%w: no endpoint", loader.ErrDiffers)
	case have.Features&f == 0:
		return fmt.Errorf("%w: features %b", loader.ErrDiffers, have.Features)
	case f == loader.FeatureMACCheck && !reflect.DeepEqual(have.MACCheck, ep):
		return fmt.Errorf("%w: have %+v, want %+v", loader.ErrDiffers, have.MACCheck, ep)
	case f != loader.FeatureMACCheck && !reflect.DeepEqual(have.Endpoint, ep):
		return fmt.Errorf("%w: have %+v, want %+v", loader.ErrDiffers, have.Endpoint, ep)
	}
	return nil
}

// ServeClients notes the devices.
func (d *Datapath) ServeClients(_ context.Context, names []string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Served = append(d.Served, names...)
	return d.Fail["ServeClients"]
}

// Endpoints lists them. All devices exist but those that are Gone.
func (d *Datapath) Endpoints(context.Context) ([]loader.EndpointStatus, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []loader.EndpointStatus
	for _, owner := range slices.Sorted(maps.Keys(d.Held)) {
		st := loader.EndpointStatus{Owner: owner, HostIfName: d.Held[owner].HostIfName}
		if d.Held[owner].Gone {
			st.HostIfName = ""
		}
		out = append(out, st)
	}
	return out, nil
}

// GC forgets the endpoints of owners that are not to be kept.
func (d *Datapath) GC(_ context.Context, keep func(uint64) bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.Fail["GC"]; err != nil {
		return err
	}
	maps.DeleteFunc(d.Held, func(owner uint64, _ *Endpoint) bool { return !keep(owner) })
	return nil
}

// Len is the number of endpoints.
func (d *Datapath) Len() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.Held)
}
