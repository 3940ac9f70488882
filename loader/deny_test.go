// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
)

func prefixes(s ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range s {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// wire is an uplink whose other end is in a namespace of its own.
func (e *env) wire() (in func(args ...string) string) {
	e.t.Helper()
	ns := e.namespace()
	e.ip("link", "add", "eth0", "type", "veth", "peer", "name", "far0", "netns", ns)
	e.ip("addr", "add", "192.0.2.10/24", "dev", "eth0")
	e.ip("addr", "add", "2001:db8::10/64", "dev", "eth0", "nodad")
	e.ip("link", "set", "eth0", "up")
	in = func(args ...string) string {
		e.t.Helper()
		return e.run("nsenter", append([]string{"--net=" + ns}, args...)...)
	}
	in("ip", "addr", "add", "192.0.2.20/24", "dev", "far0")
	in("ip", "addr", "add", "2001:db8::20/64", "dev", "far0", "nodad")
	in("ip", "link", "set", "far0", "up")
	return in
}

func (e *env) denyState(d *Datapath) (entries map[string]uint64, mode, why string) {
	e.t.Helper()
	s, err := d.Deny(e.ctx)
	e.ok(err)
	entries = map[string]uint64{}
	for _, n := range s.Entries {
		entries[n.Network.String()] = n.Packets
	}
	for _, dev := range s.Devices {
		if dev.Name == "eth0" {
			mode, why = dev.Mode, dev.Why
		}
	}
	return entries, mode, why
}

func pings(in func(...string) string, addr string) bool {
	return !strings.Contains(in("sh", "-c", "ping -c1 -W1 "+addr+" || echo lost"), "lost")
}

// What comes from a denied network is dropped and counted, only while it is in the list.
func TestPrivilegedDeny(t *testing.T) {
	e := newEnv(t)
	in := e.wire()
	d := e.open()
	e.ok(d.Sync(e.ctx))
	if _, mode, _ := e.denyState(d); mode != "none" {
		t.Errorf("mode %s without a list", mode)
	}
	if !pings(in, "192.0.2.10") || !pings(in, "2001:db8::10") {
		t.Fatal("the node is not reached to begin with")
	}
	e.ok(d.DenyAdd(e.ctx, prefixes("192.0.2.16/28", "2001:db8::20/128")))
	e.ok(d.DenyAdd(e.ctx, prefixes("2001:db8::20/128")))
	if _, mode, why := e.denyState(d); mode != "native" {
		t.Errorf("mode %q (%s), want native: veth can", mode, why)
	}
	if pings(in, "192.0.2.10") || pings(in, "2001:db8::10") {
		t.Error("a denied source is answered")
	}
	got, _, _ := e.denyState(d)
	if len(got) != 2 || got["192.0.2.16/28"] == 0 || got["2001:db8::20/128"] == 0 {
		t.Errorf("counted %v", got)
	}
	s, err := d.Status(e.ctx)
	e.ok(err)
	for _, c := range s.Drops {
		if c.Reason == "source is in the denylist" && c.Packets == 0 {
			t.Error("no drop counted")
		}
	}
	e.ok(d.Close()) // no process holds it
	d = e.open()
	if pings(in, "192.0.2.10") {
		t.Error("the list ended with its process")
	}
	if err := d.DenyDelete(e.ctx, prefixes("192.0.2.16/28", "10.0.0.0/8")); !errors.Is(err, ErrNotDenied) {
		t.Errorf("%v", err)
	}
	if !pings(in, "192.0.2.10") || pings(in, "2001:db8::10") {
		t.Error("not what is left of the list")
	}
	e.ok(d.DenyDelete(e.ctx, prefixes("2001:db8::20/128")))
	if _, mode, _ := e.denyState(d); mode != "none" {
		t.Errorf("mode %s without a list", mode)
	}
	if l, err := e.h.LinkByName("eth0"); err != nil || l.XDP.ID != 0 {
		t.Errorf("left on the device: %+v %v", l.XDP, err)
	}
}

// A long list is put in at once, up to what there is room for.
func TestPrivilegedDenyFull(t *testing.T) {
	e := newEnv(t)
	e.uplink()
	d := e.open()
	var list []netip.Prefix
	for i := range 1 << 14 {
		list = append(list, netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(i >> 8), byte(i), 0}), 24))
	}
	e.ok(d.DenyAdd(e.ctx, list))
	e.ok(d.DenyAdd(e.ctx, list[:2])) // there already
	err := d.DenyAdd(e.ctx, []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")})
	if !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "203.0.113.0/24") || strings.Contains(err.Error(), "mapSizes") {
		t.Errorf("one more: %v", err)
	}
	s, err := d.Deny(e.ctx)
	e.ok(err)
	if len(s.Entries) != len(list) {
		t.Errorf("%d networks, want %d", len(s.Entries), len(list))
	}
}

// Another build replaces the program without a gap; a new uplink is taken in; unload removes everything.
func TestPrivilegedDenyUpgrade(t *testing.T) {
	e := newEnv(t)
	in := e.wire()
	d := e.open()
	e.ok(d.Sync(e.ctx))
	e.ok(d.DenyAdd(e.ctx, prefixes("192.0.2.20/32")))
	e.o.Config.AntiSpoof = !e.o.Config.AntiSpoof
	d = e.open()
	if _, mode, _ := e.denyState(d); mode != "native" || pings(in, "192.0.2.10") {
		t.Errorf("mode %s after the upgrade", mode)
	}
	e.veth("eth1")
	e.ip("addr", "add", "198.51.100.1/24", "dev", "eth1")
	e.ok(d.Sync(e.ctx))
	s, err := d.Deny(e.ctx)
	e.ok(err)
	if len(s.Devices) != 2 || s.Devices[0].Mode == "none" || s.Devices[1].Mode == "none" {
		t.Errorf("%+v", s.Devices)
	}
	e.ok(d.Unload(e.ctx))
	if l, err := e.h.LinkByName("eth0"); err != nil || l.XDP.ID != 0 {
		t.Errorf("after unload: %+v %v", l.XDP, err)
	}
}

// An uplink that goes while the list is brought there is no error.
func TestPrivilegedDenyDeviceGone(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	a := attach.NewAttacher(d.tree, "")
	defer a.Close()
	const none = 1 << 20
	if err := a.PutXDP(none, false); err != nil {
		t.Error(err)
	}
	if pintree.Exists(d.tree.Paths.LinkPin(none, hook.XDP())) {
		t.Error("a link is pinned")
	}
}

// The XDP program of another owner is never displaced, and that is said.
func TestPrivilegedDenyForeign(t *testing.T) {
	e := newEnv(t)
	in := e.wire()
	foreign, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "foreign", Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}, // XDP_PASS
	})
	e.ok(err)
	defer foreign.Close()
	l, err := link.AttachXDP(link.XDPOptions{Program: foreign, Interface: e.index("eth0")})
	e.ok(err)
	defer l.Close()
	d := e.open()
	e.ok(d.Sync(e.ctx))
	if err := d.DenyAdd(e.ctx, prefixes("192.0.2.20/32")); !errors.Is(err, ErrConflict) {
		t.Errorf("%v", err)
	}
	if _, mode, why := e.denyState(d); mode != "none" || !strings.Contains(why, "somebody else") {
		t.Errorf("%s: %s", mode, why)
	}
	if !pings(in, "192.0.2.10") {
		t.Error("not answered, though the program could not be attached")
	}
	e.ok(d.Sync(e.ctx)) // is no reason for an ADD to fail
	e.ok(l.Close())
	e.ok(d.Sync(e.ctx))
	if _, mode, _ := e.denyState(d); mode == "none" {
		t.Error("not attached when the place was free")
	}
}

// Frames with VLAN tags, and loopback addresses, are dropped too.
func TestPrivilegedDenyFrames(t *testing.T) {
	e := newEnv(t)
	e.wire()
	d := e.open()
	e.ok(d.Sync(e.ctx))
	e.ok(d.DenyAdd(e.ctx, prefixes("203.0.113.0/24", "2001:db8:bad::/48")))
	dir, err := d.tree.CommittedDir()
	e.ok(err)
	p := pinnedProgram(t, dir, hook.XDP())
	const drop, pass = 1, 2
	for _, tt := range []struct {
		name, src, dst string
		tags           int
		want           uint32
	}{
		{"denied", "203.0.113.9", "192.0.2.10", 0, drop},
		{"denied, tagged", "203.0.113.9", "192.0.2.10", 1, drop},
		{"denied, twice tagged", "203.0.113.9", "192.0.2.10", 2, drop},
		{"other", "203.0.114.9", "192.0.2.10", 0, pass},
		{"denied destination", "192.0.2.20", "203.0.113.9", 0, pass},
		{"denied, IPv6", "2001:db8:bad::1", "2001:db8::10", 0, drop},
		{"denied, IPv6, tagged", "2001:db8:bad::1", "2001:db8::10", 1, drop},
		{"other, IPv6", "2001:db8:bae::1", "2001:db8::10", 0, pass},
		{"from loopback", "127.0.0.1", "192.0.2.10", 0, drop},
		{"to loopback", "192.0.2.20", "127.9.9.9", 0, drop},
		{"from loopback, IPv6", "::1", "2001:db8::10", 0, drop},
	} {
		b := frameOf(netip.MustParseAddr(tt.src), netip.MustParseAddr(tt.dst), tt.tags)
		if got, err := p.Run(&ebpf.RunOptions{Data: b}); err != nil || got != tt.want {
			t.Errorf("%s: %d %v, want %d", tt.name, got, err, tt.want)
		}
		if got, err := p.Run(&ebpf.RunOptions{Data: b[:20]}); err != nil || got != pass {
			t.Errorf("%s, cut off: %d %v", tt.name, got, err)
		}
	}
}

// frameOf is an Ethernet frame with the addresses and as little else as possible.
func frameOf(src, dst netip.Addr, tags int) []byte {
	b := append(append([]byte{}, net.HardwareAddr{2, 0, 0, 0, 0, 1}...), net.HardwareAddr{2, 0, 0, 0, 0, 2}...)
	for range tags {
		b = append(b, 0x81, 0, 0, 7)
	}
	if src.Is4() {
		b = append(b, 0x08, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0)
	} else {
		b = append(b, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64)
	}
	b = append(append(b, src.AsSlice()...), dst.AsSlice()...)
	return append(b, make([]byte, 64)...)
}
