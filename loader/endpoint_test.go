// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

func setAttach(o *Options, how string) { o.Config.Attach = nodeconf.Attach(how) }

// hooksOf lists our programs on a device as "hook how".
func hooksOf(e *env, d *Datapath, index int) []string {
	e.t.Helper()
	a := attach.NewAttacher(d.tree, "")
	defer a.Close()
	var out []string
	for _, h := range hook.All() {
		at, err := a.At(index, h)
		e.ok(err)
		if line := h.Name + " " + at.How; at.How != "" && !slices.Contains(out, line) { // two hooks may have one place
			out = append(out, line)
		}
	}
	return out
}

func TestPrivilegedEnableDisable(t *testing.T) {
	tests := []struct {
		attach      string
		pod, uplink string
	}{
		{"auto", hook.HowClsact, uplinkWay()},
		{"tcx", hook.HowTCX, hook.HowTCX},
		{"clsact", hook.HowClsact, hook.HowClsact},
	}
	for _, tt := range tests {
		t.Run(tt.attach, func(t *testing.T) {
			if tt.attach == hook.HowTCX {
				require.TCX(t)
			}
			e := newEnv(t)
			setAttach(&e.o, tt.attach)
			up := e.uplink()
			d := e.open()
			ep := e.pod("pod1", "10.1.0.2/16")
			for range 2 { // idempotent
				e.ok(d.Enable(e.ctx, ep, FeatureMasquerade))
				e.ok(d.Enable(e.ctx, ep, FeaturePublish))
			}
			e.ok(d.CheckEndpoint(e.ctx, ep, FeatureMasquerade|FeaturePublish))
			if err := d.CheckEndpoint(e.ctx, ep, FeatureAdmit); !errors.Is(err, ErrDiffers) {
				t.Errorf("check of a feature that is off: %v", err)
			}
			if diff := cmp.Diff([]string{"from_pod " + tt.pod, "to_pod " + tt.pod}, hooksOf(e, d, ep.HostIfindex)); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff([]string{"from_uplink " + tt.uplink, "to_uplink " + tt.uplink}, hooksOf(e, d, up)); diff != "" {
				t.Error(diff)
			}

			e.ok(d.Disable(e.ctx, ep.Ref.Owner(), FeatureMasquerade, HeldBy(ep.Addrs)))
			e.ok(d.CheckEndpoint(e.ctx, ep, FeaturePublish))
			e.ok(d.Disable(e.ctx, ep.Ref.Owner(), FeaturePublish, HeldBy(ep.Addrs)))
			e.ok(d.Disable(e.ctx, ep.Ref.Owner(), FeaturePublish, HeldBy(ep.Addrs)))
			if err := d.CheckEndpoint(e.ctx, ep, 0); !errors.Is(err, ErrDiffers) {
				t.Errorf("check after the last feature: %v", err)
			}
			if got := hooksOf(e, d, ep.HostIfindex); got != nil {
				t.Errorf("programs left: %v", got)
			}
			if out := e.run("tc", "qdisc", "show", "dev", "pod1"); strings.Contains(out, "clsact") {
				t.Errorf("our qdisc is left: %s", out)
			}
		})
	}
}

// What Enable did before its error is taken back.
func TestPrivilegedEnableUndone(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	ep := e.pod("pod1", "10.1.0.2/16")
	ep.HostIfindex = 9999
	if err := d.Enable(e.ctx, ep, FeatureAdmit); !errors.Is(err, ErrNoDevice) {
		t.Fatalf("got %v, want ErrNoDevice", err)
	}
	eps, err := d.Endpoints(e.ctx)
	e.ok(err)
	if len(eps) != 0 {
		t.Errorf("endpoints left: %+v", eps)
	}
	v, err := d.tree.EndpointMaps()
	e.ok(err)
	if keys, err := v.Stats.Keys(); err != nil || len(keys) != 0 {
		t.Errorf("counters left: %v %v", keys, err)
	}
}

func TestPrivilegedEnableMapFull(t *testing.T) {
	e := newEnv(t)
	e.o.Config.MapSizes.Endpoints = 2
	d := e.open()
	ep := e.pod("pod1", "10.1.0.2/16")
	ep.Addrs = append(ep.Addrs, netip.MustParsePrefix("10.1.0.3/16"), netip.MustParsePrefix("10.1.0.4/16"))
	if err := d.Enable(e.ctx, ep, FeatureAdmit); !errors.Is(err, ErrFull) {
		t.Fatalf("got %v, want ErrFull", err)
	}
	if eps, err := d.Endpoints(e.ctx); err != nil || len(eps) != 0 {
		t.Errorf("endpoints left: %+v %v", eps, err)
	}
	if got := hooksOf(e, d, ep.HostIfindex); got != nil {
		t.Errorf("programs left: %v", got)
	}
}

func TestPrivilegedSetMAC(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	ep := e.pod("pod1", "10.1.0.2/16")
	e.ok(d.Enable(e.ctx, ep, FeatureAdmit))
	mac := net.HardwareAddr{2, 9, 9, 9, 9, 9}
	e.ok(d.SetMAC(e.ctx, ep.Ref.Owner(), mac, HeldBy(ep.Addrs)))
	if err := d.CheckEndpoint(e.ctx, ep, FeatureAdmit); !errors.Is(err, ErrDiffers) {
		t.Errorf("check with the old MAC: %v", err)
	}
	ep.MAC = mac
	e.ok(d.CheckEndpoint(e.ctx, ep, FeatureAdmit))
}

// DEL after the runtime has taken the namespace, and the device with it.
func TestPrivilegedDisableWithoutDevice(t *testing.T) {
	for _, how := range []string{"tcx", "clsact"} {
		t.Run(how, func(t *testing.T) {
			if how == hook.HowTCX {
				require.TCX(t)
			}
			e := newEnv(t)
			setAttach(&e.o, how)
			d := e.open()
			ep := e.pod("pod1", "10.1.0.2/16")
			e.ok(d.Enable(e.ctx, ep, FeatureAdmit))
			e.ip("link", "del", "pod1")
			e.ok(d.Disable(e.ctx, ep.Ref.Owner(), FeatureAdmit, HeldBy(ep.Addrs)))
			if left := append(mustNames(t, d.tree.Paths.Links()), mustNames(t, d.tree.Paths.Clsact())...); len(left) != 0 {
				t.Errorf("pins left: %v", left)
			}
		})
	}
}

// foreignFilter puts a filter of another owner on the ingress of dev, through another tool. The bpffs is mounted already.
func (e *env) foreignFilter(dev, priority, handle string) {
	e.t.Helper()
	p, err := nextProgram()
	e.ok(err)
	defer p.Close()
	pin := e.o.Config.BPFFS + "/foreign"
	e.ok(p.Pin(pin))
	e.run("tc", "qdisc", "add", "dev", dev, "clsact")
	e.run("tc", "filter", "add", "dev", dev, "ingress", "prio", priority, "handle", handle, "protocol", "all",
		"bpf", "direct-action", "object-pinned", pin)
	e.ok(os.Remove(pin))
}

// Another program on the same hooks stays, whatever we do.
func TestPrivilegedForeignProgramsStay(t *testing.T) {
	e := newEnv(t)
	e.uplink()
	up := e.index("eth0")
	var l link.Link
	if bpfsys.KernelAtLeast(6, 6) {
		foreign, err := nextProgram()
		e.ok(err)
		defer foreign.Close()
		l, err = link.AttachTCX(link.TCXOptions{Interface: up, Program: foreign, Attach: ebpf.AttachTCXIngress})
		e.ok(err)
		defer l.Close()
	}
	ep := e.pod("pod1", "10.1.0.2/16")
	d := e.open()
	e.foreignFilter("pod1", "1", "0x1")
	e.ok(d.Enable(e.ctx, ep, FeatureAdmit))
	e.ok(d.Disable(e.ctx, ep.Ref.Owner(), FeatureAdmit, HeldBy(ep.Addrs)))
	e.ok(d.Unload(e.ctx))
	if out := e.run("tc", "filter", "show", "dev", "pod1", "ingress"); !strings.Contains(out, "foreign") {
		t.Errorf("the foreign filter is gone: %s", out)
	}
	if l == nil {
		return
	}
	info, err := l.Info()
	e.ok(err)
	if info.TCX().Ifindex != uint32(up) {
		t.Error("the foreign link was detached")
	}
}

// A filter of another owner at our priority is neither replaced nor removed.
func TestPrivilegedFilterPlaceTaken(t *testing.T) {
	e := newEnv(t)
	setAttach(&e.o, "clsact")
	d := e.open()
	ep := e.pod("pod1", "10.1.0.2/16")
	e.foreignFilter("pod1", "21324", "0x534c")
	if err := d.Enable(e.ctx, ep, FeatureAdmit); !errors.Is(err, ErrConflict) {
		t.Fatalf("got %v, want ErrConflict", err)
	}
	if out := e.run("tc", "filter", "show", "dev", "pod1", "ingress"); !strings.Contains(out, "foreign") {
		t.Errorf("the foreign filter is gone: %s", out)
	}
	// By default such a device gets tcx links.
	require.TCX(t)
	setAttach(&e.o, "auto")
	d2 := e.open()
	e.ok(d2.Enable(e.ctx, ep, FeatureAdmit))
	if diff := cmp.Diff([]string{"from_pod tcx", "to_pod tcx"}, hooksOf(e, d2, ep.HostIfindex)); diff != "" {
		t.Error(diff)
	}
}

// An ingress qdisc, as upstream bandwidth plugin makes, leaves no room for clsact.
func TestPrivilegedIngressQdisc(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	ep := e.pod("pod1", "10.1.0.2/16")
	e.run("tc", "qdisc", "add", "dev", "pod1", "ingress")
	if !bpfsys.KernelAtLeast(6, 6) {
		if err := d.Enable(e.ctx, ep, FeatureAdmit); !errors.Is(err, ErrConflict) {
			t.Errorf("got %v, want ErrConflict", err)
		}
		if out := e.run("tc", "filter", "show", "dev", "pod1", "ingress"); strings.Contains(out, "sl_") {
			t.Errorf("filter left: %s", out)
		}
		return
	}
	e.ok(d.Enable(e.ctx, ep, FeatureAdmit))
	if diff := cmp.Diff([]string{"from_pod tcx", "to_pod tcx"}, hooksOf(e, d, ep.HostIfindex)); diff != "" {
		t.Error(diff)
	}
	e.ok(d.Disable(e.ctx, ep.Ref.Owner(), FeatureAdmit, HeldBy(ep.Addrs)))
	if out := e.run("tc", "qdisc", "show", "dev", "pod1"); !strings.Contains(out, "ingress") {
		t.Errorf("the foreign qdisc is gone: %s", out)
	}
}

// Who changes the way of attaching finds the programs once, not twice.
func TestPrivilegedAttachChanges(t *testing.T) {
	require.TCX(t)
	e := newEnv(t)
	e.uplink()
	ep := e.pod("pod1", "10.1.0.2/16")
	for _, how := range []string{"clsact", "tcx", "clsact"} {
		setAttach(&e.o, how)
		d := e.open()
		e.ok(d.Enable(e.ctx, ep, FeatureAdmit))
		want := []string{"from_pod " + how, "to_pod " + how}
		if diff := cmp.Diff(want, hooksOf(e, d, ep.HostIfindex)); diff != "" {
			t.Error(diff)
		}
		filters := e.run("tc", "filter", "show", "dev", "pod1", "ingress")
		if strings.Contains(filters, "sl_from_pod") != (how == "clsact") {
			t.Errorf("%s: filters: %s", how, filters)
		}
		if len(mustNames(t, d.tree.Paths.Links())) > 0 && how == "clsact" {
			pins := slices.DeleteFunc(mustNames(t, d.tree.Paths.Links()), func(n string) bool { return !strings.Contains(n, "pod") })
			if len(pins) > 0 {
				t.Errorf("%s: link pins: %v", how, pins)
			}
		}
	}
}

// pins lists the bpffs without the two files that the kernel puts into every one.
func pins(e *env) []string {
	return slices.DeleteFunc(pathsBelow(e.o.Config.BPFFS), func(n string) bool { return strings.HasSuffix(n, ".debug") })
}

func TestPrivilegedUnloadLeavesNothing(t *testing.T) {
	for _, how := range []string{"auto", "tcx", "clsact"} {
		t.Run(how, func(t *testing.T) {
			if how == hook.HowTCX {
				require.TCX(t)
			}
			e := newEnv(t)
			setAttach(&e.o, how)
			e.uplink()
			before := fds(t)
			d, err := Open(e.ctx, e.o)
			e.ok(err)
			ep := e.pod("pod1", "10.1.0.2/16")
			e.ok(d.Enable(e.ctx, ep, FeatureAdmit|FeaturePublish))
			e.ok(d.SetHostPorts(e.ctx, ep.Ref.Owner(), nil, []hostport.Mapping{port(8080, "10.1.0.2", 80)}))
			if len(pins(e)) == 0 {
				t.Fatal("no pins")
			}
			e.ok(d.Unload(e.ctx))
			e.ok(d.Close())
			if left := pins(e); len(left) != 0 {
				t.Errorf("pins left: %v", left)
			}
			left := slices.DeleteFunc(pathsBelow(e.o.RunDir), func(n string) bool { return n == "bpffs.lock" })
			if len(left) != 0 {
				t.Errorf("files left: %v", left)
			}
			for _, dev := range []string{"eth0", "pod1"} {
				if out := e.run("tc", "qdisc", "show", "dev", dev); strings.Contains(out, "clsact") {
					t.Errorf("%s: %s", dev, out)
				}
			}
			for _, dev := range []string{"eth0", "pod1"} {
				for _, h := range hook.OfPod() {
					if !bpfsys.KernelAtLeast(6, 6) {
						continue
					}
					q, err := link.QueryPrograms(link.QueryOptions{Target: e.index(dev), Attach: ebpf.AttachType(h.TCX())})
					e.ok(err)
					if len(q.Programs) != 0 {
						t.Errorf("%s, %s: %d programs attached", dev, h.Direction(), len(q.Programs))
					}
				}
			}
			if after := fds(t); after > before {
				t.Errorf("%d descriptors before, %d after", before, after)
			}
			if _, err := os.Stat(d.tree.Paths.Dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %v", d.tree.Paths.Dir, err)
			}
		})
	}
}

// CHECK finds what another process took away, the next Open brings it back, and DEL works in between.
func TestPrivilegedPinsRemovedByHand(t *testing.T) {
	tests := []struct {
		name   string
		remove func(d *Datapath) string
	}{
		{"one program", func(d *Datapath) string {
			id, _ := d.tree.Paths.Committed()
			return d.tree.Paths.BuildDir(id) + "/sl_from_pod"
		}},
		{"all programs", func(d *Datapath) string { return d.tree.Paths.Progs() }},
		{"one map", func(d *Datapath) string { return d.tree.Paths.MapPin(pintree.MapEndpoints) }},
		{"the map of devices", func(d *Datapath) string { return d.tree.Paths.MapPin(pintree.MapPodDevices) }},
		{"everything", func(d *Datapath) string { return d.tree.Paths.Dir }},
	}
	if bpfsys.KernelAtLeast(6, 6) {
		tests = append(tests, tests[0])
		tests[len(tests)-1].name = "uplink links"
		tests[len(tests)-1].remove = func(d *Datapath) string { return d.tree.Paths.Links() }
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnv(t)
			e.uplink()
			d := e.open()
			ep := e.pod("pod1", "10.1.0.2/16")
			e.ok(d.Enable(e.ctx, ep, FeatureAdmit))
			e.ok(os.RemoveAll(tt.remove(d)))
			checker, err := OpenExisting(e.ctx, e.o)
			if err == nil {
				err = checker.CheckEndpoint(e.ctx, ep, FeatureAdmit)
				e.ok(checker.Disable(e.ctx, 1, FeatureAdmit, Held{}))
				e.ok(checker.RemoveHostPorts(e.ctx, 1, nil))
				e.ok(checker.GC(e.ctx, func(uint64) bool { return true }))
				e.ok(checker.Close())
			}
			if !errors.Is(err, ErrDiffers) && !errors.Is(err, ErrNotLoaded) {
				t.Errorf("check: %v", err)
			}
			again := e.open()
			e.ok(again.Enable(e.ctx, ep, FeatureAdmit))
			e.ok(again.CheckEndpoint(e.ctx, ep, FeatureAdmit))
			e.ok(again.Disable(e.ctx, ep.Ref.Owner(), FeatureAdmit, HeldBy(ep.Addrs)))
		})
	}
}

// Who removes pins by hand may take whole directories: the next ADD makes them again, and whatever belongs there.
func TestPrivilegedPinDirectoriesRemovedByHand(t *testing.T) {
	e := newEnv(t)
	index := e.uplink()
	d := e.open()
	e.ok(d.Sync(e.ctx))
	before, err := attach.NewAttacher(d.tree, "").At(index, hook.FromUplink())
	e.ok(err)
	ports := []hostport.Mapping{port(8080, "10.1.0.2", 80)}
	e.ok(d.SetHostPorts(e.ctx, 1, nil, ports))
	for _, dir := range []string{d.tree.Paths.Links(), d.tree.Paths.Clsact(), d.tree.Paths.RoutedDevs(), d.tree.Paths.Podns(), d.tree.Paths.EDT()} {
		e.ok(os.RemoveAll(dir))
	}
	ep := e.pod("pod1", "10.1.0.2/16")
	again := e.open()
	again.tree.NodeScanTTL = 0
	e.ok(again.Enable(e.ctx, ep, FeatureAdmit))
	e.ok(again.SetHostPorts(e.ctx, 1, nil, ports))
	e.ok(again.CheckEndpoint(e.ctx, ep, FeatureAdmit))
	e.ok(again.CheckHostPorts(e.ctx, 1, ports))
	after, err := attach.NewAttacher(again.tree, "").At(index, hook.FromUplink())
	e.ok(err)
	if after.How != before.How {
		t.Errorf("the uplink has its programs by %q, had them by %q", after.How, before.How)
	}
	if own, err := attach.NewAttacher(again.tree, "").At(ep.HostIfindex, hook.ToPod()); err != nil || own.How != hook.HowClsact {
		t.Errorf("the pod's device has its programs by %q: %v", own.How, err)
	}
}

// Where an uplink's qdisc has no egress side and the kernel has no tcx, the error says whose that is: not ours.
func TestPrivilegedIngressQdiscOfUplink(t *testing.T) {
	e := newEnv(t)
	setAttach(&e.o, "clsact")
	e.uplink()
	e.ip("route", "add", "default", "via", "192.0.2.1", "dev", "eth0")
	e.run("tc", "qdisc", "add", "dev", "eth0", "ingress")
	d := e.open()
	err := d.Sync(e.ctx)
	if !errors.Is(err, ErrConflict) || !strings.Contains(err.Error(), "ingress qdisc of eth0") || strings.Contains(err.Error(), "sl_") {
		t.Errorf("got %v", err)
	}
	if left := e.run("tc", "filter", "show", "dev", "eth0", "ingress"); left != "" {
		t.Errorf("left on the device: %s", left)
	}
}

// An uplink that leads to its own subnet only, such as the bridge of virtual machines, stops no ADD: it is left out, and its
// qdisc stays as it is. A route by a gateway makes it one that pods need.
func TestPrivilegedIngressQdiscOfSpareUplink(t *testing.T) {
	e := newEnv(t)
	setAttach(&e.o, "clsact")
	e.uplink()
	spare, _ := e.veth("virbr0")
	e.ip("addr", "add", "192.168.122.1/24", "dev", "virbr0")
	e.ip("route", "add", "default", "via", "192.0.2.1", "dev", "eth0")
	e.run("tc", "qdisc", "add", "dev", "virbr0", "ingress")
	e.run("tc", "filter", "add", "dev", "virbr0", "parent", "ffff:", "protocol", "all", "u32", "match", "u32", "0", "0", "classid", "1:1")
	qdisc := func() string {
		return e.run("tc", "qdisc", "show", "dev", "virbr0") + e.run("tc", "filter", "show", "dev", "virbr0", "ingress")
	}
	before := qdisc()
	d := e.open()
	e.ok(d.Sync(e.ctx))
	ep := e.pod("veth1", "10.1.0.2/32")
	e.ok(d.Enable(e.ctx, ep, FeatureMasquerade))
	e.ok(d.CheckEndpoint(e.ctx, ep, FeatureMasquerade))
	if after := qdisc(); after != before {
		t.Errorf("the other program's qdisc was\n%sis\n%s", before, after)
	}
	st, err := d.Status(e.ctx)
	e.ok(err)
	if len(st.Skipped) != 1 || st.Skipped[0].Ifindex != spare || st.Skipped[0].Name != "virbr0" || !strings.Contains(st.Skipped[0].Why, "ingress qdisc") || len(st.Unseen) != 0 {
		t.Errorf("left out %+v, unseen %+v", st.Skipped, st.Unseen)
	}
	if at, err := attach.NewAttacher(d.tree, "").At(e.index("eth0"), hook.ToUplink()); err != nil || at.How != hook.HowClsact {
		t.Errorf("eth0 has its program by %q, %v", at.How, err)
	}
	e.ip("route", "add", "10.99.0.0/16", "via", "192.168.122.9", "dev", "virbr0")
	if err := d.Sync(e.ctx); !errors.Is(err, ErrConflict) || !strings.Contains(err.Error(), "virbr0") {
		t.Errorf("with a route by a gateway: %v", err)
	}
	e.ip("route", "del", "10.99.0.0/16")
	e.run("tc", "qdisc", "del", "dev", "virbr0", "ingress")
	e.ok(d.Sync(e.ctx))
	if at, err := attach.NewAttacher(d.tree, "").At(spare, hook.ToUplink()); err != nil || at.How != hook.HowClsact {
		t.Errorf("virbr0 has its program by %q, %v", at.How, err)
	}
}
