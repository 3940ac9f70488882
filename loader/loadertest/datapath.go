// SPDX-License-Identifier: Apache-2.0

// Package loadertest has a datapath for tests of the loader's callers.
package loadertest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/loader/loadapi"
	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

// Datapath behaves like the loader's, in memory, as far as endpoints, hostPorts and the denylist go. Rate limits have no effect. The other
// methods return what the test has put into the fields. The zero value is not loaded.
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
	// MACs are those that SetMAC was called with, by owner.
	MACs map[uint64]string
	// Ports are the hostPorts.
	Ports []hostport.Entry
	// Denied is the denylist, Uplinks where it is in force.
	Denied  []netip.Prefix
	Uplinks []loader.DenyDevice
	// NoFQ says why the kernel has no sch_fq; empty: it has.
	NoFQ string
	// Loaded says whether OpenExisting finds something.
	Loaded bool
	// Served are the devices that ServeClients was called with.
	Served []string
	// Opens counts the calls of both ways to open, Loads those that may load.
	Opens, Loads int
	// Handles are those that were not closed.
	Handles int
	// Synced and Unloaded count the calls of Sync and Unload.
	Synced, Unloaded int

	// State is what Status returns. Its Endpoints are those of Endpoints, unless it is nil.
	State       *loader.Status
	Connections []loader.Flow
	Limits      []loader.RateLimitStatus
	Rules       []loader.PolicyStatus
	Networked   []loader.NetworkPolicyStatus
	Dropped     []loader.DropEvent
	DropCounts  []loader.Drop
	Sums        map[drops.Reason]drops.Sum
	Counts      conntrack.Counts
}

var _ loader.Interface = (*Datapath)(nil)

// Endpoint is one that the datapath has.
type Endpoint struct {
	loader.Endpoint
	Features loader.Feature
	Gone     bool // its device
	// MACCheck is what Enable got with loader.FeatureMACCheck.
	MACCheck loader.Endpoint
}

// Open opens the datapath, as loader.Open or as loader.OpenExisting.
func (d *Datapath) Open(load bool) (loader.Interface, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Opens++
	switch {
	case d.OpenErr != nil:
		return nil, d.OpenErr
	case load:
		d.Loaded = true
		d.Loads++
	case !d.Loaded:
		return nil, loader.ErrNotLoaded
	}
	d.Handles++
	return d, nil
}

// Close gives a handle back.
func (d *Datapath) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Handles--
	return nil
}

// WantClosed fails the test when it ends with a handle that was not closed.
func (d *Datapath) WantClosed(t testing.TB) {
	t.Cleanup(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.Handles != 0 {
			t.Errorf("%d handles were not closed", d.Handles)
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
	if d.State != nil {
		return d.State.Endpoints, nil
	}
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

// GC forgets the endpoints and hostPorts of owners that are not to be kept.
func (d *Datapath) GC(_ context.Context, keep func(uint64) bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.Fail["GC"]; err != nil {
		return err
	}
	maps.DeleteFunc(d.Held, func(owner uint64, _ *Endpoint) bool { return !keep(owner) })
	d.Ports = slices.DeleteFunc(d.Ports, func(e hostport.Entry) bool { return !keep(e.Owner) })
	return nil
}

// Len is the number of endpoints.
func (d *Datapath) Len() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.Held)
}

// SetMAC notes the address.
func (d *Datapath) SetMAC(_ context.Context, owner uint64, mac net.HardwareAddr, _ loader.Held) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.MACs == nil {
		d.MACs = make(map[uint64]string)
	}
	d.MACs[owner] = mac.String()
	return d.Fail["SetMAC"]
}

// HostPortLimits are the defaults.
func (*Datapath) HostPortLimits() hostport.Limits {
	return hostport.Limits{Mappings: nodeconf.DefaultHostPortsPerAttachment, Sources: nodeconf.DefaultAllowedSourcesPerAttachment}
}

// SetHostPorts replaces those of owner. An error comes after the effect: the worst case for the caller.
func (d *Datapath) SetHostPorts(_ context.Context, owner uint64, before []hostport.Key, ports []hostport.Mapping, _ ...func() []uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.remove(owner, before)
	for _, p := range ports {
		d.putPort(hostport.NewEntry(p, owner, 1))
	}
	return d.Fail["SetHostPorts"]
}

func (d *Datapath) putPort(e hostport.Entry) {
	d.Ports = append(slices.DeleteFunc(d.Ports, func(o hostport.Entry) bool { return o.Key == e.Key }), e)
}

// remove takes out what owner has among keys, with nil all.
func (d *Datapath) remove(owner uint64, keys []hostport.Key) {
	d.Ports = slices.DeleteFunc(d.Ports, func(e hostport.Entry) bool {
		return e.Owner == owner && (keys == nil || slices.Contains(keys, e.Key))
	})
}

// RemoveHostPorts takes hostPorts of owner out, with nil all.
func (d *Datapath) RemoveHostPorts(_ context.Context, owner uint64, keys []hostport.Key) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.Fail["RemoveHostPorts"]; err != nil {
		return err
	}
	d.remove(owner, keys)
	return nil
}

// ClaimHostPorts replaces what others have by claims.
func (d *Datapath) ClaimHostPorts(_ context.Context, owner uint64, keys []hostport.Key, _ ...func() []uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, k := range keys {
		d.putPort(hostport.NewClaim(k, owner, 1))
	}
	return d.Fail["ClaimHostPorts"]
}

// ReleaseHostPorts is RemoveHostPorts.
func (d *Datapath) ReleaseHostPorts(ctx context.Context, owner uint64, keys []hostport.Key) error {
	return d.RemoveHostPorts(ctx, owner, keys)
}

// CheckHostPorts compares the hostPorts as a whole.
func (d *Datapath) CheckHostPorts(_ context.Context, owner uint64, ports []hostport.Mapping, _ ...func() []uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range ports {
		if !slices.ContainsFunc(d.Ports, func(e hostport.Entry) bool { return reflect.DeepEqual(e, hostport.NewEntry(p, owner, 1)) }) {
			return fmt.Errorf("%w: %s", loader.ErrDiffers, p.Key)
		}
	}
	return nil
}

// HostPorts returns Ports.
func (d *Datapath) HostPorts(context.Context) ([]hostport.Entry, error) { return d.Ports, nil }

// HasFQ returns NoFQ.
func (d *Datapath) HasFQ() (bool, string) { return d.NoFQ == "", d.NoFQ }

// PodByLink finds filters.
func (*Datapath) PodByLink(int) bool { return false }

// SetRateLimit has no effect.
func (d *Datapath) SetRateLimit(context.Context, loader.RateLimit) error {
	return d.Fail["SetRateLimit"]
}

// RemoveRateLimit has no effect.
func (d *Datapath) RemoveRateLimit(context.Context, uint64, []netip.Prefix) error {
	return d.Fail["RemoveRateLimit"]
}

// CheckRateLimit finds each limit as it was set.
func (d *Datapath) CheckRateLimit(context.Context, loader.RateLimit) error {
	return d.Fail["CheckRateLimit"]
}

// RateLimits returns Limits.
func (d *Datapath) RateLimits(context.Context) ([]loader.RateLimitStatus, error) {
	return d.Limits, nil
}

// NetworkPolicies returns Networked.
func (d *Datapath) NetworkPolicies(context.Context) ([]loader.NetworkPolicyStatus, error) {
	return d.Networked, d.Fail["NetworkPolicies"]
}

// BeginNetworkPolicy has no tables.
func (d *Datapath) BeginNetworkPolicy(context.Context) (loader.NetworkPolicyTables, error) {
	return nil, loader.ErrNotLoaded
}

// Policies returns Rules.
func (d *Datapath) Policies(context.Context) ([]loader.PolicyStatus, error) {
	return d.Rules, d.Fail["Policies"]
}

// Sync counts.
func (d *Datapath) Sync(context.Context) error { d.Synced++; return nil }

// Unload counts. Nothing is loaded then.
func (d *Datapath) Unload(context.Context) error {
	d.Unloaded++
	d.State, d.Loaded = nil, false
	return nil
}

// DenyAdd adds to Denied.
func (d *Datapath) DenyAdd(_ context.Context, networks []netip.Prefix) error {
	d.Denied = append(d.Denied, networks...)
	return nil
}

// DenyDelete takes out of Denied.
func (d *Datapath) DenyDelete(_ context.Context, networks []netip.Prefix) error {
	for _, p := range networks {
		i := slices.Index(d.Denied, p)
		if i < 0 {
			return loader.ErrNotDenied
		}
		d.Denied = slices.Delete(d.Denied, i, i+1)
	}
	return nil
}

// Deny returns Denied with 12 packets each, and Uplinks.
func (d *Datapath) Deny(context.Context) (*loader.DenyStatus, error) {
	s := &loader.DenyStatus{Devices: d.Uplinks}
	for _, p := range d.Denied {
		s.Entries = append(s.Entries, loader.DenyEntry{Network: p, Packets: 12})
	}
	return s, d.Fail["Deny"]
}

// Status returns State.
func (d *Datapath) Status(context.Context) (*loader.Status, error) { return d.State, nil }

// StatusCounted returns State with the use of the maps that were counted.
func (d *Datapath) StatusCounted(_ context.Context, counted map[string]conntrack.Use) (*loader.Status, error) {
	st := *d.State
	st.Maps = slices.Clone(st.Maps)
	for i := range st.Maps {
		if use, ok := counted[st.Maps[i].Name]; ok {
			st.Maps[i].Entries, st.Maps[i].InUse = use.Entries, use.Living
		}
	}
	return &st, nil
}

// Flows returns those of Connections whose pod matches, and counts all as of one table.
func (d *Datapath) Flows(_ context.Context, f loader.FlowFilter) iter.Seq2[loader.Flow, error] {
	return func(yield func(loader.Flow, error) bool) {
		for _, flow := range d.Connections {
			if f.Counted != nil {
				use := f.Counted["sl_ct"]
				use.Entries, use.Living = use.Entries+1, use.Living+1
				f.Counted["sl_ct"] = use
			}
			if f.Pod.IsValid() && flow.Pod.Addr() != f.Pod {
				continue
			}
			if !yield(flow, nil) {
				return
			}
		}
		if err := d.Fail["Flows"]; err != nil {
			yield(loader.Flow{}, err)
		}
	}
}

func (d *Datapath) count(match func(loader.Flow) bool) (n int, err error) {
	for _, f := range d.Connections {
		if match(f) {
			n++
		}
	}
	return n, nil
}

// RelearnFlows counts the connections that match.
func (d *Datapath) RelearnFlows(_ context.Context, match func(loader.Flow) bool) (int, error) {
	return d.count(match)
}

// FlushFlows counts the connections that match, which stay.
func (d *Datapath) FlushFlows(_ context.Context, match func(loader.Flow) bool) (int, error) {
	return d.count(match)
}

// Events returns Dropped.
func (d *Datapath) Events(context.Context) iter.Seq2[loader.DropEvent, error] {
	return func(yield func(loader.DropEvent, error) bool) {
		for _, e := range d.Dropped {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// Drops returns DropCounts.
func (d *Datapath) Drops(context.Context) ([]loader.Drop, error) { return d.DropCounts, nil }

// DropSums returns Sums.
func (d *Datapath) DropSums(context.Context) (map[drops.Reason]drops.Sum, error) { return d.Sums, nil }

// ConnectionCounts returns Counts.
func (d *Datapath) ConnectionCounts(context.Context) (conntrack.Counts, error) {
	return d.Counts, d.Fail["ConnectionCounts"]
}

// LoadRequest fails: there are no programs.
func (*Datapath) LoadRequest(context.Context) (loadapi.LoadRequest, error) {
	return loadapi.LoadRequest{}, errors.New("build fake is not this one")
}

// Hooks finds nothing.
func (*Datapath) Hooks([]int) ([]loader.HookPrograms, error) { return nil, nil }
