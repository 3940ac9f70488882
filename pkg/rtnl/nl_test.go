// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// mustNS makes a network namespace that lives as long as its descriptor, with lo up.
func mustNS(t testing.TB) *netns.NS {
	t.Helper()
	type res struct {
		n   *netns.NS
		err error
	}
	ch := make(chan res)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			ch <- res{nil, err}
			return
		}
		n, err := netns.Current()
		ch <- res{n, err}
	}()
	r := <-ch
	if r.err != nil {
		t.Fatalf("make a network namespace (root needed): %v", r.err)
	}
	t.Cleanup(r.n.Close)
	return r.n
}

func mustHandle(t testing.TB, n *netns.NS) *Handle {
	t.Helper()
	h, err := NewIn(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var mac = net.HardwareAddr{2, 0, 0, 0, 0, 9}

func TestPrivilegedVethOneMessage(t *testing.T) {
	host, pod := mustNS(t), mustNS(t)
	h, p := mustHandle(t, host), mustHandle(t, pod)
	ok(t, h.AddBridge(BridgeSpec{Name: "br0", MTU: 1400, Up: true}))
	br := must[Link](t)(h.LinkByName("br0"))
	if br.Kind != "bridge" || br.MTU != 1400 || !br.Up || !br.Ethernet || br.Port != nil {
		t.Errorf("bridge %+v", br)
	}
	ok(t, h.AddVeth(VethSpec{HostName: "veth0", PeerName: "eth0", PeerMAC: mac, MTU: 1300, Master: br.Index, HostUp: true, PeerNS: pod.Fd()}))
	hl, pl := must[Link](t)(h.LinkByName("veth0")), must[Link](t)(p.LinkByName("eth0"))
	if hl.PeerIndex != pl.Index || pl.PeerIndex != hl.Index || hl.PeerNetnsID < 0 {
		t.Errorf("peers: host %+v pod %+v", hl, pl)
	}
	if hl.Kind != "veth" || hl.MTU != 1300 || !hl.Up || hl.MasterIndex != br.Index || hl.Port == nil || *hl.Port != (Port{}) {
		t.Errorf("host end %+v port %+v", hl, hl.Port)
	}
	if pl.MTU != 1300 || pl.Up || pl.MAC.String() != mac.String() || pl.MasterIndex != 0 {
		t.Errorf("pod end %+v", pl)
	}
	if ports := must[[]Link](t)(h.LinksOf(br.Index)); len(ports) != 1 || ports[0].Name != "veth0" {
		t.Errorf("ports %+v", ports)
	}
	ok(t, h.SetPort(hl.Index, Port{Hairpin: true, Isolated: true}))
	if hl = must[Link](t)(h.LinkByIndex(hl.Index)); *hl.Port != (Port{true, true}) {
		t.Errorf("port %+v", hl.Port)
	}
	ok(t, p.DelLink(pl.Index))
	if _, err := h.LinkByIndex(hl.Index); !errors.Is(err, ErrNotFound) {
		t.Errorf("host end after the pod end is gone: %v", err)
	}
}

func TestPrivilegedVethNameTaken(t *testing.T) {
	host, pod := mustNS(t), mustNS(t)
	h := mustHandle(t, host)
	ok(t, h.AddVeth(VethSpec{HostName: "a", PeerName: "eth0", PeerNS: pod.Fd()}))
	tests := []struct {
		name string
		spec VethSpec
	}{
		{"host name", VethSpec{HostName: "a", PeerName: "eth1", PeerNS: pod.Fd()}},
		{"peer name", VethSpec{HostName: "b", PeerName: "eth0", PeerNS: pod.Fd()}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := h.AddVeth(tt.spec); !errors.Is(err, ErrExist) || !errors.Is(err, unix.EEXIST) {
				t.Fatalf("AddVeth = %v, want ErrExist", err)
			}
			if n := len(must[[]Link](t)(h.Links())); n != 2 { // lo and a
				t.Fatalf("%d links after a refused request", n)
			}
		})
	}
}

func TestPrivilegedNotFound(t *testing.T) {
	h := mustHandle(t, mustNS(t))
	_, byName := h.LinkByName("none")
	_, byLongName := h.LinkByName("a-name-too-long-for-a-link")
	_, byIndex := h.LinkByIndex(99)
	_, byZero := h.LinkByIndex(0)
	_, addrs := h.AddrsOf(99, FamilyAll)
	_, ports := h.LinksOf(0)
	for name, err := range map[string]error{
		"name": byName, "long name": byLongName, "index": byIndex, "index 0": byZero, "addresses": addrs, "ports": ports,
		"delete": h.DelLink(99), "delete 0": h.DelLink(0), "set": h.SetUp(99),
		"del addr":  h.DelAddr(Addr{LinkIndex: 1, Prefix: netip.MustParsePrefix("10.0.0.1/8")}),
		"del route": h.DelRoute(Route{LinkIndex: 1, Dst: netip.MustParsePrefix("10.0.0.0/8")}),
	} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v, want ErrNotFound", name, err)
		}
	}
}

func TestPrivilegedSetLink(t *testing.T) {
	h := mustHandle(t, mustNS(t))
	ok(t, h.AddVeth(VethSpec{HostName: "a", PeerName: "b"}))
	a := must[Link](t)(h.LinkByName("a"))
	if a.PeerNetnsID != -1 {
		t.Errorf("peer in the same namespace has id %d", a.PeerNetnsID)
	}
	alias, segment := "hello", BigSegment
	ok(t, h.SetUp(a.Index))
	ok(t, h.SetMTU(a.Index, 1280))
	ok(t, h.SetMAC(a.Index, mac))
	ok(t, h.SetPromisc(a.Index, true))
	ok(t, h.SetAllMulti(a.Index, true))
	ok(t, h.SetTxQLen(a.Index, 77))
	ok(t, h.SetLink(a.Index, LinkChange{Alias: &alias, MaxSegmentIPv4: &segment}))
	got := must[Link](t)(h.LinkByName("a"))
	want := Link{Index: a.Index, PeerIndex: a.PeerIndex, PeerNetnsID: -1, Name: "a", Kind: "veth", OperState: got.OperState, // comes later
		Alias: alias, MAC: mac, MTU: 1280, TxQLen: 77, Up: true, Promisc: true, AllMulti: true, Ethernet: true}
	if a.MaxSegmentIPv4 != 0 { // Linux 6.3
		want.MaxSegmentIPv4 = segment
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("link (-want +got):\n%s", diff)
	}
	ok(t, h.SetPromisc(a.Index, false))
	ok(t, h.SetDown(a.Index))
	if got = must[Link](t)(h.LinkByName("a")); got.Promisc || got.Up || !got.AllMulti {
		t.Errorf("after turning off: %+v", got)
	}
}

func TestPrivilegedAddrs(t *testing.T) {
	h := mustHandle(t, mustNS(t))
	ok(t, h.AddVeth(VethSpec{HostName: "a", PeerName: "b"}))
	a := must[Link](t)(h.LinkByName("a"))
	v4 := Addr{LinkIndex: a.Index, Prefix: netip.MustParsePrefix("10.1.0.5/16")}
	v6 := Addr{LinkIndex: a.Index, Prefix: netip.MustParsePrefix("fd00::5/64"), Flags: unix.IFA_F_NODAD}
	ok(t, h.AddAddr(v4))
	ok(t, h.AddAddr(v6))
	if err := h.AddAddr(v4); !errors.Is(err, ErrExist) {
		t.Errorf("same address again: %v", err)
	}
	prefixes := func(as []Addr) (s []string) {
		for _, x := range as {
			s = append(s, x.Prefix.String())
		}
		return s
	}
	for _, tt := range []struct {
		family int
		want   []string
	}{{FamilyAll, []string{"10.1.0.5/16", "fd00::5/64"}}, {FamilyV4, []string{"10.1.0.5/16"}}, {FamilyV6, []string{"fd00::5/64"}}} {
		if diff := cmp.Diff(tt.want, prefixes(must[[]Addr](t)(h.AddrsOf(a.Index, tt.family)))); diff != "" {
			t.Errorf("family %d (-want +got):\n%s", tt.family, diff)
		}
	}
	ok(t, h.SetUp(1)) // lo gets 127.0.0.1 and ::1
	if diff := cmp.Diff([]string{"127.0.0.1/8", "10.1.0.5/16"}, prefixes(must[[]Addr](t)(h.Addrs(FamilyV4)))); diff != "" {
		t.Errorf("all links (-want +got):\n%s", diff)
	}
	ok(t, h.DelAddr(v4))
	if got := must[[]Addr](t)(h.AddrsOf(a.Index, FamilyV4)); len(got) != 0 {
		t.Errorf("after delete: %v", got)
	}
}

func TestPrivilegedRoutes(t *testing.T) {
	h := mustHandle(t, mustNS(t))
	ok(t, h.AddVeth(VethSpec{HostName: "a", PeerName: "b"}))
	a, b := must[Link](t)(h.LinkByName("a")), must[Link](t)(h.LinkByName("b"))
	for _, l := range []Link{a, b} {
		ok(t, h.SetUp(l.Index))
	}
	ok(t, h.AddAddr(Addr{LinkIndex: a.Index, Prefix: netip.MustParsePrefix("10.1.0.5/16")}))
	ok(t, h.AddAddr(Addr{LinkIndex: a.Index, Prefix: netip.MustParsePrefix("fd00::5/64"), Flags: unix.IFA_F_NODAD}))
	gw, gw6 := netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("fd00::1")
	def := Route{LinkIndex: a.Index, Dst: netip.MustParsePrefix("0.0.0.0/0"), Gateway: gw, Priority: 5, MTU: 1300, AdvMSS: 1200}
	ok(t, h.AddRoute(def))
	if err := h.AddRoute(def); !errors.Is(err, ErrExist) {
		t.Errorf("same route again: %v", err)
	}
	ok(t, h.AddRoute(Route{LinkIndex: a.Index, Dst: netip.MustParsePrefix("10.9.0.0/16"), Gateway: gw, Table: 1000}))
	for _, g := range []netip.Addr{gw6, netip.MustParseAddr("fd00::2")} { // becomes one multipath route
		ok(t, h.AddRoute(Route{LinkIndex: a.Index, Dst: netip.MustParsePrefix("::/0"), Gateway: g}))
	}
	find := func(rs []Route, dst string) (got []Route) {
		for _, r := range rs {
			if r.Dst.String() == dst {
				got = append(got, r)
			}
		}
		return got
	}
	main := must[[]Route](t)(h.Routes(FamilyAll))
	got := find(main, "0.0.0.0/0")
	if len(got) != 1 || got[0].Gateway != gw || got[0].LinkIndex != a.Index || got[0].Priority != 5 || got[0].MTU != 1300 ||
		got[0].AdvMSS != 1200 || got[0].Table != TableMain || got[0].Type != unix.RTN_UNICAST {
		t.Errorf("default route %+v", got)
	}
	if six := find(main, "::/0"); len(six) != 2 || six[0].LinkIndex != a.Index || six[0].Gateway == six[1].Gateway {
		t.Errorf("IPv6 default routes %+v", six)
	}
	if conn := find(main, "10.1.0.0/16"); len(conn) != 1 || conn[0].Gateway.IsValid() || conn[0].Scope != ScopeLink || conn[0].Src != netip.MustParseAddr("10.1.0.5") {
		t.Errorf("connected route %+v", conn)
	}
	if other := find(main, "10.9.0.0/16"); len(other) != 0 {
		t.Errorf("a route of table 1000 in main: %+v", other)
	}
	if other := find(must[[]Route](t)(h.AllRoutes(FamilyV4)), "10.9.0.0/16"); len(other) != 1 || other[0].Table != 1000 {
		t.Errorf("table 1000: %+v", other)
	}
	if got := must[[]Route](t)(h.RoutesWhere(RouteFilter{Table: 4242})); len(got) != 0 {
		t.Errorf("a table that does not exist: %+v", got)
	}
	for _, r := range must[[]Route](t)(h.RoutesWhere(RouteFilter{LinkIndex: b.Index})) {
		if r.LinkIndex != b.Index {
			t.Errorf("filter by link let through %+v", r)
		}
	}
	ok(t, h.DelRoute(def))
	if got := find(must[[]Route](t)(h.Routes(FamilyV4)), "0.0.0.0/0"); len(got) != 0 {
		t.Errorf("after delete: %+v", got)
	}
}

func TestPrivilegedWatch(t *testing.T) {
	ns := mustNS(t)
	h := mustHandle(t, ns)
	ok(t, h.AddVeth(VethSpec{HostName: "a", PeerName: "b", HostUp: true}))
	a, b := must[Link](t)(h.LinkByName("a")), must[Link](t)(h.LinkByName("b"))
	w := must[*Watch](t)(SubscribeIn(ns, GroupLink))
	defer w.Close()
	up := func() (bool, error) {
		l, err := h.LinkByIndex(a.Index)
		return l.OperState == OperUp, err
	}
	short, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if err := w.Wait(short, a.Index, up); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Wait for what does not come: %v", err)
	}
	ok(t, h.SetUp(b.Index))
	long, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	start := time.Now()
	ok(t, w.Wait(long, a.Index, up))
	t.Logf("operational after %v", time.Since(start))
	want := errors.New("mine")
	if err := w.Wait(long, a.Index, func() (bool, error) { return false, want }); !errors.Is(err, want) {
		t.Errorf("error of the condition: %v", err)
	}
}

// TestPrivilegedVLANs needs CONFIG_BRIDGE_VLAN_FILTERING. Where the kernel lacks it, the only thing left to see is that the
// refusal is recognised; where it has it, everything must work.
func TestPrivilegedVLANs(t *testing.T) {
	h := mustHandle(t, mustNS(t))
	err := h.AddBridge(BridgeSpec{Name: "br0", VLANFiltering: true, Up: true})
	if errors.Is(err, ErrNotSupported) {
		require.VLANFiltering(t)
	}
	ok(t, err)
	br := must[Link](t)(h.LinkByName("br0"))
	if !br.VLANFiltering {
		t.Fatal("the bridge does not filter")
	}
	ok(t, h.AddVeth(VethSpec{HostName: "a", PeerName: "b", Master: br.Index}))
	a := must[Link](t)(h.LinkByName("a"))
	ok(t, h.DelVLANs(a.Index, must[[]VLAN](t)(h.VLANs(a.Index))...))
	want := []VLAN{{From: 10, To: 10, PVID: true, Untagged: true}, {From: 20, To: 24}}
	ok(t, h.AddVLANs(a.Index, want...))
	if diff := cmp.Diff(want, must[[]VLAN](t)(h.VLANs(a.Index))); diff != "" {
		t.Errorf("VLANs (-want +got):\n%s", diff)
	}
}

func TestParseGarbage(t *testing.T) {
	for _, b := range [][]byte{nil, {1}, make([]byte, 15), append(make([]byte, 16), 3, 0, 0, 0), append(make([]byte, 16), 200, 0, 1, 0)} {
		_, e1 := parseLink(b)
		_, e2 := parseAddr(b)
		_, e3 := parseRoute(b)
		_, e4 := splitHops(Route{}, append([]byte{7, 0, 0, 0, 0, 0, 0, 0}, b...))
		if len(b) > 16 && e1 == nil {
			t.Errorf("parseLink(%v) accepted garbage", b)
		}
		_, _ = e2, e3
		if e4 == nil {
			t.Errorf("splitHops(%v) accepted garbage", b)
		}
	}
}

func BenchmarkPrivilegedLinkByName(b *testing.B) {
	h := mustHandle(b, mustNS(b))
	for b.Loop() {
		if _, err := h.LinkByName("lo"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPrivilegedVeth(b *testing.B) {
	host, pod := mustNS(b), mustNS(b)
	h := mustHandle(b, host)
	ok(b, h.AddBridge(BridgeSpec{Name: "br0", Up: true}))
	br := must[Link](b)(h.LinkByName("br0"))
	for b.Loop() {
		ok(b, h.AddVeth(VethSpec{HostName: "veth0", PeerName: "eth0", PeerMAC: mac, Master: br.Index, HostUp: true, PeerNS: pod.Fd()}))
		b.StopTimer()
		l := must[Link](b)(h.LinkByName("veth0"))
		ok(b, h.DelLink(l.Index))
		b.StartTimer()
	}
}
