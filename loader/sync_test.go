// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
)

// known returns the node's addresses and the names of its uplinks, as the programs know them.
func known(e *env, d *Datapath) (addrs, uplinks []string) {
	e.t.Helper()
	raw, err := d.tree.Pinned(pintree.MapNodeAddrs)
	e.ok(err)
	all, err := endpoint.NewHostAddrs(raw).All()
	e.ok(err)
	for a := range all {
		addrs = append(addrs, a.String())
	}
	slices.Sort(addrs)
	um, err := d.tree.Pinned(pintree.MapUplinks)
	e.ok(err)
	ups, err := endpoint.NewUplinks(um).All()
	e.ok(err)
	for index := range ups {
		l, err := e.h.LinkByIndex(int(index))
		e.ok(err)
		uplinks = append(uplinks, l.Name)
		if got := hooksOf(e, d, int(index)); len(got) != 2 || !strings.HasPrefix(got[0], "from_uplink") {
			e.t.Errorf("%s: %v", l.Name, got)
		}
	}
	slices.Sort(uplinks)
	return addrs, uplinks
}

func wantKnown(e *env, d *Datapath, wantAddrs, wantUplinks []string) {
	e.t.Helper()
	addrs, uplinks := known(e, d)
	if diff := cmp.Diff(wantAddrs, addrs); diff != "" {
		e.t.Errorf("node addresses:\n%s", diff)
	}
	if diff := cmp.Diff(wantUplinks, uplinks); diff != "" {
		e.t.Errorf("uplinks:\n%s", diff)
	}
}

func TestPrivilegedDiscovery(t *testing.T) {
	e := newEnv(t)
	e.uplink()
	e.ip("addr", "add", "203.0.113.7/32", "dev", "lo") // an anycast address: the node's
	e.veth("routed")                                   // no address, but a network behind it
	e.ip("route", "add", "198.51.100.0/24", "dev", "routed")
	e.veth("cali1") // the host veth of a third party's pod
	e.ip("route", "add", "10.9.0.5/32", "dev", "cali1")
	e.ip("tuntap", "add", "tun0", "mode", "tun") // no Ethernet header
	e.ip("addr", "add", "10.8.0.1/24", "dev", "tun0")
	e.ip("link", "set", "tun0", "up")
	e.veth("idle")
	e.ip("link", "add", "br0", "type", "bridge")
	e.ip("addr", "add", "10.1.0.1/16", "dev", "br0")
	e.ip("link", "set", "br0", "up")

	d := e.open()
	e.ok(d.Sync(e.ctx))
	addrs := []string{"10.1.0.1", "10.8.0.1", "192.0.2.10", "2001:db8::10", "203.0.113.7"}
	wantKnown(e, d, addrs, []string{"br0", "eth0", "routed", "tun0"})
	s, err := d.Status(e.ctx)
	e.ok(err)
	if len(s.Skipped) != 0 {
		t.Errorf("skipped: %+v", s.Skipped)
	}
	for _, dev := range s.Devices {
		for _, p := range dev.Programs {
			if !p.OK || strings.HasSuffix(p.Name, "_l3dev") != (dev.Name == "tun0") {
				t.Errorf("%s: %+v", dev.Name, p)
			}
		}
	}

	// With the first pod behind it the bridge is on the pods' side.
	ep := e.pod("pod1", "10.1.0.2/16")
	ep.RouteIfindex = e.index("br0")
	e.ok(d.Enable(e.ctx, ep, FeatureMasquerade))
	wantKnown(e, d, addrs, []string{"eth0", "routed", "tun0"})

	// It stays there when the pod has gone, or it would change sides with every pod.
	e.ok(d.Disable(e.ctx, ep.Ref.Owner(), FeatureMasquerade, HeldBy(ep.Addrs)))
	e.ok(d.Sync(e.ctx))
	wantKnown(e, d, addrs, []string{"eth0", "routed", "tun0"})

	// What changes is followed, what goes is forgotten.
	e.ip("addr", "add", "192.0.2.11/24", "dev", "eth0")
	e.ip("addr", "del", "2001:db8::10/64", "dev", "eth0")
	e.ip("link", "del", "routed")
	e.ok(d.Sync(e.ctx))
	wantKnown(e, d, []string{"10.1.0.1", "10.8.0.1", "192.0.2.10", "192.0.2.11", "203.0.113.7"}, []string{"eth0", "tun0"})
	up := e.index("eth0")
	tun := e.index("tun0")
	want := []string{
		pintree.LinkName(up, hook.ToUplink()), pintree.LinkName(up, hook.FromUplink()), pintree.LinkName(tun, hook.ToL3Uplink()), pintree.LinkName(tun, hook.FromL3Uplink()),
	}
	slices.Sort(want)
	if uplinkWay() == hook.HowClsact {
		want = nil
	}
	if diff := cmp.Diff(want, mustNames(t, d.tree.Paths.Links()), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("links:\n%s", diff)
	}

	// A device that has gone is remembered no longer.
	e.ip("link", "del", "br0")
	e.ok(d.GC(e.ctx, func(uint64) bool { return true }))
	if left := mustNames(t, d.tree.Paths.RoutedDevs()); len(left) != 0 {
		t.Errorf("marks left: %v", left)
	}
	e.ip("link", "add", "br0", "type", "bridge")
	e.ip("addr", "add", "10.1.0.1/32", "dev", "br0")

	// Programs that another process took off come back.
	if uplinkWay() == hook.HowTCX {
		e.ok(os.Remove(d.tree.Paths.LinkPin(up, hook.FromUplink())))
	} else {
		e.run("tc", "filter", "del", "dev", "eth0", "ingress")
	}
	e.ok(d.Sync(e.ctx))
	wantKnown(e, d, []string{"10.1.0.1", "10.8.0.1", "192.0.2.10", "192.0.2.11", "203.0.113.7"}, []string{"eth0", "tun0"})
}

// What was masqueraded with an address that the node has no more starts anew, however long the pod keeps it alive.
func TestPrivilegedSourceGone(t *testing.T) {
	e := newEnv(t)
	e.uplink()
	e.ip("addr", "add", "198.51.100.200/24", "dev", "eth0")
	e.ip("addr", "add", "2001:db8:7::200/64", "dev", "eth0", "nodad")
	d := e.open()
	e.ok(d.Sync(e.ctx))
	now := uint64(conntrack.Now())
	const nat = uint32(bpfgen.TypesSlCtFlagSL_CT_SNAT | bpfgen.TypesSlCtFlagSL_CT_POD_OPENED)
	put := func(name, pod, remote, node string) {
		m, err := d.tree.Pinned(name)
		e.ok(err)
		inside, outside := tuple(unix.IPPROTO_UDP, pod, remote), tuple(unix.IPPROTO_UDP, node, remote)
		e.ok(bpfsys.Put(m, inside, bpfgen.TypesSlCtEntry{Other: outside, Flags: nat, Created: now, LastSeen: now, Owner: 7}))
		e.ok(bpfsys.Put(m, outside, bpfgen.TypesSlCtEntry{Other: inside, Flags: nat | uint32(bpfgen.TypesSlCtFlagSL_CT_REVERSE), Created: now, LastSeen: now, Owner: 7}))
	}
	left := func() (n int) {
		for _, name := range []string{pintree.MapConntrack, pintree.MapConntrackUnassured} {
			m, err := d.tree.Pinned(name)
			e.ok(err)
			use, err := conntrack.New(m).Use(conntrack.Now())
			e.ok(err)
			n += use.Entries
		}
		return n
	}
	put(pintree.MapConntrack, "10.1.0.2:1000", "203.0.113.1:53", "198.51.100.200:61000")
	put(pintree.MapConntrackUnassured, "10.1.0.2:1001", "203.0.113.1:53", "198.51.100.200:61001")
	put(pintree.MapConntrack, "[fd00::2]:1000", "[2001:db8:f::1]:53", "[2001:db8:7::200]:61000")
	put(pintree.MapConntrack, "10.1.0.2:1002", "203.0.113.1:53", "192.0.2.10:61002")
	e.ok(d.Sync(e.ctx))
	if n := left(); n != 8 {
		t.Errorf("%d entries while all addresses are there, want 8", n)
	}
	e.ip("addr", "del", "198.51.100.200/24", "dev", "eth0")
	e.ip("addr", "del", "2001:db8:7::200/64", "dev", "eth0")
	e.ok(d.Sync(e.ctx))
	if n := left(); n != 2 {
		t.Errorf("%d entries, want the 2 of the address that is left", n)
	}
}

// A look at the node holds for a moment, also for new pods: but not for one whose devices it did not see.
func TestPrivilegedLookHolds(t *testing.T) {
	e := newEnv(t)
	e.uplink()
	d := e.open()
	d.tree.NodeScanTTL = time.Hour
	ptp := func(name, addr, gateway string) Endpoint {
		ep := e.pod(name, addr+"/32")
		e.ip("addr", "add", gateway+"/32", "dev", name)
		ep.RouteIfindex = ep.HostIfindex
		return ep
	}
	// An address of lo is what only a look finds.
	looked := func() bool {
		t.Helper()
		addrs, _ := known(e, d)
		return slices.Contains(addrs, "203.0.113.7")
	}
	change := func(verb string) { e.ip("addr", verb, "203.0.113.7/32", "dev", "lo") }
	e.ok(d.Enable(e.ctx, ptp("pod1", "10.1.0.2", "10.1.0.1"), FeatureMasquerade))
	wantKnown(e, d, []string{"10.1.0.1", "192.0.2.10", "2001:db8::10"}, []string{"eth0"})

	change("add")
	e.ok(d.Enable(e.ctx, ptp("pod2", "10.1.0.3", "10.1.0.1"), FeatureMasquerade))
	if looked() {
		t.Error("a second pod with the same gateway made a look")
	}
	e.ok(d.Enable(e.ctx, ptp("pod3", "10.2.0.3", "10.2.0.1"), FeatureMasquerade))
	if !looked() {
		t.Error("a pod with another gateway made no look")
	}
	change("del")
	d.tree.NodeScanTTL = 0
	e.ok(d.Enable(e.ctx, ptp("pod4", "10.1.0.4", "10.1.0.1"), FeatureMasquerade))
	if looked() {
		t.Error("the look held too long")
	}
	d.tree.NodeScanTTL = time.Hour

	// What changes about the uplinks is seen at once.
	for i, tt := range []struct {
		edit []string
		want []string
	}{
		{[]string{"addr", "add", "192.0.2.99/24", "dev", "eth0"}, []string{"192.0.2.10", "192.0.2.99", "2001:db8::10"}},
		{[]string{"addr", "del", "192.0.2.99/24", "dev", "eth0"}, []string{"192.0.2.10", "2001:db8::10"}},
		{[]string{"addr", "del", "2001:db8::10/64", "dev", "eth0"}, []string{"192.0.2.10"}},
	} {
		e.ip(tt.edit...)
		e.ok(d.Enable(e.ctx, ptp(fmt.Sprintf("new%d", i), fmt.Sprintf("10.1.1.%d", i), "10.1.0.1"), FeatureMasquerade))
		wantKnown(e, d, append([]string{"10.1.0.1", "10.2.0.1"}, tt.want...), []string{"eth0"})
	}
}

func TestPrivilegedConfiguredUplinks(t *testing.T) {
	e := newEnv(t)
	e.uplink()
	e.veth("eth1")
	e.o.Config.Uplinks = []string{"eth1", "eth7"}
	d := e.open()
	e.ok(d.Sync(e.ctx))
	wantKnown(e, d, []string{"192.0.2.10", "2001:db8::10"}, []string{"eth1"})
	s, err := d.Status(e.ctx)
	e.ok(err)
	if len(s.Skipped) != 1 || s.Skipped[0].Name != "eth7" {
		t.Errorf("skipped: %+v", s.Skipped)
	}
}

func TestPrivilegedSources(t *testing.T) {
	e := newEnv(t)
	up, _ := e.veth("eth0")
	e.ip("addr", "add", "169.254.9.9/16", "dev", "eth0", "scope", "link")
	e.ip("addr", "add", "192.0.2.10/24", "dev", "eth0")
	e.ip("addr", "add", "192.0.2.11/24", "dev", "eth0")
	e.ip("addr", "add", "2001:db8::11/64", "dev", "eth0", "nodad", "preferred_lft", "0")
	e.ip("addr", "add", "2001:db8::10/64", "dev", "eth0", "nodad")
	d := e.open()
	e.ok(d.Sync(e.ctx))
	raw, err := d.tree.Pinned(pintree.MapUplinks)
	e.ok(err)
	all, err := endpoint.NewUplinks(raw).All()
	e.ok(err)
	want := endpoint.Sources{V4: netip.MustParseAddr("192.0.2.10"), V6: netip.MustParseAddr("2001:db8::10")}
	if all[uint32(up)] != want {
		t.Errorf("sources %+v, want %+v", all[uint32(up)], want)
	}
}

func TestPrivilegedReservedPorts(t *testing.T) {
	e := newEnv(t)
	set := func(v string) { e.ok(os.WriteFile("/proc/sys/net/ipv4/ip_local_reserved_ports", []byte(v), 0)) }
	d := e.open()
	has := func(p uint16) bool {
		m, err := d.tree.Pinned(pintree.MapReservedPorts)
		e.ok(err)
		word, ok, err := bpfsys.Lookup[uint64](m, uint32(p/64))
		e.ok(err)
		return ok && word>>(p%64)&1 == 1
	}
	set("61000,62000-62010")
	e.ok(d.Sync(e.ctx))
	if !has(61000) || !has(62000) || !has(62010) || has(62011) {
		t.Error("reserved ports are not in the map")
	}
	set("\n")
	e.ok(d.Sync(e.ctx))
	if has(61000) || has(62010) {
		t.Error("ports that are reserved no more are still in the map")
	}
}

func TestParseReserved(t *testing.T) {
	for in, want := range map[string]bool{"": true, "1": true, "1,2-5": true, "0": true, "5-2": false, "x": false, "70000": false} {
		if _, err := hostport.ParseReserved(in); (err == nil) != want {
			t.Errorf("%q: %v", in, err)
		}
	}
}

// Status says what of the node has changed since the last look; the next one takes it in.
func TestPrivilegedStatusUnseen(t *testing.T) {
	e := newEnv(t)
	e.veth("eth0")
	e.ip("addr", "add", "192.0.2.1/24", "dev", "eth0")
	d := e.open()
	e.ok(d.Sync(e.ctx))
	unseen := func() []Unseen {
		t.Helper()
		s, err := d.Status(e.ctx)
		e.ok(err)
		return s.Unseen
	}
	if got := unseen(); len(got) != 0 {
		t.Errorf("after a look: %+v", got)
	}
	e.veth("eth1")
	e.ip("addr", "add", "198.51.100.1/24", "dev", "eth1")
	e.ip("addr", "add", "192.0.2.9/24", "dev", "eth0")
	e.ip("addr", "del", "192.0.2.1/24", "dev", "eth0")
	e.ip("addr", "add", "192.0.2.9/24", "dev", "eth0") // a secondary address goes with its primary one
	eth0, eth1 := e.index("eth0"), e.index("eth1")
	want := []Unseen{
		{Ifindex: eth0, Name: "eth0", Addr: netip.MustParseAddr("192.0.2.1"), Gone: true},
		{Ifindex: eth0, Name: "eth0", Addr: netip.MustParseAddr("192.0.2.9")},
		{Ifindex: eth1, Name: "eth1"},
		{Ifindex: eth1, Name: "eth1", Addr: netip.MustParseAddr("198.51.100.1")},
	}
	if got := unseen(); !slices.Equal(got, want) {
		t.Errorf("unseen: %+v\nwant %+v", got, want)
	}
	e.ok(d.Sync(e.ctx))
	if got := unseen(); len(got) != 0 {
		t.Errorf("after the next look: %+v", got)
	}
}
