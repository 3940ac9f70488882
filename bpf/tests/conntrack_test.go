// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
)

const (
	flowIndex     = uint32(bpfgen.TypesSlCtFlagSL_CT_REVERSE)
	flowPodOpened = uint32(bpfgen.TypesSlCtFlagSL_CT_POD_OPENED)
	flowSNAT      = uint32(bpfgen.TypesSlCtFlagSL_CT_SNAT)
	flowDNAT      = uint32(bpfgen.TypesSlCtFlagSL_CT_DNAT)
	flowDNATAny   = uint32(bpfgen.TypesSlCtFlagSL_CT_DNAT_ANYADDR)
	flowTXFirst   = uint32(bpfgen.TypesSlCtFlagSL_CT_TX_SEEN_FIRST)
	flowTXConfirm = uint32(bpfgen.TypesSlCtFlagSL_CT_TX_SEEN_LAST)
	flowRXFirst   = uint32(bpfgen.TypesSlCtFlagSL_CT_RX_SEEN_FIRST)
	flowRXConfirm = uint32(bpfgen.TypesSlCtFlagSL_CT_RX_SEEN_LAST)
	flowReplied   = uint32(bpfgen.TypesSlCtFlagSL_CT_REPLIED)
	flowAssured   = uint32(bpfgen.TypesSlCtFlagSL_CT_ASSURED)
	flowFinTX     = uint32(bpfgen.TypesSlCtFlagSL_CT_FIN_TX)
	flowFinRX     = uint32(bpfgen.TypesSlCtFlagSL_CT_FIN_RX)
	flowRST       = uint32(bpfgen.TypesSlCtFlagSL_CT_RST)
	flowTracked   = uint32(bpfgen.TypesSlCtFlagSL_CT_TRACKED)
	flowNFNAT     = uint32(bpfgen.TypesSlCtFlagSL_CT_NF_NAT)
	flowLocalPeer = uint32(bpfgen.TypesSlCtFlagSL_CT_PEER_LOCAL)

	flowConfirmed = flowTXFirst | flowTXConfirm | flowRXFirst | flowRXConfirm
)

// The two tables.
const (
	proven   = "sl_ct"
	unproven = "sl_ct_unassured"
)

// tuple is the key of a connection in the flow maps.
func (c conn) tuple() bpfgen.TypesSlTuple {
	t := bpfgen.TypesSlTuple{
		Local: codec.Addr(c.local.Addr()), Remote: codec.Addr(c.remote.Addr()),
		LocalPort: codec.Port(c.local.Port()), RemotePort: codec.Port(c.remote.Port()), Proto: c.l4Proto(),
	}
	if c.proto == echo {
		t.RemotePort = codec.Port(1)
		if c.remoteAsks {
			t.RemotePort = codec.Port(2)
		}
	}
	return t
}

func (c conn) l4Proto() uint8 {
	if c.proto == echo && c.local.Addr().Is6() {
		return protoICM6
	}
	return uint8(c.proto)
}

func tupleText(t bpfgen.TypesSlTuple) string {
	return fmt.Sprintf("%d %s %s", t.Proto, netip.AddrPortFrom(codec.FromAddr(t.Local), codec.Port(t.LocalPort)),
		netip.AddrPortFrom(codec.FromAddr(t.Remote), codec.Port(t.RemotePort)))
}

func (w *walk) lookup(name string, c conn) (f bpfgen.TypesSlCtEntry, ok bool) {
	w.tb.Helper()
	key := c.tuple()
	err := w.maps[name].Lookup(&key, &f)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		w.tb.Fatal(err)
	}
	return f, err == nil
}

// wantFlow checks that the entry of c is in one of the tables and not in the
// other, with exactly these flags.
func (w *walk) wantFlow(name string, c conn, flags uint32) bpfgen.TypesSlCtEntry {
	w.tb.Helper()
	other := proven
	if name == proven {
		other = unproven
	}
	if _, ok := w.lookup(other, c); ok {
		w.tb.Errorf("%s is in %s too", tupleText(c.tuple()), other)
	}
	f, ok := w.lookup(name, c)
	if !ok {
		w.tb.Fatalf("%s is not in %s:\n%s", tupleText(c.tuple()), name, w.dump())
	}
	if f.Flags != flags {
		w.tb.Errorf("%s: flags %#x, want %#x", tupleText(c.tuple()), f.Flags, flags)
	}
	return f
}

// wantIndex checks that the outside tuple leads to the record of inside.
func (w *walk) wantIndex(name string, outside, inside conn) {
	w.tb.Helper()
	f, ok := w.lookup(name, outside)
	if !ok {
		w.tb.Fatalf("no index %s in %s:\n%s", tupleText(outside.tuple()), name, w.dump())
	}
	if f.Flags&flowIndex == 0 || f.Other != inside.tuple() {
		w.tb.Errorf("%s leads to %s (flags %#x), want %s", tupleText(outside.tuple()), tupleText(f.Other), f.Flags, tupleText(inside.tuple()))
	}
}

func (w *walk) wantNoFlow(c conn) {
	w.tb.Helper()
	for _, name := range []string{proven, unproven} {
		if f, ok := w.lookup(name, c); ok {
			w.tb.Errorf("%s is in %s, flags %#x, want nothing", tupleText(c.tuple()), name, f.Flags)
		}
	}
}

// wantFlows checks the number of entries of both tables.
func (w *walk) wantFlows(nProven, nUnproven int) {
	w.tb.Helper()
	for name, want := range map[string]int{proven: nProven, unproven: nUnproven} {
		got := 0
		w.eachFlow(name, func(bpfgen.TypesSlTuple, bpfgen.TypesSlCtEntry) { got++ })
		if got != want {
			w.tb.Errorf("%d entries in %s, want %d:\n%s", got, name, want, w.dump())
		}
	}
}

// evict takes the entry of c out, as an LRU map does when it is full.
func (w *walk) evict(c conn) {
	w.tb.Helper()
	found := false
	key := c.tuple()
	for _, name := range []string{proven, unproven} {
		err := w.maps[name].Delete(&key)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			w.tb.Fatal(err)
		}
		found = found || err == nil
	}
	if !found {
		w.tb.Fatalf("nothing to evict at %s:\n%s", tupleText(key), w.dump())
	}
}

func (w *walk) eachFlow(name string, f func(bpfgen.TypesSlTuple, bpfgen.TypesSlCtEntry)) {
	w.tb.Helper()
	err := codec.Each(w.views[name], func(k *bpfgen.TypesSlTuple, v *bpfgen.TypesSlCtEntry) bool {
		f(*k, *v)
		return true
	})
	if err != nil {
		w.tb.Fatal(err)
	}
}
