// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"context"
	"fmt"
	"maps"
	"sync"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cniskel"
)

// IPAM hands out the answer it was given and remembers who holds it.
type IPAM struct {
	mu      sync.Mutex
	Answer  func(n int) *types100.Result // n counts the ADDs from 1
	AddErr  error
	DelErr  error
	VerbErr error // of CHECK, GC and STATUS
	Held    map[string]bool
	// Before runs before each ADD, Calls are the verbs.
	Before func(a *cniskel.Args)
	Calls  []string
	// Stdin is that of the last DEL.
	Stdin []byte
	Adds  int
}

// Add hands out the next answer.
func (f *IPAM) Add(_ context.Context, a *cniskel.Args, kind string) (*types100.Result, error) {
	if f.Before != nil {
		f.Before(a)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Calls = append(f.Calls, "ADD "+kind)
	f.Held[a.ContainerID+"/"+a.IfName] = true // also on failure: the caller must DEL
	f.Adds++
	if f.AddErr != nil {
		return nil, f.AddErr
	}
	return f.Answer(f.Adds), nil
}

// Del takes it back.
func (f *IPAM) Del(_ context.Context, a *cniskel.Args, kind string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Calls = append(f.Calls, "DEL "+kind)
	delete(f.Held, a.ContainerID+"/"+a.IfName)
	f.Stdin = a.StdinData
	return f.DelErr
}

func (f *IPAM) verb(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Calls = append(f.Calls, name)
	return f.VerbErr
}

// Check answers CHECK.
func (f *IPAM) Check(_ context.Context, _ *cniskel.Args, kind string) error {
	return f.verb("CHECK " + kind)
}

// GC answers GC.
func (f *IPAM) GC(_ context.Context, _ *cniskel.Args, kind string) error {
	return f.verb("GC " + kind)
}

// Status answers STATUS.
func (f *IPAM) Status(_ context.Context, _ *cniskel.Args, kind string) error {
	return f.verb("STATUS " + kind)
}

// Datapath keeps endpoints with the masquerade feature as the real one does.
type Datapath struct {
	mu         sync.Mutex
	EnableErr  error
	DisableErr error
	OpenErr    error
	// Eps are the endpoints by owner.
	Eps map[uint64]loader.Endpoint
	// Gone are the owners whose device is gone.
	Gone   map[uint64]bool
	Loaded bool
	Opens  int
}

// Open is loader.Open.
func (f *Datapath) Open(context.Context, *cniskel.Args) (*Datapath, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Opens++
	if f.OpenErr != nil {
		return nil, f.OpenErr
	}
	f.Loaded = true
	return f, nil
}

// OpenExisting is loader.OpenExisting.
func (f *Datapath) OpenExisting(context.Context, *cniskel.Args) (*Datapath, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Opens++
	if f.OpenErr != nil {
		return nil, f.OpenErr
	}
	if !f.Loaded {
		return nil, loader.ErrNotLoaded
	}
	return f, nil
}

// Enable keeps the endpoint.
func (f *Datapath) Enable(_ context.Context, ep loader.Endpoint, feature loader.Feature) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.EnableErr != nil {
		return f.EnableErr
	}
	if feature != loader.FeatureMasquerade {
		return fmt.Errorf("unexpected feature %d", feature)
	}
	if f.Eps == nil {
		f.Eps = make(map[uint64]loader.Endpoint)
	}
	f.Eps[ep.Ref.Owner()] = ep
	return nil
}

// Disable forgets it.
func (f *Datapath) Disable(_ context.Context, owner uint64, _ loader.Feature) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.DisableErr != nil {
		return f.DisableErr
	}
	delete(f.Eps, owner)
	return nil
}

// CheckEndpoint compares.
func (f *Datapath) CheckEndpoint(_ context.Context, ep loader.Endpoint, _ loader.Feature) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if got, ok := f.Eps[ep.Ref.Owner()]; !ok || fmt.Sprint(got) != fmt.Sprint(ep) {
		return fmt.Errorf("%w: have %+v, want %+v", loader.ErrDiffers, got, ep)
	}
	return nil
}

// Endpoints lists them. All devices exist but those in Gone.
func (f *Datapath) Endpoints(context.Context) ([]loader.EndpointStatus, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []loader.EndpointStatus
	for owner, ep := range f.Eps {
		st := loader.EndpointStatus{Owner: owner, HostIfName: ep.HostIfName}
		if f.Gone[owner] {
			st.HostIfName = ""
		}
		out = append(out, st)
	}
	return out, nil
}

// GC forgets the endpoints of owners that are not to be kept.
func (f *Datapath) GC(_ context.Context, keep func(owner uint64) bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.Eps, func(owner uint64, _ loader.Endpoint) bool { return !keep(owner) })
	return nil
}

// Close does nothing.
func (f *Datapath) Close() error { return nil }

// Len is the number of endpoints.
func (f *Datapath) Len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.Eps)
}

// As makes of Open or OpenExisting what a plugin asks for, whose interface D is.
func As[D any](open func(context.Context, *cniskel.Args) (*Datapath, error)) func(context.Context, *cniskel.Args) (D, error) {
	return func(ctx context.Context, a *cniskel.Args) (d D, err error) {
		dp, err := open(ctx, a)
		if err != nil {
			return d, err
		}
		return any(dp).(D), nil //nolint:forcetypeassert // a test that asks for something else should not go on
	}
}
