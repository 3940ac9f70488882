// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/test/plugintest"
)

// fakeDatapath behaves like the loader's, in memory, ports included.
type fakeDatapath struct {
	*plugintest.Datapath
	ports map[hostport.Key]fakePort
}

type fakePort struct {
	hostport.Mapping
	owner uint64
}

func (d *fakeDatapath) GC(ctx context.Context, keep func(uint64) bool) error {
	if err := d.Datapath.GC(ctx, keep); err != nil {
		return err
	}
	maps.DeleteFunc(d.ports, func(_ hostport.Key, p fakePort) bool { return !keep(p.owner) })
	return nil
}

func (*fakeDatapath) HostPortLimits() hostport.Limits {
	return hostport.Limits{Mappings: nodeconf.DefaultHostPortsPerAttachment, Sources: nodeconf.DefaultAllowedSourcesPerAttachment}
}

func (d *fakeDatapath) SetHostPorts(_ context.Context, owner uint64, before []hostport.Key, ports []hostport.Mapping, _ ...func() []uint64) error {
	maps.DeleteFunc(d.ports, func(k hostport.Key, p fakePort) bool {
		return p.owner == owner && (before == nil || slices.Contains(before, k))
	})
	for _, p := range ports {
		d.ports[p.Key] = fakePort{p, owner}
	}
	return d.Fail["SetHostPorts"] // after the effect: the worst case for the caller
}

func (d *fakeDatapath) RemoveHostPorts(_ context.Context, owner uint64, keys []hostport.Key) error {
	if err := d.Fail["RemoveHostPorts"]; err != nil {
		return err
	}
	maps.DeleteFunc(d.ports, func(k hostport.Key, p fakePort) bool {
		return p.owner == owner && (keys == nil || slices.Contains(keys, k))
	})
	return nil
}

func (d *fakeDatapath) ClaimHostPorts(_ context.Context, owner uint64, keys []hostport.Key, _ ...func() []uint64) error {
	for _, k := range keys {
		d.ports[k] = fakePort{hostport.NewClaim(k, owner, 1).Mapping, owner}
	}
	return d.Fail["ClaimHostPorts"]
}

func (d *fakeDatapath) ReleaseHostPorts(ctx context.Context, owner uint64, keys []hostport.Key) error {
	return d.RemoveHostPorts(ctx, owner, keys)
}

func (d *fakeDatapath) CheckHostPorts(_ context.Context, owner uint64, ports []hostport.Mapping, _ ...func() []uint64) error {
	for _, p := range ports {
		if have, ok := d.ports[p.Key]; !ok || have.owner != owner || !reflect.DeepEqual(have.Mapping, p) {
			return fmt.Errorf("%w: %s", loader.ErrDiffers, p.Key)
		}
	}
	return nil
}

// node is the plugin on a datapath in memory, with a real attachment store.
type node struct {
	*plugintest.Caller
	dp *fakeDatapath
}

func newNode(t testing.TB) *node {
	dp := &fakeDatapath{&plugintest.Datapath{Fail: map[string]error{}}, map[hostport.Key]fakePort{}}
	n := &node{plugintest.NewCaller(t, Name, dp.Datapath), dp}
	open, existing := plugintest.Openers[Datapath](dp.Datapath, dp)
	n.Plugin = New(Deps{Opener: Opener{Open: open, OpenExisting: existing}, Resolve: plugintest.Resolve, Records: n.Records})
	return n
}
