// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/maps/cacheepoch"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
)

// fixture is a node with the programs loaded. Walks take turns in it.
type fixture struct {
	*node
	*programSet
	modes []mode
	cut   [hooks]*ebpf.Program // see objects.cutting
	kept  *[]uint32            // words of sl_rsvd_ports that walks have written since the last one began
}

// fixtureSizes keep the maps quick to empty.
var fixtureSizes = map[string]uint32{"sl_ct": 4096, "sl_ct_unassured": 4096, "sl_ct_places": 6144, "sl_ep_stats": 64}

// loaded are the programs of fixtures by their configuration: loading them takes longer than most tests do with them.
var loaded = map[string]fixture{}

// lasting is a test whose programs and maps outlive it, until the process ends.
type lasting struct{ testing.TB }

var never []func()

// Cleanup keeps f, and with it what f would close: the garbage collector would close it too.
func (lasting) Cleanup(f func()) { never = append(never, f) }

// newFixture makes a node for programs with seams and the given load-time configuration. Tests do not run in parallel; what one leaves in
// the maps a walk of the next empties.
func newFixture(tb testing.TB, vars map[string]uint32) *fixture {
	tb.Helper()
	key := fmt.Sprint(vars)
	fx, ok := loaded[key]
	if !ok {
		fx.kept = new([]uint32)
		fx.programSet = mustLoad(lasting{tb}, loadOptions{vars: vars, seams: true, sizes: fixtureSizes})
		fx.cut = fx.cutting(lasting{tb})
		loaded[key] = fx
	}
	fx.node = newNode(tb)
	fx.modes = fx.supportedModes(tb)
	return &fx
}

// supportedModes leaves out what an older kernel cannot make.
func (fx *fixture) supportedModes(tb testing.TB) []mode {
	tb.Helper()
	var ok []mode
	for _, m := range modes {
		w := &walk{fixture: fx, tb: tb, mode: m}
		_, err := w.run(podIngress, podA.name, input{data: make([]byte, 64)})
		switch {
		case err == nil:
			ok = append(ok, m)
		case errors.Is(err, unix.EINVAL) && !kernelAtLeast(tb, 6, m.minor):
			tb.Logf("this kernel has no packets in the state %q", m.name)
		default:
			tb.Fatalf("mode %s: %v", m.name, err)
		}
	}
	return ok
}

func kernelAtLeast(tb testing.TB, major, minor int) bool {
	tb.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		tb.Fatal(err)
	}
	var a, b int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &a, &b); err != nil {
		tb.Fatal(err)
	}
	return a > major || a == major && b >= minor
}

// walk is one scenario: what is in the maps, the time, and what was counted so far.
type walk struct {
	*fixture
	tb   testing.TB
	mode mode

	clock  uint64 // nanoseconds; stands still unless a test moves it
	random uint32
	dice   bool // random is what the programs draw
	fail   uint32
	rival  bpfgen.TypesSlCtEntry // see failMapRace
	stats  map[*pod]*bpfgen.TypesSlEndpointStats
	drops  dropCounts
	places map[drops.Place]uint64 // the same, by device and endpoint
	csum   uint64                 // what sk_buff says of a checksum that is still to be made (csum_place_test.go); 0: it is made
	nfct   uint64                 // what netfilter has left on each packet behind the stack; 0: it does not track them
	tuples [nfTuplesSize]byte     // the tuples of the entry to which nfct leads (nf_nat_test.go)
	came   string                 // device that what reaches a pod came in by; empty: a process of the node sent it
	number uint32                 // of the pod's own device, for the programs inside
	untold bool                   // changes of maps do not begin another epoch
}

// option is one part of a scenario.
type option func(*walk)

// walk empties the maps and sets a scenario up: the three pods, the node's
// addresses, the uplinks' sources, and what the options add.
func (fx *fixture) walk(tb testing.TB, m mode, opts ...option) *walk {
	tb.Helper()
	w := &walk{fixture: fx, tb: tb, mode: m, clock: uint64(1000 * time.Hour), stats: map[*pod]*bpfgen.TypesSlEndpointStats{}}
	w.places = map[drops.Place]uint64{}
	for _, name := range []string{"sl_ct", "sl_ct_unassured", "sl_endpoints", "sl_ep_stats", "sl_node_addrs", "sl_uplinks", "sl_nomasq_cidrs", "sl_hostports", "sl_frags", "sl_policies", "sl_dev_policy", "sl_np_policies", "sl_np_peers", "sl_np_cidrs", "sl_np_services", "sl_np_bits", "sl_drops_by_dev", "sl_ct_shares", "sl_hp_outside", "sl_node_sent", "sl_tunnel_ports"} {
		w.empty(name)
	}
	w.zero("sl_ct_turnover", make([]byte, 24))
	w.zero("sl_ct_counts", make([]uint64, ebpf.MustPossibleCPU()))
	w.zero("sl_drop_reasons", make([]uint64, ebpf.MustPossibleCPU()))
	w.zero("sl_event_state", make([]bpfgen.TypesSlEventState, ebpf.MustPossibleCPU()))
	for _, word := range *fx.kept {
		w.put("sl_rsvd_ports", word, uint64(0))
	}
	*fx.kept = nil
	w.keepPorts(movedPort, movedPort)
	for _, p := range allPods {
		w.stats[p] = &bpfgen.TypesSlEndpointStats{}
		w.addEndpoint(p, 0)
	}
	for _, a := range []netip.Addr{upl0.addr4, upl0.addr6, upl1.addr4, upl1.addr6, second4, second6, ip("10.1.0.1"), ip("fd00:1::1")} {
		w.put("sl_node_addrs", codec.Addr(a), uint32(w.index("upl0")))
	}
	for _, u := range []*uplink{upl0, upl1} {
		w.put("sl_uplinks", uint32(w.index(u.name)), &bpfgen.TypesSlUplink{Src4: codec.Addr(u.addr4), Src6: codec.Addr(u.addr6)})
	}
	for _, o := range opts {
		o(w)
	}
	return w
}

// each runs a walk in every state a packet can be in.
func (fx *fixture) each(t *testing.T, name string, f func(*walk), opts ...option) {
	t.Helper()
	for _, m := range fx.modes {
		t.Run(name+"/"+m.name, func(t *testing.T) { f(fx.walk(t, m, opts...)) })
	}
}

func (w *walk) empty(name string) {
	w.tb.Helper()
	m := w.maps[name]
	key := make([]byte, m.KeySize())
	for {
		if err := m.NextKey(nil, &key); err != nil {
			if errors.Is(err, ebpf.ErrKeyNotExist) {
				return
			}
			w.tb.Fatalf("%s: %v", name, err)
		}
		if err := m.Delete(key); err != nil {
			w.tb.Fatalf("%s: %v", name, err)
		}
	}
}

func (w *walk) zero(name string, value any) {
	w.tb.Helper()
	for i := range w.maps[name].MaxEntries() {
		w.put(name, i, value)
	}
}

func (w *walk) put(name string, key, value any) {
	w.tb.Helper()
	if err := w.maps[name].Put(key, value); err != nil {
		w.tb.Fatalf("%s: %v", name, err)
	}
	w.changed()
}

func (w *walk) remove(name string, key any) {
	w.tb.Helper()
	if err := w.maps[name].Delete(key); err != nil {
		w.tb.Fatalf("%s: %v", name, err)
	}
	w.changed()
}

// changed has the programs read the maps again, as the loader does.
func (w *walk) changed() {
	w.tb.Helper()
	if err := w.epoch().Next(); err != nil {
		w.tb.Fatal(err)
	}
}

func (w *walk) epoch() cacheepoch.Epoch {
	if w.untold {
		return cacheepoch.Epoch{}
	}
	return cacheepoch.New(w.views["sl_cache_epoch"])
}

const (
	epMasquerade = uint32(bpfgen.TypesSlEndpointFlagSL_EP_MASQUERADE)
	epAdmit      = uint32(bpfgen.TypesSlEndpointFlagSL_EP_ADMIT)
)

const podMTU = 1500

// addEndpoint makes the entries of a pod and its counters.
func (w *walk) addEndpoint(p *pod, flags uint32) {
	w.tb.Helper()
	w.endpoint(p, p.owner, flags)
	w.put("sl_ep_stats", uint32(w.index(p.name)), make([]bpfgen.TypesSlEndpointStats, ebpf.MustPossibleCPU()))
	*w.stats[p] = bpfgen.TypesSlEndpointStats{}
}

// endpoint makes the entries of a pod's addresses, or gives them to another owner.
func (w *walk) endpoint(p *pod, owner uint64, flags uint32) {
	w.tb.Helper()
	for _, family := range []int{4, 6} {
		v := &bpfgen.TypesSlEndpoint{
			Owner: owner, Ifindex: uint32(w.index(p.name)), RouteIfindex: uint32(w.index(p.route)), Flags: flags, Mtu: podMTU,
			Mac: [6]uint8(p.mac), GatewayMac: [6]uint8(p.gwMAC), PrefixLen: uint8(pick(family, 96+p.bits4, p.bits6)),
		}
		w.put("sl_endpoints", codec.Addr(p.addr(family)), v)
	}
}

// changeEndpoint changes the entries of a pod's addresses.
func (w *walk) changeEndpoint(p *pod, change func(family int, v *bpfgen.TypesSlEndpoint)) {
	w.tb.Helper()
	for _, family := range families {
		var v bpfgen.TypesSlEndpoint
		key := codec.Addr(p.addr(family))
		if err := w.maps["sl_endpoints"].Lookup(key, &v); err != nil {
			w.tb.Fatal(err)
		}
		change(family, &v)
		w.put("sl_endpoints", key, &v)
	}
}

// masquerading gives pods the feature.
func masquerading(pods ...*pod) option {
	return func(w *walk) {
		for _, p := range pods {
			w.addEndpoint(p, epMasquerade)
		}
	}
}

// admitting gives pods the firewall's admission.
func admitting(flags uint32, pods ...*pod) option {
	return func(w *walk) {
		for _, p := range pods {
			w.addEndpoint(p, epAdmit|flags)
		}
	}
}

// published is a hostPort.
type published struct {
	host  netip.AddrPort // unspecified address: every address of the node
	proto uint8
	pod   *pod
	port  uint16
	gen   uint64

	sources    []netip.Prefix // who may connect; none: everybody
	conditions hostport.Conditions
}

func publishing(ps ...published) option {
	return func(w *walk) {
		for _, p := range ps {
			w.publish(p)
		}
	}
}

func (w *walk) publish(p published) {
	w.tb.Helper()
	family := 4
	if p.host.Addr().Is6() {
		family = 6
	}
	e := hostport.Entry{
		Mapping: hostport.Mapping{
			Key:   hostport.Key{HostIP: p.host.Addr(), Proto: p.proto, Port: p.host.Port()},
			PodIP: p.pod.addr(family), PodPort: p.port, Conditions: p.conditions,
		},
		Owner: p.pod.owner, Generation: p.gen,
	}
	if len(p.sources) > 0 {
		list, err := hostport.NewAllowlists(w.views["sl_hp_allowlist"]).Put(p.sources)
		if err != nil {
			w.tb.Fatal(err)
		}
		e.Allowlist = list
	}
	if err := hostport.New(w.views["sl_hostports"], w.epoch()).Put(e); err != nil {
		w.tb.Fatal(err)
	}
}

func (p published) key() *bpfgen.TypesSlHostportKey {
	return &bpfgen.TypesSlHostportKey{Ip: codec.Addr(p.host.Addr()), Port: codec.Port(p.host.Port()), Proto: p.proto}
}

// notMasqueraded adds destinations.
func notMasqueraded(prefixes ...string) option {
	return func(w *walk) {
		for _, s := range prefixes {
			p := netip.MustParsePrefix(s)
			w.put("sl_nomasq_cidrs", &bpfgen.TypesSlCidr{PrefixLen: uint32(codec.PrefixLen(p)), Ip: codec.Addr(p.Addr())}, uint32(1))
		}
	}
}

// keepPorts reserves the source ports of the node from first to last.
func (w *walk) keepPorts(first, last int) {
	w.tb.Helper()
	for word := first / 64; word <= last/64; word++ {
		var bits uint64
		if err := w.maps["sl_rsvd_ports"].Lookup(uint32(word), &bits); err != nil {
			w.tb.Fatal(err)
		}
		for port := max(first, word*64); port <= min(last, word*64+63); port++ {
			bits |= 1 << (port % 64)
		}
		w.put("sl_rsvd_ports", uint32(word), bits)
		*w.kept = append(*w.kept, uint32(word))
	}
}

// later moves the clock.
func (w *walk) later(d time.Duration) { w.clock += uint64(d) }

// rolls makes the programs draw n.
func (w *walk) rolls(n uint32) { w.random, w.dice = n, true }
