// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"iter"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
)

// Flows returns the connections that f matches, while the datapath goes on changing them: one may be seen twice or not at all
// when it moves during the walk. An error ends the sequence.
func (d *Datapath) Flows(ctx context.Context, f FlowFilter) iter.Seq2[Flow, error] {
	return func(yield func(Flow, error) bool) {
		now, nf := conntrack.Now(), newNetfilter()
		for _, name := range []string{pintree.MapConntrack, pintree.MapConntrackUnassured} {
			m, err := d.tree.Pinned(name)
			if err != nil {
				yield(Flow{}, err)
				return
			}
			more, use := true, conntrack.Use{}
			err = conntrack.New(m).Each(func(r *conntrack.Record) bool {
				if ctx.Err() != nil {
					return false
				}
				if f.Counted != nil {
					use.Count(r, now)
				}
				s := newFlow(r, now)
				if f.matches(r, s) {
					nf.complete(&s)
					more = yield(s, nil)
				}
				return more
			})
			if !more {
				return
			}
			if f.Counted != nil {
				f.Counted[name] = use
			}
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				yield(Flow{}, err)
				return
			}
		}
	}
}

func (f FlowFilter) matches(r *conntrack.Record, s Flow) bool {
	switch {
	case r.IsIndex():
		return false
	case f.Owner != 0 && f.Owner != r.Owner:
		return false
	case f.Pod.IsValid() && f.Pod.Unmap() != s.Pod.Addr():
		return false
	case f.Proto != 0 && f.Proto != r.Proto:
		return false
	}
	return f.All || s.State != conntrack.StateExpired
}

func newFlow(r *conntrack.Record, now conntrack.Time) Flow {
	s := Flow{
		Proto: r.Proto, Pod: r.Local, Remote: r.Remote, State: r.State(now), Kind: r.Kind(), PodOpened: r.PodOpened(),
		Slow: r.Slow(), Flags: r.Flags.Names(), Created: r.Created, Age: r.Age(now).Round(shown), Idle: r.Idle(now).Round(shown),
		RxPackets: r.RxPackets, RxBytes: r.RxBytes, TxPackets: r.TxPackets, TxBytes: r.TxBytes, Owner: r.Owner,
	}
	s.Fast = s.Slow == ""
	if r.Translated() && r.Other.Local != r.Local {
		s.Outside = r.Other.Local
	}
	if r.TranslatedByNetfilter() && r.Other.Remote != r.Remote {
		s.Backend = r.Other.Remote
	}
	return s
}

// Flow is one connection through the datapath.
type Flow struct {
	Proto     uint8          `json:"proto"`
	Pod       netip.AddrPort `json:"pod"`
	Remote    netip.AddrPort `json:"remote"`
	Outside   netip.AddrPort `json:"outside,omitzero"` // the node's end of a translated connection
	Backend   netip.AddrPort `json:"backend,omitzero"` // the far end behind netfilter's translation, such as a Service's pod
	State     string         `json:"state"`            // new, unreplied, established, closing, closed; by netfilter where the datapath sees no answer
	Kind      string         `json:"kind"`             // hostport, masquerade, netfilter, plain
	PodOpened bool           `json:"podOpened"`        // as the table has it; see ByPod
	Fast      bool           `json:"fast"`             // both directions may take the fast path
	Slow      string         `json:"slow,omitempty"`   // why not, in a word (the reasons of conntrack.Record.Slow)
	Flags     []string       `json:"flags"`
	Created   time.Duration  `json:"-"` // on CLOCK_MONOTONIC; tells a connection from a later one with the same ends
	Age       time.Duration  `json:"age"`
	Idle      time.Duration  `json:"idle"`
	RxPackets uint64         `json:"rxPackets"`
	RxBytes   uint64         `json:"rxBytes"`
	TxPackets uint64         `json:"txPackets"`
	TxBytes   uint64         `json:"txBytes"`
	Owner     uint64         `json:"owner,string"`
}

// clientPorts is where the ports begin that the kernel gives to clients, by default
// (net.ipv4.ip_local_port_range).
const clientPorts = 32768

// ByPod reports that the pod opened the connection. A datagram that the node's stack brings to a
// pod makes no entry. So the pod's answer to it looks like a connection of the pod: to a client of a
// Service, or to another node. The ports tell: an answer goes from a lower one to a client's.
func (s *Flow) ByPod() bool {
	answer := s.Proto == unix.IPPROTO_UDP && s.Kind == "plain" && s.Pod.Port() < clientPorts && s.Remote.Port() >= clientPorts
	return s.PodOpened && !answer
}

// FlowFilter narrows Flows. Zero fields match everything.
type FlowFilter struct {
	Owner uint64
	Pod   netip.Addr
	Proto uint8
	All   bool // also flows that have expired and wait to be overwritten
	// Counted gets the use of each map by its name: by all that the walk has seen, whether it matches or not.
	Counted map[string]conntrack.Use
}

// durations for display are not finer than this.
const shown = time.Millisecond
