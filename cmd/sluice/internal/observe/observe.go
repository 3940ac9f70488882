// SPDX-License-Identifier: Apache-2.0

// Package observe tells of connections that begin, change and end, and of packets that are dropped.
//
// It walks the connection table again and again and compares, and reads the records of drops. No program runs per packet for it. It changes
// nothing, and is the only part of `sluice observe` that knows the loader. docs/dev/adr/0047-flows-from-walks.md has the reasons.
package observe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/flowevent"
	"github.com/sluice-cni/sluice/pkg/ipproto"
	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
)

// Options say what to show.
type Options struct {
	Filter Filter
	Last   uint // so many of the connections in the table now, the most recently used ones
	All    bool // each of them
	Follow bool
	Sample uint64 // one of so many connections and packets; 0 and 1: all
	Rate   uint   // most events a second; 0: no limit
	// Pod names the attachment behind an owner; nil: not known.
	Pod func(owner uint64) *flowevent.Pod
	// Backend names the end that the node's stack translates a connection to; nil, or an invalid one: not known, or none.
	Backend func(proto uint8, from, to netip.AddrPort) netip.AddrPort
}

const (
	// minPause is the least time from one walk to the next. A closed TCP connection stays in the table for 10 s, others for 30 s and more.
	minPause = time.Second
	// share is how many times as long as a walk the pause after it is: the walks take at most a fiftieth of a core.
	share = 50
	// maxPause is so short that a closed connection is still seen in most tables.
	maxPause = time.Minute
	// lostEvery is how often a line says what was left out by the rate, by sampling or because another process reads.
	lostEvery = 5 * time.Second
	// retryDrops is how often a busy observer asks for the records of drops.
	retryDrops = 5 * time.Second
	// backlog is how many drops wait during a walk. The kernel's buffer has the others.
	backlog = 256
)

// observer is one run.
type observer struct {
	Options
	src   loader.Interface
	emit  func(flowevent.Event) error
	table table
	limit *rate.Limiter
	lost  map[string]uint64
	told  time.Time // when the lost were told
	sums  uint64    // drops counted so far, while another process reads them
	// backends are those of the connections that were shown. When one ends, the stack may have forgotten it.
	backends map[uint64]netip.AddrPort
}

// Run shows what is in the table now as far as o asks for it, then follows until ctx is done, if o says so. Events are in the order of their
// time only within a walk. An error of emit ends it, and is returned.
func Run(ctx context.Context, src loader.Interface, o Options, emit func(flowevent.Event) error) error {
	x := &observer{Options: o, src: src, emit: emit, table: table{conns: map[key]conn{}}, backends: map[uint64]netip.AddrPort{}, limit: newLimit(o.Rate), lost: map[string]uint64{}, told: time.Now()}
	took, err := x.first(ctx)
	if err != nil || !o.Follow {
		return errors.Join(err, x.tellLost(true))
	}
	return x.follow(ctx, took)
}

// first walks the table for the first time.
func (x *observer) first(ctx context.Context) (took time.Duration, err error) {
	start := time.Now()
	type shown struct {
		flowevent.Event
		id uint64
	}
	var found []shown
	now := conntrack.Now()
	err = x.walk(ctx, func(f *loader.Flow, c change) {
		if f.State == conntrack.StateExpired || !x.All && x.Last == 0 {
			return
		}
		e := x.connection(f, flowevent.Existing)
		e.Time = start.Add(-f.Idle)
		if x.Filter.Matches(&e) {
			found = append(found, shown{e, c.id})
		}
	})
	took = conntrack.Now() - now
	if err != nil {
		return took, err
	}
	slices.SortStableFunc(found, func(a, b shown) int { return a.Time.Compare(b.Time) })
	if n := len(found); !x.All && uint(n) > x.Last {
		found = found[n-int(x.Last):]
	}
	// The clock of the table has ticks. Hubble UI takes flows of one node with one time for the same flow.
	for i := 1; i < len(found); i++ {
		if !found[i].Time.After(found[i-1].Time) {
			found[i].Time = found[i-1].Time.Add(time.Nanosecond)
		}
	}
	for _, e := range found { // what was asked for by its number is neither sampled nor limited
		if err := x.emit(x.withBackend(e.Event, e.id)); err != nil {
			return took, err
		}
	}
	return took, nil
}

// pauseAfter is how long the table is left alone after a walk.
func pauseAfter(took time.Duration) time.Duration {
	return min(max(minPause, share*took), maxPause)
}

func (x *observer) follow(ctx context.Context, took time.Duration) error {
	ctx, stop := context.WithCancel(ctx)
	packets := make(chan dropped, backlog)
	done := make(chan struct{})
	go func() { defer close(done); x.readDrops(ctx, packets) }()
	defer func() { stop(); <-done }()
	timer := time.NewTimer(pauseAfter(took))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return x.tellLost(true)
		case d := <-packets:
			if d.err != nil {
				return d.err
			}
			if err := x.drop(ctx, d); err != nil {
				return err
			}
		case <-timer.C:
			start := time.Now()
			if err := x.again(ctx); err != nil {
				if ctx.Err() != nil {
					return x.tellLost(true)
				}
				return err
			}
			timer.Reset(pauseAfter(time.Since(start)))
		}
		if err := x.tellLost(false); err != nil {
			return err
		}
	}
}

// again walks the table and tells what is not as it was.
func (x *observer) again(ctx context.Context) error {
	var failed error
	show := func(e flowevent.Event, id uint64) {
		if failed == nil {
			failed = x.show(e, id)
		}
	}
	err := x.walk(ctx, func(f *loader.Flow, c change) {
		for _, what := range c.events {
			e := x.connection(f, what)
			e.Time = time.Now().Add(-f.Age)
			switch what {
			case flowevent.Changed:
				e.Time = time.Now()
			case flowevent.Ended:
				e.Reason, e.Time = c.end, time.Now().Add(-f.Idle)
			}
			show(e, c.id)
		}
	})
	return errors.Join(err, failed)
}

// walk goes over the table once, and calls f for each connection, and for those that have gone.
func (x *observer) walk(ctx context.Context, f func(*loader.Flow, change)) error {
	x.table.walk++
	for flow, err := range x.src.Flows(ctx, loader.FlowFilter{All: true}) {
		if err != nil {
			return fmt.Errorf("read the connection table: %w", err)
		}
		old, c := x.table.see(&flow)
		if old != nil { // the former connection of these ends
			f(old, change{events: []string{flowevent.Ended}, end: flowevent.EndRemoved, id: c.id})
		}
		f(&flow, c)
	}
	x.table.finish(func(gone *loader.Flow, id uint64) {
		f(gone, change{events: []string{flowevent.Ended}, end: flowevent.EndRemoved, id: id})
	})
	return nil
}

// connection is an event about f.
func (x *observer) connection(f *loader.Flow, what string) flowevent.Event {
	e := flowevent.Event{
		Event: what, Verdict: flowevent.VerdictForwarded, Direction: flowevent.Ingress, Proto: ipproto.Name(f.Proto),
		Source: f.Remote, Destination: f.Pod, Outside: f.Outside, State: f.State, Kind: f.Kind, Fast: f.Fast,
		RxPackets: f.RxPackets, RxBytes: f.RxBytes, TxPackets: f.TxPackets, TxBytes: f.TxBytes,
	}
	if f.ByPod() {
		e.Direction, e.Source, e.Destination, e.Backend = flowevent.Egress, f.Pod, f.Remote, f.Backend
	}
	if x.Pod != nil && f.Owner != 0 {
		e.Pod = x.Pod(f.Owner)
	}
	return e
}

// show emits an event that the filter, the sample and the rate let pass. id is the same for all events of a connection.
func (x *observer) show(e flowevent.Event, id uint64) error {
	if e.Event == flowevent.Ended {
		defer delete(x.backends, id) // also if nothing shows the end
	}
	switch {
	case !x.Filter.Matches(&e):
		return nil
	case x.Sample > 1 && id%x.Sample != 0:
		x.lost[flowevent.LostSample]++
		return nil
	case !x.limit.Allow():
		x.lost[flowevent.LostRate]++
		return nil
	}
	return x.emit(x.withBackend(e, id))
}

// withBackend adds the backend of a connection that a pod opened.
func (x *observer) withBackend(e flowevent.Event, id uint64) flowevent.Event {
	if e.Backend.IsValid() { // the datapath has learned it
		x.backends[id] = e.Backend
		return e
	}
	if x.Backend == nil || e.Event == flowevent.Dropped || e.Direction != flowevent.Egress || e.Outside.IsValid() {
		e.Backend = x.backends[id]
		return e
	}
	known, ok := x.backends[id]
	if !ok && e.Event != flowevent.Ended {
		if known = x.Backend(e.Number(), e.Source, e.Destination); known.IsValid() {
			x.backends[id] = known
		}
	}
	e.Backend = known
	return e
}

// tellLost emits a line for each cause, at most each few seconds unless now is set.
func (x *observer) tellLost(now bool) error {
	if len(x.lost) == 0 || !now && time.Since(x.told) < lostEvery {
		return nil
	}
	x.told = time.Now()
	for _, why := range []string{flowevent.LostBuffer, flowevent.LostBusy, flowevent.LostRate, flowevent.LostSample} {
		n := x.lost[why]
		if n == 0 {
			continue
		}
		if err := x.emit(flowevent.Event{Time: x.told, Event: flowevent.Lost, Reason: why, Lost: n}); err != nil {
			return err
		}
	}
	clear(x.lost)
	return nil
}
