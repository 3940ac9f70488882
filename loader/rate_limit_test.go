// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
	"github.com/sluice-cni/sluice/pkg/test/pktgen"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// limited gives the pod a limit on what it sends, on its own device and at its host veth.
func (e *env) limited(d *Datapath, ep Endpoint) (own, police RateLimit) {
	e.t.Helper()
	own = RateLimit{Ref: ep.Ref, Egress: true, Ifindex: e.index(ep.HostIfName + "p"), IfName: ep.HostIfName + "p", Rate: 100_000, Burst: 20_000}
	police = own
	police.Police, police.Ifindex, police.IfName = true, ep.HostIfindex, ep.HostIfName
	for range 2 {
		e.ok(d.SetRateLimit(e.ctx, own))
		e.ok(d.SetRateLimit(e.ctx, police))
	}
	e.ok(errors.Join(d.CheckRateLimit(e.ctx, own), d.CheckRateLimit(e.ctx, police)))
	if all, err := d.RateLimits(e.ctx); err != nil || len(all) != 2 {
		e.t.Fatalf("limits %+v %v", all, err)
	}
	return own, police
}

// flood sends n frames from the pod's end, past its queue and its programs.
func (e *env) flood(ep Endpoint, n int) {
	e.t.Helper()
	s, err := pktgen.NewSocket(e.index(ep.HostIfName + "p"))
	e.ok(err)
	defer s.Close()
	frame := append(frameOf(netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("192.0.2.99"), 0), make([]byte, 1000)...)
	e.ok(s.Send(frame, n))
}

// policer returns the status of the only policer.
func (e *env) policer(d *Datapath) (l RateLimitStatus) {
	e.t.Helper()
	all, err := d.RateLimits(e.ctx)
	e.ok(err)
	for _, s := range all {
		if s.Police {
			return s
		}
	}
	e.t.Fatalf("no policer: %+v", all)
	return l
}

func (e *env) ingress(device string) string {
	e.t.Helper()
	return e.run("tc", "filter", "show", "dev", device, "ingress")
}

// The policer runs before the program that may redirect, drops what is beyond rate, burst and slack, and is counted for the pod.
func TestPrivilegedPolicer(t *testing.T) {
	e := newEnv(t)
	setAttach(&e.o, "clsact")
	e.uplink()
	d := e.open()
	ep := e.pod("pod1", "10.1.0.2/16")
	_, police := e.limited(d, ep)
	e.ok(d.Enable(e.ctx, ep, FeatureAdmit))
	text := e.ingress("pod1")
	if before, after := strings.Index(text, "sl_edt"), strings.Index(text, "sl_from_pod"); before < 0 || after < before {
		t.Errorf("filters:\n%s", text)
	}

	e.flood(ep, 2000)
	l := e.policer(d)
	// The rate is low, so that the test lasts no part of a second that counts: 20 kB and the slack pass, of 2 MB.
	if l.Drops < 1000 || l.Bytes < 20_000 || l.Owner != ep.Ref.Owner() || l.Backlog != 0 {
		t.Errorf("policer %+v", l)
	}
	all, err := d.RateLimits(e.ctx)
	e.ok(err)
	for _, own := range all {
		if !own.Police && own.Packets > 100 { // the kernel sends some of its own
			t.Errorf("the flood did not go past the pod's program: %+v", own)
		}
	}
	list, err := d.Drops(e.ctx)
	e.ok(err)
	counted := uint64(0)
	for _, x := range list {
		if x.Reason == drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_RATE) && x.Owner == ep.Ref.Owner() && x.Device == "pod1" {
			counted += x.Packets
		}
	}
	if counted != l.Drops {
		t.Errorf("%d drops counted for the pod, the policer has %d: %+v", counted, l.Drops, list)
	}

	// Another build's program takes its place, with the same limit.
	e.o.Config.AntiSpoof = !e.o.Config.AntiSpoof
	d2 := e.open()
	if now := e.ingress("pod1"); now == text || strings.Count(now, "name sl_edt") != 1 {
		t.Errorf("after the upgrade:\n%s", now)
	}
	e.ok(d2.CheckRateLimit(e.ctx, police))
	e.flood(ep, 2000)
	if now := e.policer(d2); now.Drops < l.Drops+1000 {
		t.Errorf("after the upgrade: %+v, before %+v", now, l)
	}

	e.run("tc", "filter", "del", "dev", "pod1", "ingress", "pref", "21323")
	if err := d2.CheckRateLimit(e.ctx, police); !errors.Is(err, ErrDiffers) {
		t.Errorf("the filter is gone: %v", err)
	}
}

// What the ways to remove a limit leave of it: nothing, and the pod's other programs stay.
func TestPrivilegedPolicerGoes(t *testing.T) {
	e := newEnv(t)
	setAttach(&e.o, "clsact")
	e.uplink()
	for name, remove := range map[string]func(*Datapath, Endpoint) error{
		"DEL": func(d *Datapath, ep Endpoint) error { return d.RemoveRateLimit(e.ctx, ep.Ref.Owner(), nil) },
		"GC":  func(d *Datapath, _ Endpoint) error { return d.GC(e.ctx, func(owner uint64) bool { return owner == 0 }) },
		"device gone": func(d *Datapath, ep Endpoint) error {
			e.ip("link", "del", ep.HostIfName)
			return d.RemoveRateLimit(e.ctx, ep.Ref.Owner(), nil)
		},
	} {
		d := e.open()
		ep := e.pod("pod1", "10.1.0.2/16")
		e.limited(d, ep)
		e.ok(remove(d, ep))
		e.ok(d.RemoveRateLimit(e.ctx, ep.Ref.Owner(), nil)) // again
		if all, err := d.RateLimits(e.ctx); err != nil || len(all) != 0 {
			t.Errorf("%s: limits left: %+v %v", name, all, err)
		}
		if marks := marksIn(t, d.tree.Paths.EDT()); len(marks) != 0 {
			t.Errorf("%s: notes left: %v", name, marks)
		}
		if name != "device gone" {
			for _, device := range []string{"pod1", "pod1p"} {
				if q := e.run("tc", "qdisc", "show", "dev", device); strings.Contains(q, "clsact") {
					t.Errorf("%s: left on %s: %s", name, device, q)
				}
			}
			e.ip("link", "del", "pod1")
		}
		e.ok(d.Close())
	}

	d := e.open()
	ep := e.pod("pod1", "10.1.0.2/16")
	e.ok(d.Enable(e.ctx, ep, FeatureAdmit))
	e.limited(d, ep)
	e.ok(d.RemoveRateLimit(e.ctx, ep.Ref.Owner(), nil))
	if text := e.ingress("pod1"); strings.Contains(text, "sl_edt") || !strings.Contains(text, "sl_from_pod") {
		t.Errorf("filters after DEL:\n%s", text)
	}
	e.limited(d, ep)
	e.ok(d.Unload(e.ctx))
	if text := e.ingress("pod1"); strings.Contains(text, "sl_") {
		t.Errorf("filters after unload:\n%s", text)
	}
}

// A filter of another owner in the policer's place stays, and is an error that leaves nothing.
func TestPrivilegedPolicerPlaceTaken(t *testing.T) {
	e := newEnv(t)
	e.uplink()
	d := e.open()
	ep := e.pod("pod1", "10.1.0.2/16")
	e.run("tc", "qdisc", "add", "dev", "pod1", "clsact")
	e.run("tc", "filter", "add", "dev", "pod1", "ingress", "pref", "21323", "protocol", "all", "u32", "match", "u32", "0", "0")
	s := RateLimit{Ref: ep.Ref, Egress: true, Police: true, Ifindex: ep.HostIfindex, IfName: "pod1", Rate: 1000, Burst: 1000}
	if err := d.SetRateLimit(e.ctx, s); !errors.Is(err, ErrConflict) {
		t.Errorf("got %v", err)
	}
	all, err := d.RateLimits(e.ctx)
	if marks := marksIn(t, d.tree.Paths.EDT()); err != nil || len(all) != 0 || len(marks) != 0 || !strings.Contains(e.ingress("pod1"), "u32") {
		t.Errorf("limits %+v, notes %v, %v", all, marks, err)
	}
	s.Egress = false
	if err := d.SetRateLimit(e.ctx, s); err == nil || errors.Is(err, ErrConflict) {
		t.Errorf("a policer of what the pod gets: %v", err)
	}
}

// Where programs hang by tcx, the policer is behind them.
func TestPrivilegedPodByLink(t *testing.T) {
	require.TCX(t)
	e := newEnv(t)
	e.uplink()
	d := e.open()
	ep := e.pod("pod1", "10.1.0.2/16")
	if d.PodByLink(ep.HostIfindex) {
		t.Error("by default")
	}
	e.o.Config.Attach = "tcx"
	if !e.open().PodByLink(ep.HostIfindex) {
		t.Error("the configuration says tcx")
	}
}
