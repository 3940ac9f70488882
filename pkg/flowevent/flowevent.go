// SPDX-License-Identifier: Apache-2.0

// Package flowevent is what `sluice observe` tells of connections and dropped packets: the line of its JSON output.
//
// cmd/sluice writes the lines, and the node agent reads them from a child process. No line has a byte of a packet's payload.
package flowevent

import (
	"net/netip"
	"strconv"
	"time"

	"github.com/sluice-cni/sluice/pkg/ipproto"
)

// What an event is about.
const (
	Existing = "existing" // a connection that was in the table before the observer looked for the first time
	New      = "new"      // a connection began
	Changed  = "changed"  // a connection has another state, or takes the fast path, or no longer
	Ended    = "ended"    // a connection ended; Reason says how
	Dropped  = "dropped"  // a packet was dropped; Reason is the name that "sluice drops" has
	Lost     = "lost"     // Lost events are not shown; Reason says why
)

// Verdicts.
const (
	VerdictForwarded = "forwarded"
	VerdictDropped   = "dropped"
)

// How connections end.
const (
	EndFIN     = "fin"     // TCP, by FIN in both directions
	EndRST     = "rst"     // TCP, by RST
	EndExpired = "expired" // no packet for longer than the timeout
	EndRemoved = "removed" // the entry has gone: of a hostPort that closed, evicted, flushed, or another connection has its ends
)

// Why events are lost.
const (
	LostBuffer = "buffer" // the kernel had no room for records of drops, or wrote no more of them a second
	LostBusy   = "busy"   // another process reads the drops
	LostRate   = "rate"   // --max-rate
	LostSample = "sample" // --sample
)

// The directions, as the pod sees them.
const (
	Ingress = "ingress"
	Egress  = "egress"
)

// Event is one line.
type Event struct {
	Time      time.Time `json:"time"`
	Event     string    `json:"event"`
	Verdict   string    `json:"verdict,omitempty"`
	Direction string    `json:"direction,omitempty"` // of the connection's opening, or of the dropped packet; empty: not known
	Proto     string    `json:"proto,omitempty"`     // tcp, udp, sctp, icmp, icmp6, or a number
	// Source opened the connection, or sent the dropped packet. The pod's end is as the pod sees it. Port 0: none.
	Source      netip.AddrPort `json:"source,omitzero"`
	Destination netip.AddrPort `json:"destination,omitzero"`
	Outside     netip.AddrPort `json:"outside,omitzero"` // the node's end of a translated connection
	// Backend answers a connection to Destination, where the node's stack translates it: the pod behind a Service. Invalid: not known, or none.
	Backend   netip.AddrPort `json:"backend,omitzero"`
	Pod       *Pod           `json:"pod,omitempty"`   // whose attachment it is; nil: not known
	State     string         `json:"state,omitempty"` // of a connection, as "sluice conntrack list" has it
	Kind      string         `json:"kind,omitempty"`  // hostport, masquerade, netfilter, plain
	Fast      bool           `json:"fast,omitempty"`  // takes the fast path in both directions
	RxPackets uint64         `json:"rx_packets,omitempty"`
	RxBytes   uint64         `json:"rx_bytes,omitempty"` // toward the pod
	TxPackets uint64         `json:"tx_packets,omitempty"`
	TxBytes   uint64         `json:"tx_bytes,omitempty"`
	Reason    string         `json:"reason,omitempty"`
	Text      string         `json:"text,omitempty"`    // Reason in words
	Header    ipproto.Header `json:"header,omitzero"`   // of a dropped packet
	Device    string         `json:"device,omitempty"`  // where a packet was dropped
	Program   string         `json:"program,omitempty"` // that dropped it
	Length    int            `json:"length,omitempty"`  // of its frame, bytes
	Lost      uint64         `json:"lost,omitempty"`
}

// Pod is an attachment, with the name that the runtime gave to its pod.
type Pod struct {
	Network     string `json:"network,omitempty"`
	ContainerID string `json:"container_id,omitempty"`
	IfName      string `json:"ifname,omitempty"`
	Namespace   string `json:"namespace,omitempty"` // empty: no pod of Kubernetes
	Name        string `json:"name,omitempty"`
}

// Number is the protocol's in the IP header; 0 if Proto is none.
func (e *Event) Number() uint8 {
	if n := ipproto.Number(e.Proto); n != 0 {
		return n
	}
	n, err := strconv.ParseUint(e.Proto, 10, 8)
	if err != nil {
		return 0
	}
	return uint8(n)
}
