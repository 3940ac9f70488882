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
	"github.com/sluice-cni/sluice/pkg/test/plugintest"
)

// fakeDatapath behaves like the loader's, in memory, ports included.
type fakeDatapath struct {
	*plugintest.Datapath
	ports map[mappingKey]fakePort
}

type fakePort struct {
	loader.HostPort
	owner uint64
}

func (d *fakeDatapath) GC(ctx context.Context, keep func(uint64) bool) error {
	if err := d.Datapath.GC(ctx, keep); err != nil {
		return err
	}
	maps.DeleteFunc(d.ports, func(_ mappingKey, p fakePort) bool { return !keep(p.owner) })
	return nil
}

func (d *fakeDatapath) Publish(_ context.Context, owner uint64, ports []loader.HostPort) error {
	maps.DeleteFunc(d.ports, func(_ mappingKey, p fakePort) bool { return p.owner == owner })
	for _, p := range ports {
		d.ports[keyOf(p)] = fakePort{p, owner}
	}
	return d.Fail["Publish"] // after the effect: the worst case for the caller
}

func (d *fakeDatapath) Unpublish(_ context.Context, owner uint64, ports []loader.HostPort) error {
	if err := d.Fail["Unpublish"]; err != nil {
		return err
	}
	maps.DeleteFunc(d.ports, func(k mappingKey, p fakePort) bool {
		return p.owner == owner && (ports == nil || slices.ContainsFunc(ports, func(q loader.HostPort) bool { return keyOf(q) == k }))
	})
	return nil
}

func (d *fakeDatapath) CheckPorts(_ context.Context, owner uint64, ports []loader.HostPort) error {
	for _, p := range ports {
		if have, ok := d.ports[keyOf(p)]; !ok || have.owner != owner || !reflect.DeepEqual(have.HostPort, p) {
			return fmt.Errorf("%w: %s", loader.ErrDiffers, keyOf(p))
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
	dp := &fakeDatapath{&plugintest.Datapath{Fail: map[string]error{}}, map[mappingKey]fakePort{}}
	n := &node{plugintest.NewCaller(t, Name, dp.Datapath), dp}
	open, existing := plugintest.Openers[Datapath](dp.Datapath, dp)
	n.Plugin = New(Deps{Opener: Opener{Open: open, OpenExisting: existing}, Resolve: plugintest.Resolve, Records: n.Records})
	return n
}
