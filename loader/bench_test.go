// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
)

// benchEnv is a loaded node with an uplink and n pods, each with two addresses and one published port. Host ends that are no
// part of the measurement share one device: what a verb walks are addresses and entries.
func benchEnv(b *testing.B, n int) (*env, *Datapath) {
	b.Helper()
	e := newEnv(b)
	e.o.Log = log.NewNop()
	e.uplink()
	d, err := Open(e.ctx, e.o)
	e.ok(err)
	b.Cleanup(func() { _ = d.Close() })
	e.ip("link", "add", "br0", "type", "bridge")
	e.ip("addr", "add", "10.1.0.1/16", "dev", "br0")
	e.ip("link", "set", "br0", "up")
	for i := range n {
		ep := e.benchPod(i)
		e.ok(d.Enable(e.ctx, ep, FeatureMasquerade))
		e.ok(d.SetHostPorts(e.ctx, ep.Ref.Owner(), nil, []hostport.Mapping{port(uint16(10000+i), ep.Addrs[0].Addr().String(), 80)}))
	}
	return e, d
}

func (e *env) benchPod(i int) Endpoint {
	e.t.Helper()
	name := fmt.Sprintf("pod%d", i)
	ep := e.pod(name, fmt.Sprintf("10.1.%d.%d/16", 1+i/250, 1+i%250))
	e.ip("link", "set", name, "master", "br0")
	ep.RouteIfindex = e.index("br0")
	ep.Ref = attachments.ID{Network: "net", ContainerID: name, IfName: "eth0"}
	ep.Addrs = append(ep.Addrs, netip.MustParsePrefix(fmt.Sprintf("fd00::%d:%d/64", 1+i/250, 1+i%250)))
	return ep
}

func BenchmarkPrivilegedOpen(b *testing.B) {
	e, _ := benchEnv(b, 0)
	for b.Loop() {
		d, err := Open(e.ctx, e.o)
		e.ok(err)
		e.ok(d.Close())
	}
}

func BenchmarkPrivilegedVerbs(b *testing.B) {
	for _, n := range []int{2, 250} {
		b.Run(fmt.Sprintf("pods=%d", n), func(b *testing.B) { benchVerbs(b, n) })
	}
}

func benchVerbs(b *testing.B, n int) {
	e, _ := benchEnv(b, n)
	ep := e.benchPod(n + 1)
	owner := ep.Ref.Owner()
	ports := []hostport.Mapping{port(30000, ep.Addrs[0].Addr().String(), 80)}
	steps := []struct {
		name   string
		f      func(*Datapath) error
		before func(*Datapath)
	}{
		{"Enable", func(d *Datapath) error { return d.Enable(e.ctx, ep, FeatureMasquerade) },
			func(d *Datapath) { e.ok(d.Disable(e.ctx, owner, FeatureMasquerade, Held{})) }},
		{"EnableMore", func(d *Datapath) error { return d.Enable(e.ctx, ep, FeaturePublish) }, nil},
		{"SetHostPorts", func(d *Datapath) error { return d.SetHostPorts(e.ctx, owner, nil, ports) },
			func(d *Datapath) { e.ok(d.RemoveHostPorts(e.ctx, owner, keysOf(ports...))) }},
		{"Sync", func(d *Datapath) error { return d.Sync(e.ctx) }, nil},
		{"CheckEndpoint", func(d *Datapath) error { return d.CheckEndpoint(e.ctx, ep, FeaturePublish) }, nil},
		{"RemoveHostPorts", func(d *Datapath) error { return d.RemoveHostPorts(e.ctx, owner, nil) },
			func(d *Datapath) { e.ok(d.SetHostPorts(e.ctx, owner, nil, ports)) }},
		{"Disable", func(d *Datapath) error { return d.Disable(e.ctx, owner, ^Feature(0), Held{}) },
			func(d *Datapath) { e.ok(d.Enable(e.ctx, ep, FeatureMasquerade)) }},
	}
	for b.Loop() { // resets the metrics, so it comes first; the figures are taken apart
	}
	for _, s := range steps {
		const rounds = 41
		times := make([]float64, 0, rounds)
		for range rounds {
			// A handle of its own for each, as each plugin process has.
			if s.before != nil {
				d, err := Open(e.ctx, e.o)
				e.ok(err)
				s.before(d)
				e.ok(d.Close())
			}
			d, err := Open(e.ctx, e.o)
			e.ok(err)
			times = append(times, milliseconds(func() { e.ok(s.f(d)) }))
			e.ok(d.Close())
		}
		slices.Sort(times)
		b.ReportMetric(times[rounds/2], "ms-p50/"+s.name)
		b.ReportMetric(times[0], "ms-min/"+s.name)
	}
}

// BenchmarkPrivilegedLoad is the first Open after boot, and the Unload after it.
func BenchmarkPrivilegedLoad(b *testing.B) {
	e := newEnv(b)
	e.o.Log = log.NewNop()
	e.uplink()
	var load, unload float64
	n := 0
	for b.Loop() {
		var d *Datapath
		load += milliseconds(func() {
			var err error
			d, err = Open(e.ctx, e.o)
			e.ok(err)
		})
		unload += milliseconds(func() { e.ok(d.Unload(e.ctx)) })
		e.ok(d.Close())
		n++
	}
	b.ReportMetric(load/float64(n), "ms/load")
	b.ReportMetric(unload/float64(n), "ms/unload")
}
