// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
	"github.com/sluice-cni/sluice/pkg/maps/podns"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// Verdicts of the programs; docs/dev/design/overview.md allows no others.
const (
	pass     = int32(-1)
	shot     = int32(2)
	redirect = int32(7)
)

// flagCsumComplete makes BPF_PROG_TEST_RUN give the packet a checksum over all of
// it (CHECKSUM_COMPLETE) and fail with EBADMSG when it does not fit afterwards.
const flagCsumComplete = 1 << 2 // BPF_F_TEST_SKB_CHECKSUM_COMPLETE

// mode is the state a packet's memory and checksum are in.
type mode struct {
	name  string
	flags uint32
	paged bool // only what the kernel insists on is not in fragments
	minor int  // of Linux 6, the first that can make such packets; 0 = any
}

var modes = []mode{
	{name: "plain"},
	{name: "csum-complete", flags: flagCsumComplete, minor: 16},
	{name: "paged", paged: true, flags: flagCsumComplete, minor: 19},
}

// linear returns how many bytes of a packet are not in fragments, 0 for all.
// BPF_PROG_TEST_RUN refuses one whose IP header is, of the family that the
// Ethernet header says (net/bpf/test_run.c).
func (m mode) linear(data []byte) uint32 {
	if !m.paged {
		return 0
	}
	n := ethLen + map[uint16]int{typeIPv4: 20, typeIPv6: 40}[binary.BigEndian.Uint16(data[12:])]
	if n >= len(data) {
		return 0
	}
	return uint32(n)
}

// skbContext is struct __sk_buff of <linux/bpf.h>.
type skbContext struct {
	Len, PktType, Mark, QueueMapping, Protocol, VlanPresent, VlanTci, VlanProto uint32
	Priority, IngressIfindex, Ifindex, TcIndex                                  uint32
	Cb                                                                          [5]uint32
	Hash, TcClassid, Data, DataEnd, NapiID, Family, RemoteIP4, LocalIP4         uint32
	RemoteIP6, LocalIP6                                                         [4]uint32
	RemotePort, LocalPort, DataMeta                                             uint32
	FlowKeys, Tstamp                                                            uint64
	WireLen, GsoSegs                                                            uint32
	Sk                                                                          uint64
	GsoSize, TstampType                                                         uint32
	Hwtstamp                                                                    uint64
}

// hook is one of the programs.
type hook int

const (
	podEgress hook = iota
	podIngress
	uplIngress
	uplEgress
	ownEgress
	ownIngress
	hooks // how many there are
)

func (h hook) String() string { return parts[h].name }

// result is what a program did.
type result struct {
	verdict int32
	out     []byte
	mark    uint32
	word    [2]uint32 // in the control block
	seamState
}

// input is a packet as a hook gets it.
type input struct {
	data    []byte
	mark    uint32
	gsoSize uint32
	word    [2]uint32
	badSums bool   // the packet's checksums are none
	came    string // device the packet came in by; empty is walk.came
}

// run gives a packet to a program on a device of the node.
func (w *walk) run(h hook, dev string, in input) (result, error) {
	o := w.programSet
	p := *parts[h].into(o)
	if o.maps[seamMap] != nil {
		o.setSeam(w.tb, seamState{clock: w.clock, random: w.random, dice: w.dice, fail: w.fail, rival: w.rival, nfct: w.nfct, csum: w.csum, tuples: w.tuples})
	}
	ctx := skbContext{Ifindex: uint32(w.index(dev)), Mark: in.mark, GsoSize: in.gsoSize}
	if came := cmp.Or(in.came, w.came); came != "" && (h == podIngress || h == uplEgress) {
		ctx.IngressIfindex = uint32(w.index(came))
	}
	ctx.Cb[ownNumberCb] = w.number
	if in.word != [2]uint32{} {
		copy(ctx.Cb[wordCb:], in.word[:])
	}
	ctx.DataEnd = w.mode.linear(in.data)
	data := in.data
	if tooShort(data) {
		p, ctx.Cb[0], data = w.cut[h], uint32(len(data)), append(data[:len(data):len(data)], make([]byte, 64)...)
	}
	var ctxOut skbContext
	opts := &ebpf.RunOptions{
		Data: data, DataOut: make([]byte, len(in.data)+256), Context: ctx, ContextOut: &ctxOut, Flags: w.mode.flags,
	}
	var ret uint32
	err := w.do(func() (err error) {
		ret, err = p.Run(opts)
		return err
	})
	if ctx.IngressIfindex != 0 && errors.Is(err, unix.EINVAL) {
		require.TestRunIngress(w.tb)
	}
	r := result{verdict: int32(ret), out: opts.DataOut, mark: ctxOut.Mark, word: [2]uint32(ctxOut.Cb[wordCb:])}
	if o.maps[seamMap] != nil {
		r.seamState = o.seam(w.tb)
	}
	return r, err
}

// want is what a step must do.
type want struct {
	verdict   int32
	out       []byte
	mark      uint32
	reason    drops.Reason // of a drop
	victim    *pod         // whose packet was dropped
	peer      *pod         // redirect_peer to this pod
	neighDev  *uplink      // redirect_neigh by this uplink, to its router
	linkDev   *uplink      // redirect by this uplink: the packet is addressed to the router already
	uncounted bool         // no endpoint counts the packet
	hostType  bool         // the packet's type was set to PACKET_HOST
}

func passes(raw []byte) want { return want{verdict: pass, out: raw} }

// untouched is a packet without an owner: not even counted.
func untouched(raw []byte) want { return want{verdict: pass, out: raw, uncounted: true} }

// wantDrop is a counted drop. What is dropped counts as neither sent nor got.
func wantDrop(reason drops.Reason, victim *pod) want {
	return want{verdict: shot, reason: reason, victim: victim}
}

func toPeer(p *pod, raw []byte) want { return want{verdict: redirect, peer: p, out: raw} }

func toNeigh(u *uplink, raw []byte) want { return want{verdict: redirect, neighDev: u, out: raw} }

func toLink(u *uplink, raw []byte) want { return want{verdict: redirect, linkDev: u, out: raw} }

// step runs one program and checks all that can be seen of it: verdict, the whole
// packet, its checksums, where a redirect leads, the mark, the drop counters and
// the counters of every endpoint. It returns the packet for the next step.
func (w *walk) step(h hook, dev string, in []byte, want want) []byte {
	w.tb.Helper()
	return w.stepInput(h, dev, input{data: in}, want)
}

func (w *walk) stepInput(h hook, dev string, in input, want want) []byte {
	w.tb.Helper()
	r, err := w.run(h, dev, in)
	if errors.Is(err, unix.EBADMSG) {
		w.tb.Fatalf("%s: the sum over the whole packet (CHECKSUM_COMPLETE) is off afterwards", h)
	}
	if err != nil {
		w.tb.Fatalf("%s: %v", h, err)
	}
	if r.verdict != want.verdict {
		w.tb.Fatalf("%s: verdict %d, want %d\n%s", h, r.verdict, want.verdict, w.dump())
	}
	if want.verdict != shot {
		if !bytes.Equal(r.out, want.out) {
			w.tb.Fatalf("%s: packet differs (-want +got):\n%s", h, gocmp.Diff(hexLines(want.out), hexLines(r.out)))
		}
		if err := checkSums(r.out); err != nil && !in.badSums {
			w.tb.Fatalf("%s: %v", h, err)
		}
	}
	if r.mark != want.mark {
		w.tb.Errorf("%s: mark %#x, want %#x", h, r.mark, want.mark)
	}
	w.checkRedirect(h, r, want)
	w.account(h, dev, in, want)
	w.checkCounters(h)
	return r.out
}

func hexLines(b []byte) []string { return strings.Split(hex.Dump(b), "\n") }

func (w *walk) checkRedirect(h hook, r result, want want) {
	w.tb.Helper()
	switch {
	case want.peer != nil:
		if r.kind != redirectPeer || int(r.ifindex) != w.index(want.peer.name) {
			w.tb.Errorf("%s: redirect kind %d to device %d, want peer of %s (%d)", h, r.kind, r.ifindex, want.peer.name, w.index(want.peer.name))
		}
	case want.neighDev != nil:
		hop := want.neighDev.gateway(read(want.out).family)
		if r.kind != redirectNeigh || int(r.ifindex) != w.index(want.neighDev.name) || r.nextHop() != hop {
			w.tb.Errorf("%s: redirect kind %d to device %d by %s, want neighbour %s on %s", h, r.kind, r.ifindex, r.nextHop(), hop, want.neighDev.name)
		}
	case want.linkDev != nil:
		if r.kind != redirectLink || int(r.ifindex) != w.index(want.linkDev.name) {
			w.tb.Errorf("%s: redirect kind %d to device %d, want a plain one to %s (%d)", h, r.kind, r.ifindex, want.linkDev.name, w.index(want.linkDev.name))
		}
	case r.kind != redirectNone:
		w.tb.Errorf("%s: redirect kind %d to device %d, want none", h, r.kind, r.ifindex)
	}
	if got := r.pktType; got != 0 != want.hostType || got > 1 {
		w.tb.Errorf("%s: packet type set to %d, want %t (PACKET_HOST)", h, int(got)-1, want.hostType)
	}
}

// account writes down what the counters must be after a step.
func (w *walk) account(h hook, dev string, in input, want want) {
	if want.verdict == shot {
		w.dropped(h, want.reason)
		w.places[w.place(h, dev, want)]++
	}
	if want.victim != nil {
		w.stats[want.victim].Drops++
	}
	p, size := podOn(dev), uint64(len(in.data))
	switch {
	case want.uncounted || want.verdict == shot:
	case h == podEgress:
		w.stats[p].TxPackets++
		w.stats[p].TxBytes += size
		if want.verdict == redirect {
			w.stats[p].TxFast++
		}
	case h == podIngress:
		w.stats[p].RxPackets++
		w.stats[p].RxBytes += size
	}
	if q := want.peer; q != nil {
		w.stats[q].RxPackets++
		w.stats[q].RxBytes += size
		w.stats[q].RxFast++
	}
}

// dropped writes down that a program dropped a packet. Its hook has the direction.
func (w *walk) dropped(h hook, reason drops.Reason) {
	switch h {
	case podEgress, uplEgress, ownEgress:
		w.drops[reason].FromPods++
	default:
		w.drops[reason].ToPods++
	}
}

// place is where a drop is counted: on the device, and as the pod's.
func (w *walk) place(h hook, dev string, want want) drops.Place {
	p := drops.Place{Device: uint32(w.index(dev)), Reason: want.reason}
	if want.victim != nil {
		p.Endpoint = uint32(w.index(want.victim.name))
	}
	if h == ownEgress || h == ownIngress { // inside a pod its number is both
		p.Device, p.Endpoint = podns.Key(w.number), podns.Key(w.number)
	}
	return p
}

func podOn(dev string) *pod {
	for _, p := range allPods {
		if p.name == dev {
			return p
		}
	}
	return nil
}

func (w *walk) checkCounters(h hook) {
	w.tb.Helper()
	if got := w.readDrops(); got != w.drops {
		w.tb.Errorf("%s: drop counters %v, want %v", h, got, w.drops)
	}
	places, err := drops.NewDeviceDrops(w.views["sl_drops_by_dev"], w.views["sl_event_state"]).All()
	if err != nil {
		w.tb.Fatal(err)
	}
	if diff := gocmp.Diff(w.places, places); diff != "" {
		w.tb.Errorf("%s: drops by device and endpoint (-want +got):\n%s", h, diff)
	}
	for _, p := range allPods {
		if diff := gocmp.Diff(*w.stats[p], w.readStats(p), ignoreLayout); diff != "" {
			w.tb.Errorf("%s: counters of %s (-want +got):\n%s", h, p.name, diff)
		}
	}
}

var ignoreLayout = gocmp.FilterPath(func(p gocmp.Path) bool { return p.Last().String() == "._" }, gocmp.Ignore())

type dropCounts [bpfgen.TypesSlDropReasonSL_DROP_MAX]drops.Sum

func (d dropCounts) total() (n uint64) {
	for _, c := range d {
		n += c.Total()
	}
	return n
}

func (w *walk) readDrops() (all dropCounts) {
	w.tb.Helper()
	view := drops.NewDrops(w.views["sl_drop_reasons"])
	for r := range all {
		n, err := view.Get(drops.Reason(r))
		if err != nil {
			w.tb.Fatal(err)
		}
		all[r] = n
	}
	return all
}

func (w *walk) readStats(p *pod) (total bpfgen.TypesSlEndpointStats) {
	w.tb.Helper()
	var perCPU []bpfgen.TypesSlEndpointStats
	if err := w.maps["sl_ep_stats"].Lookup(uint32(w.index(p.name)), &perCPU); err != nil {
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return total
		}
		w.tb.Fatal(err)
	}
	for _, s := range perCPU {
		total.RxPackets += s.RxPackets
		total.RxBytes += s.RxBytes
		total.TxPackets += s.TxPackets
		total.TxBytes += s.TxBytes
		total.RxFast += s.RxFast
		total.TxFast += s.TxFast
		total.Drops += s.Drops
	}
	return total
}

// dump shows what is in the flow maps and the drop counters, for a failure.
func (w *walk) dump() string {
	s := fmt.Sprintf("drops %v\n", w.readDrops())
	for _, name := range []string{"sl_ct", "sl_ct_unassured"} {
		w.eachFlow(name, func(k bpfgen.TypesSlTuple, f bpfgen.TypesSlCtEntry) {
			s += fmt.Sprintf("%s %s -> %s flags %#x\n", name, tupleText(k), tupleText(f.Other), f.Flags)
		})
	}
	return s
}
