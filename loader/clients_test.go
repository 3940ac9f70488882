// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// clientPair makes the host end of a pod that is no endpoint.
func (e *env) clientPair(name, route string) int {
	e.t.Helper()
	e.ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", e.namespace())
	e.ip("link", "set", name, "up")
	if route != "" {
		e.ip("route", "add", route, "dev", name)
	}
	return e.index(name)
}

func wantHooks(e *env, d *Datapath, index int, hooks []hook.Hook, how string) {
	e.t.Helper()
	want := make([]string, 0, len(hooks))
	for _, h := range hooks {
		want = append(want, h.Name+" "+how)
	}
	if got := hooksOf(e, d, index); !slices.Equal(got, want) {
		e.t.Errorf("device %d has %v, want %v", index, got, want)
	}
}

// A device that clients on this node are behind gets its programs from whoever looks first: a look at all devices, a look at what is new, or
// the ADD of the pod. A bridge has them once it is on the pods' side. With an endpoint, the device has that one's in their place. What goes
// leaves nothing, and Unload leaves nothing either.
func TestPrivilegedClients(t *testing.T) {
	for _, how := range []string{"auto", "tcx", "clsact"} {
		t.Run(how, func(t *testing.T) {
			by := hook.HowClsact
			if how == hook.HowTCX {
				require.TCX(t)
				by = hook.HowTCX
			}
			e := newEnv(t)
			setAttach(&e.o, how)
			e.uplink()
			old := e.clientPair("old", "10.9.0.5/32")
			e.ip("link", "add", "br0", "type", "bridge")
			e.ip("addr", "add", "10.1.0.1/16", "dev", "br0")
			e.ip("link", "set", "br0", "up")
			bridge := e.index("br0")

			d := e.open()
			e.ok(d.Sync(e.ctx))
			wantHooks(e, d, old, hook.OfClients(), by)
			ep := e.pod("pod1", "10.1.0.2/16")
			ep.RouteIfindex = bridge
			e.ok(d.Enable(e.ctx, ep, FeaturePublish))
			wantHooks(e, d, bridge, hook.OfClients(), by)
			wantHooks(e, d, ep.HostIfindex, hook.OfPod(), by)

			e.ip("link", "del", "old")
			came, port := e.clientPair("came", "10.9.0.6/32"), e.clientPair("port", "")
			e.ip("link", "set", "port", "master", "br0")
			if got := hooksOf(e, d, came); len(got) != 0 {
				t.Errorf("before anybody knows: %v", got)
			}
			for range 2 {
				e.ok(d.ServeClients(e.ctx, []string{"br0", "port", "came", "gone", "lo", "eth0", "pod1"}))
				wantHooks(e, d, came, hook.OfClients(), by)
			}
			e.ok(d.Sync(e.ctx))
			wantHooks(e, d, came, hook.OfClients(), by)
			wantHooks(e, d, bridge, hook.OfClients(), by)
			wantHooks(e, d, ep.HostIfindex, hook.OfPod(), by)
			if got := hooksOf(e, d, port); len(got) != 0 {
				t.Errorf("a port of the bridge has %v", got)
			}

			own := e.pod("pod2", "10.9.0.6/32")
			e.ip("link", "del", "pod2")
			own.HostIfindex, own.HostIfName = came, "came"
			e.ok(d.Enable(e.ctx, own, FeaturePublish))
			wantHooks(e, d, came, hook.OfPod(), by)
			e.ok(d.ServeClients(e.ctx, []string{"came"}))
			wantHooks(e, d, came, hook.OfPod(), by)
			e.ok(d.Disable(e.ctx, own.Ref.Owner(), FeaturePublish, HeldBy(own.Addrs)))
			if out := e.run("tc", "qdisc", "show", "dev", "came"); strings.Contains(out, "clsact") {
				t.Errorf("after the endpoint: %s", out)
			}
			e.ok(d.ServeClients(e.ctx, []string{"came"}))
			wantHooks(e, d, came, hook.OfClients(), by)

			if by == hook.HowClsact { // a link's pin waits for GC
				for _, index := range []int{old, came} {
					if _, err := os.Stat(d.tree.Paths.ClsactMark(index)); err == nil {
						t.Errorf("device %d has left %s", index, filepath.Base(d.tree.Paths.ClsactMark(index)))
					}
				}
			}
			e.ok(d.Unload(e.ctx))
			for _, dev := range []string{"came", "br0", "pod1", "eth0"} {
				if out := e.run("tc", "qdisc", "show", "dev", dev); strings.Contains(out, "clsact") {
					t.Errorf("after unload, %s: %s", dev, out)
				}
			}
			if left := pins(e); len(left) != 0 {
				t.Errorf("pins left: %v", left)
			}
		})
	}
}

// BenchmarkPrivilegedServeClients is what the ADD of a pod without features pays: for a device of its own, and for a port of a bridge that has
// the programs.
func BenchmarkPrivilegedServeClients(b *testing.B) {
	e := newEnv(b)
	e.o.Log = log.NewNop()
	e.uplink()
	d := e.open()
	e.ip("link", "add", "br0", "type", "bridge")
	ep := e.pod("pod1", "10.1.0.2/16")
	ep.RouteIfindex = e.index("br0")
	e.ok(d.Enable(e.ctx, ep, FeaturePublish))
	times := map[string][]float64{}
	for b.Loop() {
		for name, dev := range map[string][]string{"device": {"came"}, "port": {"br0", "port"}} {
			e.clientPair(dev[len(dev)-1], "")
			if name == "port" {
				e.ip("link", "set", "port", "master", "br0")
			}
			times[name] = append(times[name], milliseconds(func() {
				d, err := OpenExisting(e.ctx, e.o)
				e.ok(err)
				e.ok(d.ServeClients(e.ctx, dev))
				e.ok(d.Close())
			}))
			e.ip("link", "del", dev[len(dev)-1])
		}
	}
	for name, t := range times {
		slices.Sort(t)
		b.ReportMetric(t[len(t)/2], "ms-p50/"+name)
		b.ReportMetric(t[0], "ms-min/"+name)
	}
}
