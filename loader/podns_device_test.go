// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/attachments"
	podnsmap "github.com/sluice-cni/sluice/pkg/maps/podns"
)

// insider makes a macvlan device in a namespace of its own and describes it.
func (e *env) insider(id, addr4 string) (ep Endpoint, in func(args ...string) string) {
	e.t.Helper()
	ns := e.namespace()
	in = func(args ...string) string {
		e.t.Helper()
		return e.run("nsenter", append([]string{"--net=" + ns}, args...)...)
	}
	// Not "ip link add link eth0 netns NS": the parent must be found in this namespace.
	e.ip("link", "add", "link", "eth0", "name", id, "type", "macvlan", "mode", "bridge")
	e.ip("link", "set", id, "netns", ns)
	in("ip", "link", "set", id, "name", "net1")
	in("ip", "addr", "add", addr4, "dev", "net1")
	in("ip", "link", "set", "net1", "up")
	ep, err := ResolvePodns(e.ctx, ns, "net1")
	e.ok(err)
	ep.Ref = attachments.ID{Network: "lan", ContainerID: id, IfName: "net1"}
	return ep, in
}

// filters returns what "tc filter show" says of our programs on net1.
func filters(in func(...string) string) string {
	return in("tc", "filter", "show", "dev", "net1", "egress") + in("tc", "filter", "show", "dev", "net1", "ingress")
}

func TestPrivilegedPodnsDevice(t *testing.T) {
	e := newEnv(t)
	e.uplink()
	d := e.open()
	ep, in := e.insider("pod1", "192.0.2.20/24")
	if ep.HostIfindex != 0 || ep.Podns == nil || ep.Podns.Ifindex == 0 {
		t.Fatalf("resolved: %+v", ep)
	}
	if _, err := Resolve(e.ctx, ep.Podns.Netns, "net1"); !errors.Is(err, ErrNoDevice) {
		t.Errorf("Resolve of a device without host end: %v", err)
	}
	if err := d.Enable(e.ctx, ep, FeaturePublish); !errors.Is(err, ErrNoDevice) {
		t.Errorf("publish without a host end: %v", err)
	}
	for range 2 {
		e.ok(d.Enable(e.ctx, ep, FeatureAdmit))
	}
	e.ok(d.CheckEndpoint(e.ctx, ep, FeatureAdmit))
	text := filters(in)
	if strings.Count(text, " name sl_ns_egress") != 1 || strings.Count(text, " name sl_ns_ingress") != 1 {
		t.Errorf("filters:\n%s", text)
	}
	pingFails(in, "192.0.2.99") // no host answers: what counts is that the question was seen
	eps, err := d.Endpoints(e.ctx)
	e.ok(err)
	if len(eps) != 1 || eps[0].Stats.TxPackets == 0 || eps[0].Netns != ep.Podns.Netns || eps[0].Number == 0 {
		t.Errorf("endpoints: %+v", eps)
	}
	s, err := d.Status(e.ctx)
	e.ok(err)
	for _, dev := range s.Devices {
		if dev.Role == "pod" {
			t.Errorf("a device of the node: %+v", dev)
		}
	}

	elsewhere := *ep.Podns
	elsewhere.Netns = filepath.Join(t.TempDir(), "ns")
	e.ok(os.WriteFile(elsewhere.Netns, nil, 0o600))
	e.run("mount", "--bind", ep.Podns.Netns, elsewhere.Netns)
	other := ep
	other.Podns = &elsewhere
	e.ok(d.CheckEndpoint(e.ctx, other, FeatureAdmit))
	e.run("umount", elsewhere.Netns)
	elsewhere.Netns = e.namespace()
	if err := d.CheckEndpoint(e.ctx, other, FeatureAdmit); !errors.Is(err, ErrDiffers) {
		t.Errorf("another namespace: %v", err)
	}

	in("tc", "filter", "del", "dev", "net1", "egress")
	if err := d.CheckEndpoint(e.ctx, ep, FeatureAdmit); !errors.Is(err, ErrDiffers) {
		t.Errorf("a filter is gone: %v", err)
	}
	e.ok(d.Enable(e.ctx, ep, FeatureAdmit))
	e.ok(d.CheckEndpoint(e.ctx, ep, FeatureAdmit))

	for range 2 {
		e.ok(d.Disable(e.ctx, ep.Ref.Owner(), FeatureAdmit, HeldBy(ep.Addrs)))
	}
	if text := in("tc", "qdisc", "show", "dev", "net1"); strings.Contains(text, "clsact") {
		t.Errorf("left in the pod: %s", text)
	}
	e.noPodnsDevice(d)
}

// pingFails sends one echo request that need not be answered.
func pingFails(in func(...string) string, addr string) {
	in("sh", "-c", "ping -c1 -W1 "+addr+" || true")
}

func (e *env) noPodnsDevice(d *Datapath) {
	e.t.Helper()
	m, err := d.tree.Pinned(pintree.MapPodnsDevices)
	e.ok(err)
	all, err := podnsmap.New(m).All()
	e.ok(err)
	eps, err := d.tree.EndpointMaps()
	e.ok(err)
	keys, err := eps.Stats.Keys()
	e.ok(err)
	if marks := marksIn(e.t, d.tree.Paths.Podns()); len(all) != 0 || len(keys) != 0 || len(marks) != 0 {
		e.t.Errorf("left: %+v, counters %v, marks %v", all, keys, marks)
	}
}

// A second qdisc user of the pod keeps the qdisc; its filters stay.
func TestPrivilegedPodnsDeviceShared(t *testing.T) {
	e := newEnv(t)
	e.uplink()
	d := e.open()
	ep, in := e.insider("pod1", "192.0.2.20/24")
	p, err := nextProgram()
	e.ok(err)
	defer p.Close()
	pin := e.o.Config.BPFFS + "/foreign"
	e.ok(p.Pin(pin))
	in("tc", "qdisc", "add", "dev", "net1", "clsact")
	in("tc", "filter", "add", "dev", "net1", "egress", "bpf", "direct-action", "object-pinned", pin)
	e.ok(d.Enable(e.ctx, ep, FeatureAdmit))
	e.ok(d.Disable(e.ctx, ep.Ref.Owner(), FeatureAdmit, HeldBy(ep.Addrs)))
	text := filters(in)
	if !strings.Contains(text, "foreign") || strings.Contains(text, "sl_own") {
		t.Errorf("filters:\n%s", text)
	}
}

// Another build replaces the programs inside the pods.
func TestPrivilegedPodnsDeviceUpgrade(t *testing.T) {
	e := newEnv(t)
	e.uplink()
	d := e.open()
	ep, in := e.insider("pod1", "192.0.2.20/24")
	e.ok(d.Enable(e.ctx, ep, FeatureAdmit))
	before := filters(in)
	e.o.Config.AntiSpoof = !e.o.Config.AntiSpoof
	d2 := e.open()
	e.ok(d2.CheckEndpoint(e.ctx, ep, FeatureAdmit))
	after := filters(in)
	if before == after || strings.Count(after, " name sl_ns_") != 2 {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	e.ok(d2.Unload(e.ctx))
	if text := filters(in); strings.Contains(text, "sl_") {
		t.Errorf("after unload:\n%s", text)
	}
}

// The namespace goes before DEL; GC takes what has no owner; a path that leads to another namespace is left alone.
func TestPrivilegedPodnsDeviceGone(t *testing.T) {
	e := newEnv(t)
	e.uplink()
	d := e.open()
	ep, _ := e.insider("pod1", "192.0.2.20/24")
	stranger, in := e.insider("pod2", "192.0.2.21/24")
	gone := e.t.TempDir() + "/ns"
	e.ok(os.Symlink(ep.Podns.Netns, gone))
	ep.Podns.Netns = gone
	e.ok(d.Enable(e.ctx, ep, FeatureAdmit))
	e.ok(d.Enable(e.ctx, stranger, FeatureAdmit))

	e.ok(os.Remove(gone))
	e.ok(os.Symlink(stranger.Podns.Netns, gone)) // the path is used again
	if err := d.CheckEndpoint(e.ctx, ep, FeatureAdmit); !errors.Is(err, ErrDiffers) {
		t.Errorf("check: %v", err)
	}
	e.ok(d.Disable(e.ctx, ep.Ref.Owner(), FeatureAdmit, HeldBy(ep.Addrs)))
	if text := filters(in); strings.Count(text, " name sl_ns_") != 2 {
		t.Errorf("a stranger's filters:\n%s", text)
	}
	e.ok(os.Remove(gone))
	e.ok(d.GC(e.ctx, func(owner uint64) bool { return owner == stranger.Ref.Owner() }))
	e.ok(d.CheckEndpoint(e.ctx, stranger, FeatureAdmit))
	e.ok(d.GC(e.ctx, func(uint64) bool { return false }))
	e.noPodnsDevice(d)
	if text := filters(in); strings.Contains(text, "sl_") {
		t.Errorf("after GC:\n%s", text)
	}
}

func TestPodnsNumbers(t *testing.T) {
	taken := map[uint32]bool{}
	for range podnsmap.Last {
		n, err := podnsmap.Free(func(n uint32) bool { return taken[n] })
		if err != nil || n < podnsmap.First || n > podnsmap.Last || taken[n] {
			t.Fatalf("%d after %d: %v", n, len(taken), err)
		}
		taken[n] = true
	}
	if _, err := podnsmap.Free(func(n uint32) bool { return taken[n] }); !errors.Is(err, podnsmap.ErrNoNumber) {
		t.Errorf("all taken: %v", err)
	}
}
