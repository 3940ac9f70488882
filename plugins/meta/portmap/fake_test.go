// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"go.uber.org/zap"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniplugin"
	"github.com/sluice-cni/sluice/pkg/store"
)

// fakeDatapath behaves like the loader's, in memory.
type fakeDatapath struct {
	loaded    bool
	openErr   error // of both ways to open
	loads     int
	open      int // handles not closed
	endpoints map[uint64]*fakeEndpoint
	ports     map[mappingKey]fakePort
	fail      map[string]error // by method name
}

type fakeEndpoint struct {
	loader.Endpoint
	features loader.Feature
	gone     bool // its device
}

func newFakeDatapath() *fakeDatapath {
	return &fakeDatapath{
		endpoints: map[uint64]*fakeEndpoint{},
		ports:     map[mappingKey]fakePort{},
		fail:      map[string]error{},
	}
}

func (d *fakeDatapath) Close() error { d.open--; return nil }

func (d *fakeDatapath) Enable(_ context.Context, ep loader.Endpoint, f loader.Feature) error {
	if err := d.fail["Enable"]; err != nil {
		return err
	}
	have := d.endpoints[ep.Ref.Owner()]
	if have == nil {
		have = &fakeEndpoint{}
		d.endpoints[ep.Ref.Owner()] = have
	}
	have.Endpoint = ep
	have.features |= f
	return nil
}

func (d *fakeDatapath) Disable(_ context.Context, owner uint64, f loader.Feature) error {
	if err := d.fail["Disable"]; err != nil {
		return err
	}
	if ep := d.endpoints[owner]; ep != nil {
		if ep.features &^= f; ep.features == 0 {
			delete(d.endpoints, owner)
		}
	}
	return nil
}

func (d *fakeDatapath) CheckEndpoint(_ context.Context, ep loader.Endpoint, f loader.Feature) error {
	have := d.endpoints[ep.Ref.Owner()]
	switch {
	case have == nil:
		return fmt.Errorf("%w: no endpoint", loader.ErrDiffers)
	case have.features&f == 0:
		return fmt.Errorf("%w: features %b", loader.ErrDiffers, have.features)
	case !slices.Equal(have.Addrs, ep.Addrs):
		return fmt.Errorf("%w: addresses %v", loader.ErrDiffers, have.Addrs)
	}
	return nil
}

func (d *fakeDatapath) Endpoints(context.Context) ([]loader.EndpointStatus, error) {
	var out []loader.EndpointStatus
	for _, owner := range slices.Sorted(maps.Keys(d.endpoints)) {
		st := loader.EndpointStatus{Owner: owner, HostIfName: "veth0"}
		if d.endpoints[owner].gone {
			st.HostIfName = ""
		}
		out = append(out, st)
	}
	return out, nil
}

func (d *fakeDatapath) GC(_ context.Context, keep func(uint64) bool) error {
	if err := d.fail["GC"]; err != nil {
		return err
	}
	maps.DeleteFunc(d.endpoints, func(owner uint64, _ *fakeEndpoint) bool { return !keep(owner) })
	maps.DeleteFunc(d.ports, func(_ mappingKey, p fakePort) bool { return !keep(p.owner) })
	return nil
}

type fakePort struct {
	loader.HostPort
	owner uint64
}

func keyOf(p loader.HostPort) mappingKey { return mappingKey{p.HostIP, p.Proto, p.Port} }

func (d *fakeDatapath) Publish(_ context.Context, owner uint64, ports []loader.HostPort) error {
	maps.DeleteFunc(d.ports, func(_ mappingKey, p fakePort) bool { return p.owner == owner })
	for _, p := range ports {
		d.ports[keyOf(p)] = fakePort{p, owner}
	}
	return d.fail["Publish"] // after the effect: the worst case for the caller
}

func (d *fakeDatapath) Unpublish(_ context.Context, owner uint64, ports []loader.HostPort) error {
	if err := d.fail["Unpublish"]; err != nil {
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

// node is a plugin on fakes, with a real attachment store.
type node struct {
	t       testing.TB
	dp      *fakeDatapath
	records *store.Dir
	plugin  *cniplugin.Plugin
	deps    Deps
}

func newNode(t testing.TB) *node {
	n := &node{t: t, dp: newFakeDatapath(), records: store.Open(t.TempDir())}
	n.deps = Deps{
		Open: func(context.Context, *cniplugin.Args) (Datapath, error) {
			if n.dp.openErr != nil {
				return nil, n.dp.openErr
			}
			n.dp.loaded = true
			n.dp.loads++
			n.dp.open++
			return n.dp, nil
		},
		OpenExisting: func(context.Context, *cniplugin.Args) (Datapath, error) {
			switch {
			case n.dp.openErr != nil:
				return nil, n.dp.openErr
			case !n.dp.loaded:
				return nil, loader.ErrNotLoaded
			}
			n.dp.open++
			return n.dp, nil
		},
		Resolve: func(_ context.Context, netns, ifname string) (loader.Endpoint, error) {
			if netns == "" {
				return loader.Endpoint{}, errors.New("no namespace")
			}
			return loader.Endpoint{HostIfindex: 7, HostIfName: "veth0", MTU: 1500}, nil
		},
		Records: n.records,
	}
	n.plugin = New(n.deps)
	t.Cleanup(func() {
		if n.dp.open != 0 {
			t.Errorf("%d handles were not closed", n.dp.open)
		}
	})
	return n
}

func (n *node) args(id string, stdin []byte) *cniplugin.Args {
	return &cniplugin.Args{
		CmdArgs: skel.CmdArgs{ContainerID: id, IfName: "eth0", Netns: "/run/netns/" + id, StdinData: stdin},
		Log:     zap.NewNop(),
	}
}

func (n *node) add(id string, stdin []byte) (types.Result, error) {
	return n.plugin.Add(n.t.Context(), n.args(id, stdin))
}

func (n *node) mustAdd(id string, stdin []byte) types.Result {
	n.t.Helper()
	res, err := n.add(id, stdin)
	if err != nil {
		n.t.Fatalf("ADD %s: %v", id, err)
	}
	return res
}

// del is a DEL as poor as a runtime can make it: no namespace, no prevResult,
// no runtimeConfig.
func (n *node) del(id string) error {
	a := n.args(id, []byte(`{"cniVersion":"1.0.0","name":"net","type":"portmap"}`))
	a.Netns = ""
	return n.plugin.Del(n.t.Context(), a)
}

func (n *node) mustDel(id string) {
	n.t.Helper()
	if err := n.del(id); err != nil {
		n.t.Fatalf("DEL %s: %v", id, err)
	}
}

func (n *node) recordCount() int {
	n.t.Helper()
	records, err := n.records.List("")
	if err != nil {
		n.t.Fatal(err)
	}
	return len(records)
}

func (n *node) wantCode(err error, code uint) {
	n.t.Helper()
	if err == nil {
		n.t.Fatalf("no error, want code %d", code)
	}
	if got := cnierr.From(err); got.Code != code {
		n.t.Errorf("code %d (%s; %s), want %d", got.Code, got.Msg, got.Details, code)
	}
}

func refNamed(id string) store.Ref {
	return store.Ref{Network: "net", ContainerID: id, IfName: "eth0"}
}

func owner(id string) uint64 { return refNamed(id).Owner() }
