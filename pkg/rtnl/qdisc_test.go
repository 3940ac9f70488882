// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"math"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

func TestBurstTicks(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		rate  uint64
		burst uint32
		want  uint32
	}{{1000, 10, 156250}, {1_000_000, 100_000, 1562500}, {125_000_000, 1_250_000, 156250}, {1, math.MaxUint32, math.MaxUint32}} {
		if got := BurstTicks(tt.rate, tt.burst); got != tt.want {
			t.Errorf("%d bytes at %d: %d ticks, want %d", tt.burst, tt.rate, got, tt.want)
		}
	}
}

func TestPrivilegedQdiscs(t *testing.T) {
	h := mustHandle(t, mustNS(t))
	ok(t, h.AddVeth(VethSpec{HostName: "a", PeerName: "b"}))
	a := must[Link](t)(h.LinkByName("a")).Index
	if _, err := h.RootQdisc(a); !errors.Is(err, ErrNotFound) {
		t.Errorf("a qdisc on a fresh device: %v", err)
	}
	for _, tbf := range []TBF{{Rate: 1000, Limit: 2000, Buffer: BurstTicks(1000, 1600)}, {Rate: 12_500_000_000, Limit: 1 << 30, Buffer: BurstTicks(12_500_000_000, 1<<24)}} {
		q := Qdisc{Kind: QdiscTBF, Handle: TC(1, 0), Parent: ParentRoot, TBF: &tbf}
		ok(t, h.AddQdisc(a, q, false))
		if err := h.AddQdisc(a, q, false); !errors.Is(err, ErrExist) {
			t.Errorf("a second time: %v", err)
		}
		got := must[Qdisc](t)(h.RootQdisc(a))
		if diff := cmp.Diff(q, got, cmpopts.IgnoreFields(Qdisc{}, "Stats")); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		ok(t, h.AddQdisc(a, Clsact(), false))
		if root, in := must[map[int]string](t)(h.RootQdiscs()), must[map[int]string](t)(h.IngressQdiscs()); len(root) != 1 || root[a] != QdiscTBF || len(in) != 1 || in[a] != QdiscClsact {
			t.Errorf("root qdiscs %v, ingress qdiscs %v", root, in)
		}
		ok(t, h.DelQdisc(a, Clsact()))
		ok(t, h.DelQdisc(a, q))
		ok(t, h.DelQdisc(a, q))
	}
	if err := h.AddQdisc(a, Qdisc{Kind: "none-such", Parent: ParentRoot}, false); !errors.Is(err, unix.ENOENT) {
		t.Errorf("unknown kind: %v", err)
	}
}

func TestPrivilegedClassesAndFilters(t *testing.T) {
	h := mustHandle(t, mustNS(t))
	ok(t, h.AddVeth(VethSpec{HostName: "a", PeerName: "b"}))
	ok(t, h.AddIFB("i0", 1500, 0))
	a, ifb := must[Link](t)(h.LinkByName("a")).Index, must[Link](t)(h.LinkByName("i0"))
	if ifb.Kind != "ifb" || !ifb.Up || ifb.TxQLen != 0 {
		t.Errorf("%+v", ifb)
	}
	ok(t, h.AddQdisc(a, Qdisc{Kind: QdiscHTB, Handle: TC(1, 0), Parent: ParentRoot, HTB: &HTB{Default: 48}}, false))
	if q := must[Qdisc](t)(h.RootQdisc(a)); q.HTB == nil || q.HTB.Default != 48 {
		t.Errorf("%+v", q)
	}
	want := Class{Handle: TC(1, 48), Parent: ParentRoot, Rate: 125_000, Ceil: 250_000, Buffer: BurstTicks(125_000, 16384), Cbuffer: BurstTicks(250_000, 16384)}
	c := want
	c.Parent = TC(1, 0)
	ok(t, h.AddClass(a, c))
	if diff := cmp.Diff([]Class{want}, must[[]Class](t)(h.Classes(a)), cmpopts.IgnoreFields(Class{}, "Stats")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, p := range []string{"10.0.0.0/8", "0.0.0.0/0", "2001:db8::/33", "::/0"} {
		ok(t, h.AddFilter(a, Filter{Parent: TC(1, 0), Priority: 15, Prefix: netip.MustParsePrefix(p), ClassID: TC(1, 48)}))
		if got := must[[]FilterStatus](t)(h.Filters(a, TC(1, 0))); len(got) != 1 || got[0].ClassID != TC(1, 48) {
			t.Errorf("%s: %+v", p, got)
		}
		for _, protocol := range []uint16{unix.ETH_P_IP, unix.ETH_P_IPV6} {
			ok(t, h.DelFilters(a, TC(1, 0), 15, protocol))
		}
	}
	ok(t, h.AddQdisc(a, Qdisc{Kind: QdiscClsact, Parent: ParentIngress}, false))
	if q := must[Qdisc](t)(h.IngressQdisc(a)); q.Kind != QdiscClsact {
		t.Errorf("%+v", q)
	}
	ok(t, h.AddFilter(a, Filter{Parent: HookIngress, Priority: 7, RedirectTo: ifb.Index}))
	got := must[[]FilterStatus](t)(h.Filters(a, HookIngress))
	if len(got) != 1 || got[0].RedirectTo != ifb.Index || got[0].Protocol != unix.ETH_P_ALL || got[0].Priority != 7 {
		t.Errorf("%+v", got)
	}
	for range 2 {
		ok(t, h.DelFilters(a, HookIngress, 7, unix.ETH_P_ALL))
	}
	if got := must[[]FilterStatus](t)(h.Filters(a, HookIngress)); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}

// A kernel with CONFIG_CLS_U32_PERF tells how often each key matched, in as many bytes as there are keys.
func TestParseFilterWithCounters(t *testing.T) {
	const counters = 9 // TCA_U32_PCNT
	msg := vnl.TcMsg{Ifindex: 1, Handle: 0x80000800, Parent: HookIngress, Info: tcInfo(5, unix.ETH_P_ALL)}
	options := attr(vnl.TCA_OPTIONS, nil)
	options.AddRtAttr(vnl.TCA_U32_CLASSID, vnl.Uint32Attr(0x10001))
	options.AddRtAttr(counters, make([]byte, 24))
	raw := append(msg.Serialize(), attrString(vnl.TCA_KIND, "u32").Serialize()...)
	f, ok, err := parseFilter(append(raw, options.Serialize()...))
	want := FilterStatus{Kind: "u32", Parent: HookIngress, Priority: 5, Protocol: unix.ETH_P_ALL, Handle: msg.Handle, ClassID: 0x10001}
	if f != want || !ok || err != nil {
		t.Errorf("%+v, %v, %v", f, ok, err)
	}
}

func TestParseGarbageTC(t *testing.T) {
	t.Parallel()
	for n := range 64 {
		b := make([]byte, n)
		for i := range b {
			b[i] = 0xff
		}
		_, _, _ = parseFilter(b)
		if n >= 20 {
			_, _ = parseQdisc(b)
			_, _, _ = parseClass(b)
		}
	}
}
