// SPDX-License-Identifier: Apache-2.0

package uplinks

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// lookLab is a node whose devices change at random. Its two looks are the real ones, at the real kernel.
type lookLab struct {
	t    *testing.T
	r    *rand.Rand
	node *netlab.Node
	pod  *netlab.Pod
	h    *rtnl.Handle

	devices []*labDevice
	made    int
	log     []string

	hostVeths, routed map[int]bool
	m                 *Memory
	addrs             map[netip.Addr]uint32 // as the map has them
}

type labDevice struct {
	name  string
	index int
	kind  string // of ip(8); "pod" and "foreign" are host veths, "pair" leads to a veth of the node
	away  bool   // in the pod
}

func newLookLab(t *testing.T, seed uint64) *lookLab {
	n, err := netlab.NewNode()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	l := &lookLab{
		t: t, r: rand.New(rand.NewPCG(seed, 1)), node: n, pod: n.PodT(t, "pod"), hostVeths: map[int]bool{}, routed: map[int]bool{},
	}
	if err := n.Do(func() (err error) { l.h, err = rtnl.New(); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.h.Close)
	l.full(0)
	return l
}

// ip runs ip(8). What the kernel refuses is no change.
func (l *lookLab) ip(line string) bool {
	err := l.node.Do(func() error {
		_, err := netlab.Run("ip", strings.Fields(line)...)
		return err
	})
	if err == nil {
		l.log = append(l.log, line)
	}
	return err == nil
}

func (l *lookLab) roles() Roles {
	return Roles{HostVeth: func(i int) bool { return l.hostVeths[i] }, Routed: func(i int) bool { return l.routed[i] }}
}

func (l *lookLab) full(newest int) *Snapshot {
	l.t.Helper()
	return l.took(Read(l.h, nil, l.roles(), l.m, newest))
}

func (l *lookLab) took(n *Snapshot, m *Memory, err error) *Snapshot {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
	again, err := ParseMemory(m.String())
	if err != nil || again.String() != m.String() {
		l.t.Fatalf("file of a look: %v\n%s", err, m)
	}
	l.m, l.addrs = again, n.Addrs
	return n
}

// compare looks by key, as the ADD of a pod on the device newest does, and compares that with a full look.
func (l *lookLab) compare(newest int) {
	l.t.Helper()
	n, m, err := ReadByKey(l.h, nil, l.roles(), l.m, l.addrs, newest, []int{newest})
	if errors.Is(err, ErrNeedFull) {
		l.t.Fatalf("a look by key gives up: %s", strings.Join(l.log, "\n"))
	}
	got := l.took(n, m, err)
	want, _, err := Read(l.h, nil, l.roles(), nil, 0)
	if err != nil {
		l.t.Fatal(err)
	}
	for a, dev := range want.Addrs {
		if _, has := got.Addrs[a]; !has && !m.has(int(dev)) {
			r, err := l.h.RouteTo(a, 0)
			if err != nil || r.Type != unix.RTN_LOCAL { // only pods' devices have it, and they are down: no packet goes to it
				delete(want.Addrs, a)
			}
		}
	}
	keys := func(n *Snapshot) (addrs map[string]uint32) {
		addrs = make(map[string]uint32)
		for a, dev := range n.Addrs {
			if !m.has(int(dev)) {
				dev = 0 // any of those that have it
			}
			addrs[a.String()] = dev
		}
		return addrs
	}
	diff := cmp.Diff(keys(want), keys(got)) + cmp.Diff(want.Uplinks, got.Uplinks, cmpopts.EquateComparable(netip.Addr{}, endpoint.Sources{}))
	if diff != "" {
		l.t.Fatalf("a full look (-) and one by key (+):\n%s\nafter\n%s\nmemory\n%s\n%s", diff, strings.Join(l.log, "\n"), m, l.all())
	}
}

func (l *lookLab) all() (out string) {
	_ = l.node.Do(func() error {
		a, _ := netlab.Run("ip", "address")
		four, _ := netlab.Run("ip", "route")
		six, _ := netlab.Run("ip", "-6", "route")
		out = a + four + six
		return nil
	})
	return out
}

func (l *lookLab) add(kind, line string) *labDevice {
	d := &labDevice{name: fmt.Sprintf("d%d", l.made), kind: kind}
	l.made++
	if !l.ip(strings.ReplaceAll(line, "NAME", d.name)) {
		return nil
	}
	link, err := l.h.LinkByName(d.name)
	if err != nil {
		l.t.Fatal(err)
	}
	d.index = link.Index
	l.devices = append(l.devices, d)
	if l.r.IntN(4) > 0 {
		l.ip("link set " + d.name + " up")
	}
	return d
}

func (l *lookLab) pick() *labDevice {
	if len(l.devices) == 0 {
		return nil
	}
	return l.devices[l.r.IntN(len(l.devices))]
}

func pickOf(r *rand.Rand, of ...string) string { return of[r.IntN(len(of))] }

func (l *lookLab) randomAddr() string {
	return pickOf(l.r, "192.0.2.1/24", "192.0.2.2/24", "198.51.100.1/24", "203.0.113.1/32", "203.0.113.2/32", "10.5.0.1/32",
		"2001:db8::1/64", "2001:db8:1::1/64", "fd00::1/128", "fd05::1/128", "10.6.0.1/16")
}

// step changes one thing. newest is the host veth of a pod whose ADD goes on. known says that docs/known-gaps.md names the change:
// only a full look finds it.
func (l *lookLab) step() (newest int, known bool) {
	switch n := l.r.IntN(100); {
	case n < 12:
		kind := pickOf(l.r, "dummy", "bridge", "pair", "tun", "tap")
		line := map[string]string{
			"dummy": "link add NAME type dummy", "bridge": "link add NAME type bridge", "pair": "link add NAME type veth peer name NAMEp",
			"tun": "tuntap add NAME mode tun", "tap": "tuntap add NAME mode tap",
		}[kind]
		if l.add(kind, line) == nil {
			return 0, false
		}
		return 0, false
	case n < 34:
		return l.newPod()
	}
	d := l.pick()
	if d == nil {
		return 0, false
	}
	if d.away {
		return 0, l.back(d)
	}
	switch n := l.r.IntN(100); {
	case n < 25:
		l.ip("link del " + d.name)
		l.forget(d)
	case n < 55:
		return 0, l.changeAddr(d)
	case n < 80:
		return 0, l.changeRoute(d)
	case n < 88:
		state := pickOf(l.r, "up", "down")
		return 0, l.ip("link set "+d.name+" "+state) && state == "down" // the routes by it go
	case n < 93:
		if b := l.pick(); b.kind == "bridge" && !b.away {
			l.ip("link set " + d.name + " master " + b.name)
		}
	case d.kind == "pair" && l.r.IntN(2) == 0:
		if l.ip("link set " + d.name + "p netns pod") { // a runtime that makes both ends in the node
			d.kind = "foreign"
		}
	case d.kind == "pair" || d.kind == "tap" || d.kind == "tun": // as the host-device plugin does
		d.away = l.ip("link set " + d.name + " netns pod")
	}
	return 0, false
}

// newPod makes a pod on a point-to-point link: Sluice's, whose ADD looks, or a third party's.
func (l *lookLab) newPod() (newest int, known bool) {
	d := l.add("foreign", fmt.Sprintf("link add NAME type veth peer name e%d netns pod", l.made))
	if d == nil {
		return 0, false
	}
	gw, pod := "10.5.0.1/32", fmt.Sprintf("10.5.0.%d/32", 2+l.made%250)
	if l.r.IntN(2) == 0 {
		gw, pod = "fd05::1/128", fmt.Sprintf("fd05::%x/128", 2+l.made)
	}
	if l.r.IntN(6) == 0 {
		gw = fmt.Sprintf("10.5.1.%d/32", l.made%250)
	}
	l.ip("addr add " + gw + " dev " + d.name + " nodad")
	l.ip("route add " + pod + " dev " + d.name)
	if l.r.IntN(3) == 0 {
		return 0, false
	}
	d.kind, l.hostVeths[d.index] = "pod", true
	return d.index, false
}

func (l *lookLab) forget(d *labDevice) {
	l.devices = slices.DeleteFunc(l.devices, func(x *labDevice) bool { return x == d })
	delete(l.hostVeths, d.index)
}

// back moves a device into the node again. It has its number as long as that is free in both namespaces.
func (l *lookLab) back(d *labDevice) (known bool) {
	err := l.pod.Do(func() error {
		_, err := netlab.Run("ip", "link", "set", d.name, "netns", l.node.ProcPath())
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.log = append(l.log, d.name+" comes back")
	link, err := l.h.LinkByName(d.name)
	if err != nil {
		l.t.Fatal(err)
	}
	known = link.Index != d.index
	d.away, d.index = false, link.Index
	return known
}

func (l *lookLab) changeAddr(d *labDevice) (known bool) {
	verb, a := pickOf(l.r, "add", "add", "del"), l.randomAddr()
	if !l.ip("addr " + verb + " " + a + " dev " + d.name + map[string]string{"add": " nodad"}[verb]) {
		return false
	}
	return verb == "add" && (d.kind == "pod" || d.kind == "foreign") // what a pod's device gets after its ADD
}

func (l *lookLab) changeRoute(d *labDevice) (known bool) {
	verb, family := pickOf(l.r, "add", "add", "del"), pickOf(l.r, "-4", "-6")
	dst := pickOf(l.r, "default", "default", "net", "host")
	switch dst {
	case "net":
		dst = map[string]string{"-4": "172.16.0.0/12", "-6": "2001:db8:f::/48"}[family]
	case "host":
		dst = map[string]string{"-4": "172.31.0.1", "-6": "2001:db8:e::1"}[family]
	}
	metric := fmt.Sprint(" metric ", 1+l.r.IntN(1000))
	if !l.ip(family + " route " + verb + " " + dst + " dev " + d.name + metric) {
		return false
	}
	return verb == "del" || strings.Contains(dst, "/") || d.kind == "pod" || d.kind == "foreign"
}

// A look by key finds what a full look finds, whatever came and went, but for what docs/known-gaps.md lists.
func TestPrivilegedLookByKey(t *testing.T) {
	for seed := range uint64(4) {
		l := newLookLab(t, seed)
		looks := 0
		for range 150 {
			var newest int
			known := false
			for range 1 + l.r.IntN(3) {
				n, k := l.step()
				newest, known = max(newest, n), known || k
				if newest != 0 {
					break
				}
			}
			if known {
				l.full(newest)
				continue
			}
			l.compare(newest)
			looks++
		}
		if looks < 60 {
			t.Errorf("seed %d: %d looks by key: too few to tell", seed, looks)
		}
		t.Logf("seed %d: %d looks by key, %d devices at the end, kinds %v", seed, looks, len(l.devices), kinds(l.devices))
	}
}

func kinds(devices []*labDevice) []string {
	set := make(map[string]int)
	for _, d := range devices {
		set[d.kind]++
	}
	var out []string
	for _, k := range slices.Sorted(maps.Keys(set)) {
		out = append(out, fmt.Sprint(k, " ", set[k]))
	}
	return out
}
