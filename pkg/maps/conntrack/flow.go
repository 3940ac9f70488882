// SPDX-License-Identifier: Apache-2.0

// Package conntrack is the typed view of the connection tables. Programs write them, from every CPU; Go only reads, for display,
// and forgets what the operator says. Times are CLOCK_MONOTONIC, as bpf_ktime_get_ns. Timeouts here repeat those of
// bpf/lib/conntrack/conntrack_table.h in order to tell a reader what a packet would find; they decide nothing.
package conntrack

import (
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
)

// Key names a connection by its two ends; Local is the one we own. For ICMP echo the local port is the identifier.
type Key struct {
	Local, Remote netip.AddrPort
	Proto         uint8
}

// String returns "proto local remote".
func (k Key) String() string { return fmt.Sprintf("%d %s %s", k.Proto, k.Local, k.Remote) }

// Flags are the bits of enum sl_ct_flag.
type Flags uint32

// The bits that this package looks at.
const (
	index     = Flags(bpfgen.TypesSlCtFlagSL_CT_REVERSE)
	podOpened = Flags(bpfgen.TypesSlCtFlagSL_CT_POD_OPENED)
	snat      = Flags(bpfgen.TypesSlCtFlagSL_CT_SNAT)
	dnat      = Flags(bpfgen.TypesSlCtFlagSL_CT_DNAT)
	dnatAny   = Flags(bpfgen.TypesSlCtFlagSL_CT_DNAT_ANYADDR)
	txFirst   = Flags(bpfgen.TypesSlCtFlagSL_CT_TX_SEEN_FIRST)
	txConfirm = Flags(bpfgen.TypesSlCtFlagSL_CT_TX_SEEN_LAST)
	rxFirst   = Flags(bpfgen.TypesSlCtFlagSL_CT_RX_SEEN_FIRST)
	rxConfirm = Flags(bpfgen.TypesSlCtFlagSL_CT_RX_SEEN_LAST)
	replied   = Flags(bpfgen.TypesSlCtFlagSL_CT_REPLIED)
	assured   = Flags(bpfgen.TypesSlCtFlagSL_CT_ASSURED)
	finTX     = Flags(bpfgen.TypesSlCtFlagSL_CT_FIN_TX)
	finRX     = Flags(bpfgen.TypesSlCtFlagSL_CT_FIN_RX)
	rst       = Flags(bpfgen.TypesSlCtFlagSL_CT_RST)
	localPeer = Flags(bpfgen.TypesSlCtFlagSL_CT_PEER_LOCAL)
	tracked   = Flags(bpfgen.TypesSlCtFlagSL_CT_TRACKED)
	nfNAT     = Flags(bpfgen.TypesSlCtFlagSL_CT_NF_NAT)
	hairpin   = Flags(bpfgen.TypesSlCtFlagSL_CT_HAIRPIN | bpfgen.TypesSlCtFlagSL_CT_POD_SNAT | bpfgen.TypesSlCtFlagSL_CT_WANTS_POD_SNAT)
	// SL_CT_HAS_REVERSE of bpf/lib/conntrack/conntrack_table.h: the connection has a reverse entry in the same table.
	mayHaveReverse = snat | nfNAT | Flags(bpfgen.TypesSlCtFlagSL_CT_CLIENT_PORT|bpfgen.TypesSlCtFlagSL_CT_HAIRPIN|bpfgen.TypesSlCtFlagSL_CT_POD_SNAT)
)

// Names returns the names of the bits that are set, in the order of the enum.
func (f Flags) Names() []string {
	names := make([]string, 0, 8)
	for _, e := range []struct {
		bit  Flags
		name string
	}{
		{index, "index"}, {podOpened, "pod-opened"}, {snat, "snat"}, {dnat, "dnat"}, {dnatAny, "dnat-any"},
		{txFirst, "tx-first"}, {txConfirm, "tx-confirmed"}, {rxFirst, "rx-first"}, {rxConfirm, "rx-confirmed"},
		{replied, "replied"}, {assured, "assured"}, {finTX, "fin-tx"}, {finRX, "fin-rx"}, {rst, "rst"}, {localPeer, "local-peer"},
		{tracked, "tracked"}, {nfNAT, "netfilter-nat"},
	} {
		if f&e.bit != 0 {
			names = append(names, e.name)
		}
	}
	return names
}

// Record is the state of one connection.
type Record struct {
	Key
	Other      Key // as seen outside, when translated
	Flags      Flags
	OutIfindex uint32
	Created    Time
	LastSeen   Time
	Owner      uint64
	RxPackets  uint64 // toward the pod
	RxBytes    uint64
	TxPackets  uint64
	TxBytes    uint64
}

// IsIndex reports whether the entry is no record but points to one.
func (r *Record) IsIndex() bool { return r.Flags&index != 0 }

// Translated reports whether Other means anything.
func (r *Record) Translated() bool { return r.Flags&(snat|dnat|nfNAT) != 0 }

// HasReverse reports whether a second entry, under Other, leads to this one (ct_has_reverse of bpf/lib/conntrack/conntrack.h).
func (r *Record) HasReverse() bool {
	return r.Flags&mayHaveReverse != 0 && r.Flags&(nfNAT|localPeer) != nfNAT|localPeer
}

// TranslatedByNetfilter reports whether a rule of netfilter or IPVS translates it, such as kube-proxy's for a Service. Other has
// the far end behind that translation then.
func (r *Record) TranslatedByNetfilter() bool { return r.Flags&nfNAT != 0 }

// Masqueraded reports whether the other end sees an address of the node for the pod's.
func (r *Record) Masqueraded() bool { return r.Flags&snat != 0 }

// Kind is "hostport", "masquerade" (netfilter may translate it as well), "netfilter" (only netfilter translates it) or "plain".
func (r *Record) Kind() string {
	switch {
	case r.Flags&dnat != 0:
		return "hostport"
	case r.Flags&snat != 0:
		return "masquerade"
	case r.TranslatedByNetfilter():
		return "netfilter"
	}
	return "plain"
}

// PodOpened reports whether the pod sent the first packet.
func (r *Record) PodOpened() bool { return r.Flags&podOpened != 0 }

// Reasons of Slow.
const (
	SlowHairpin    = "hairpin"    // the pod reaches itself, or a pod whose answers have to come back through the node
	SlowEnding     = "ending"     // netfilter has to see how a connection ends that it tracks
	SlowOpening    = "opening"    // not answered yet
	SlowStack      = "stack"      // what the pod sends ends in the node's stack, or is translated there in a way that is not learned
	SlowConfirming = "confirming" // the stack has still to confirm a direction, at first or again
)

// Slow says in a word why packets take the slow path; "" means that both directions have been confirmed, so that they may skip the stack.
func (r *Record) Slow() string {
	const first, confirmed = txFirst | rxFirst, txConfirm | rxConfirm
	switch {
	case r.Flags&hairpin != 0:
		return SlowHairpin
	case r.Flags&tracked != 0 && r.Flags&(finTX|finRX|rst) != 0:
		return SlowEnding
	case r.Flags&(txFirst|txConfirm|localPeer) == txFirst && r.OutIfindex == 0 && r.Created+neverLeft < r.LastSeen:
		return SlowStack
	case r.Flags&(replied|assured) == 0:
		return SlowOpening
	case r.Flags&(first|confirmed) != first|confirmed:
		return SlowConfirming
	}
	return ""
}

// neverLeft is the age at which a connection of a pod that has reached no uplink and no pod will not do so any more.
const neverLeft = 3 * time.Second

// Timeouts of bpf/lib/conntrack/conntrack_table.h.
const (
	timeoutTCPOpening    = 60 * time.Second
	timeoutTCP           = 86400 * time.Second
	timeoutTCPHalfClosed = 120 * time.Second
	timeoutTCPClosed     = 10 * time.Second
	timeoutNew           = 30 * time.Second
	timeoutReplied       = 180 * time.Second
)

// Timeout is how long the flow may be idle.
func (r *Record) Timeout() time.Duration {
	if r.Proto != unix.IPPROTO_TCP {
		if r.Flags&replied != 0 {
			return timeoutReplied
		}
		return timeoutNew
	}
	switch {
	case r.closed():
		return timeoutTCPClosed
	case r.Flags&(finTX|finRX) != 0:
		return timeoutTCPHalfClosed
	case r.Flags&assured != 0:
		return timeoutTCP
	}
	return timeoutTCPOpening
}

func (r *Record) closed() bool { return r.Flags&rst != 0 || r.Flags&(finTX|finRX) == finTX|finRX }

// Age is the time since the flow began. now is Now().
func (r *Record) Age(now Time) time.Duration { return max(0, now-r.Created) }

// Idle is the time since its last packet.
func (r *Record) Idle(now Time) time.Duration { return max(0, now-r.LastSeen) }

// Expired reports whether a lookup would treat the entry as not there.
func (r *Record) Expired(now Time) bool { return r.Idle(now) >= r.Timeout() }

// State is one word for the operator: new, unreplied, established, closing, closed or expired.
func (r *Record) State(now Time) string {
	switch {
	case r.Expired(now):
		return StateExpired
	case r.Proto == unix.IPPROTO_TCP && r.closed():
		return StateClosed
	case r.Proto == unix.IPPROTO_TCP && r.Flags&(finTX|finRX) != 0:
		return StateClosing
	case r.Flags&assured != 0:
		return StateEstablished
	case r.Flags&replied != 0:
		return "new"
	}
	return StateUnreplied
}

// Time is a reading of the flow tables' clock: the time since boot, without the time spent asleep.
type Time = time.Duration

// States that others name too. The last two are of connections that are over.
const (
	StateUnreplied   = "unreplied"
	StateEstablished = "established"
	StateClosing     = "closing" // TCP, by FIN in one direction

	StateClosed  = "closed"  // TCP, by FIN in both directions or RST; a look-up finds it for some seconds
	StateExpired = "expired" // a look-up would not find it
)

// IsOver reports whether a connection in that state has ended.
func IsOver(state string) bool { return state == StateClosed || state == StateExpired }

// Now is the clock of the flow tables.
func Now() Time {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0 // cannot happen: the clock exists and ts is ours
	}
	return Time(ts.Nano())
}

// Map is the view of sl_ct or sl_ct_unassured. It does not own the map: closing is the caller's.
type Map struct{ m *bpfsys.Map }

// New returns a view of m.
func New(m *bpfsys.Map) Map { return Map{m} }

// Each calls f with every entry, indexes and expired ones too, until f returns false. Flows come and go during the call.
func (m Map) Each(f func(*Record) bool) error {
	return m.eachRaw(func(k *bpfgen.TypesSlTuple, v *bpfgen.TypesSlCtEntry) bool { return f(decode(k, v)) })
}

func (m Map) eachRaw(f func(*bpfgen.TypesSlTuple, *bpfgen.TypesSlCtEntry) bool) error {
	return codec.Each(m.m, f)
}

// Use is how much of a table is in use.
type Use struct {
	Entries int // all: those of connections that have ended, and indexes, too
	Living  int // those of connections that have not ended, and their indexes
}

// Count counts an entry. An index does not say whether its connection has ended, so it is counted with the connection.
func (u *Use) Count(r *Record, now Time) {
	u.Entries++
	switch {
	case r.IsIndex() || IsOver(r.State(now)):
	case r.HasReverse():
		u.Living += 2
	default:
		u.Living++
	}
}

// Use counts the entries by a walk.
func (m Map) Use(now Time) (u Use, err error) {
	err = m.Each(func(r *Record) bool {
		u.Count(r, now)
		return true
	})
	return u, err
}

func decode(k *bpfgen.TypesSlTuple, v *bpfgen.TypesSlCtEntry) *Record {
	return &Record{
		Key: key(k), Other: key(&v.Other), Flags: Flags(v.Flags), OutIfindex: v.OutIfindex,
		Created: Time(v.Created), LastSeen: Time(v.LastSeen), Owner: v.Owner,
		RxPackets: v.RxPackets, RxBytes: v.RxBytes, TxPackets: v.TxPackets, TxBytes: v.TxBytes,
	}
}

func key(t *bpfgen.TypesSlTuple) Key {
	return Key{
		Local:  netip.AddrPortFrom(codec.FromAddr(t.Local), codec.Port(t.LocalPort)),
		Remote: netip.AddrPortFrom(codec.FromAddr(t.Remote), codec.Port(t.RemotePort)),
		Proto:  t.Proto,
	}
}
