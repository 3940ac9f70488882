// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
	podnsmap "github.com/sluice-cni/sluice/pkg/maps/podns"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// ErrBusy says that another process reads the events.
var ErrBusy = errors.New("busy")

// DropEvent is a packet that was dropped just now. With Lost set it says nothing but that so many more were dropped that have
// no record: the buffer, or the limit on them, had no room, or the reader was away for longer than programs write for it.
type DropEvent struct {
	Time    time.Time
	Reason  drops.Reason
	Owner   uint64 // of the attachment; 0: none, or not known
	Device  string // that the program is on
	Program string
	Len     int // of the frame, bytes
	Packet  drops.Packet
	Data    []byte // first bytes of the frame
	Lost    uint64
}

// What a reader asks for. The lease is short, so that a reader that was killed costs nothing for long.
const (
	eventLease  = 3 * time.Second
	eventRenew  = time.Second
	eventWindow = 100 * time.Millisecond
	eventBurst  = 100 // of each CPU in a window
)

// Events returns the packets that the datapath drops from now on, until ctx is done. Programs write them only while a process
// reads, and there is one reader of a datapath at a time: ErrBusy. An error ends the sequence; it wraps ErrNotLoaded when the
// datapath was unloaded in between.
func (d *Datapath) Events(ctx context.Context) iter.Seq2[DropEvent, error] {
	return func(yield func(DropEvent, error) bool) {
		if err := d.readEvents(ctx, func(e DropEvent) bool { return yield(e, nil) }); err != nil {
			yield(DropEvent{}, err)
		}
	}
}

func (d *Datapath) readEvents(ctx context.Context, yield func(DropEvent) bool) error {
	unlock, err := d.onlyReader()
	if err != nil {
		return err
	}
	defer unlock()
	control, err := d.eventControl()
	if err != nil {
		return err
	}
	raw, err := d.tree.Pinned(pintree.MapDropEvents)
	if err != nil {
		return err
	}
	ring, err := bpfsys.OpenRing(raw)
	if err != nil {
		return fmt.Errorf("read sl_drop_events: %w", err)
	}
	defer ring.Close()
	who, err := d.places()
	if err != nil {
		return err
	}
	defer who.close()
	l := lease{control: control, loaded: func() error { return d.stillPinned(pintree.MapDropEvents, raw) }, counters: func() (uint64, error) {
		sums, err := d.DropSums(ctx)
		var all uint64
		for _, n := range sums {
			all += n.Total()
		}
		return all, err
	}}
	if l.told, err = l.counters(); err != nil {
		return err
	}
	if l.lost, err = control.Lost(); err != nil {
		return fmt.Errorf("sl_event_state: %w", err)
	}
	defer func() { _ = control.Want(0, 0, 0) }()
	return l.follow(ctx, ring, who, yield)
}

// stillPinned says whether m is the map of that name. The pins of a datapath that was unloaded are gone, or another's.
func (d *Datapath) stillPinned(name string, m *bpfsys.Map) error {
	now, err := bpfsys.OpenMap(d.tree.Paths.MapPin(name))
	if err == nil {
		defer now.Close()
	}
	if errors.Is(err, fs.ErrNotExist) || err == nil && now.ID() != m.ID() {
		return fmt.Errorf("%w: it was unloaded meanwhile", ErrNotLoaded)
	}
	return err
}

// lease is what a reader has asked for, and what it has been told.
type lease struct {
	control  drops.EventControl
	loaded   func() error
	counters func() (uint64, error) // all drops, by the counters that programs keep for everybody
	renewed  time.Time
	lost     uint64 // as the programs say it
	told     uint64 // of what counters returns: was before us, had a record, or was told as lost
}

// ended says that programs have ceased to write: the one who yields took long, or the process was stopped.
func (l *lease) ended() bool { return time.Since(l.renewed) > eventLease }

// renew keeps programs writing. It returns how many drops more had no record. After a lease has ended that is known once the
// ring is empty: what the counters have beyond it came when no program wrote.
func (l *lease) renew(empty bool) (lost uint64, err error) {
	ended := l.ended()
	if time.Since(l.renewed) < eventRenew || ended && !empty {
		return 0, nil
	}
	if err := l.loaded(); err != nil {
		return 0, err
	}
	var missed uint64
	if ended {
		if missed, err = l.missed(); err != nil {
			return 0, err
		}
	}
	now := time.Now() // before the programs' end is reckoned, so that ours is not later
	if err := l.control.Want(eventLease, eventWindow, eventBurst); err != nil {
		return 0, fmt.Errorf("sl_event_lease: %w", err)
	}
	l.renewed = now
	n, err := l.control.Lost()
	if err != nil {
		return 0, fmt.Errorf("sl_event_state: %w", err)
	}
	if !ended { // else they are among the missed
		missed = n - l.lost
		l.told += missed
	}
	l.lost = n
	return missed, nil
}

// missed returns how many drops nothing was told of, while programs do not write.
func (l *lease) missed() (uint64, error) {
	all, err := l.counters()
	if err != nil || all <= l.told {
		return 0, err
	}
	n := all - l.told
	l.told = all
	return n, nil
}

// follow yields events until ctx is done or yield has enough. What is not read by then is told as lost.
func (l *lease) follow(ctx context.Context, ring *bpfsys.Ring, who *places, yield func(DropEvent) bool) error {
	start, empty := conntrack.Now(), false
	for ctx.Err() == nil {
		before := l.renewed
		lost, err := l.renew(empty)
		if err != nil {
			return err
		}
		if l.renewed != before {
			who.forget()
		}
		if lost > 0 && !yield(DropEvent{Time: l.renewed, Lost: lost}) {
			return nil
		}
		patience := eventRenew / 5
		if l.ended() {
			patience = 0 // no program writes
		}
		record, ok, err := ring.Next(patience)
		if err != nil {
			return fmt.Errorf("read sl_drop_events: %w", err)
		}
		if empty = !ok; empty {
			continue
		}
		e, err := drops.DecodeEvent(record)
		if err != nil {
			return err
		}
		if e.Time < start { // it was for another reader
			continue
		}
		l.told++
		if !yield(who.event(e)) {
			return nil
		}
	}
	if err := l.control.Want(0, 0, 0); err != nil {
		return fmt.Errorf("sl_event_lease: %w", err)
	}
	if lost, err := l.missed(); err != nil || lost == 0 || !yield(DropEvent{Time: time.Now(), Lost: lost}) {
		return err
	}
	return nil
}

// onlyReader makes sure that no other process reads: two readers would share the events out between them.
func (d *Datapath) onlyReader() (func(), error) {
	path := d.tree.Paths.Lock + ".events"
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%w: somebody else reads the dropped packets of this node (lock %s)", ErrBusy, path)
	}
	return func() { _ = f.Close() }, nil
}

func (d *Datapath) eventControl() (drops.EventControl, error) {
	wish, err := d.tree.Pinned(pintree.MapEventLease)
	if err != nil {
		return drops.EventControl{}, err
	}
	cpu, err := d.tree.Pinned(pintree.MapEventState)
	return drops.NewEventControl(wish, cpu), err
}

// places finds names and owners for what programs know by number.
type places struct {
	d     *Datapath
	h     *rtnl.Handle
	eps   pintree.EndpointMaps
	names map[uint32]string
	owner map[uint32]uint64
}

func (d *Datapath) places() (*places, error) {
	eps, err := d.tree.EndpointMaps()
	if err != nil {
		return nil, err
	}
	h, err := rtnl.New()
	if err != nil {
		return nil, err
	}
	return &places{d: d, h: h, eps: eps, names: map[uint32]string{}, owner: map[uint32]uint64{}}, nil
}

func (p *places) close() { p.h.Close() }

// forget lets the numbers be looked up anew: devices are renamed, and the number of one that went is another's later.
func (p *places) forget() {
	clear(p.names)
	clear(p.owner)
}

func (p *places) event(e *drops.Event) DropEvent {
	out := DropEvent{
		Time: time.Now().Add(e.Time - conntrack.Now()), Reason: e.Reason, Owner: e.Owner, Device: p.name(e.Device),
		Program: e.Program, Len: e.Len, Packet: e.Packet, Data: e.Data,
	}
	if out.Owner == 0 {
		out.Owner = p.ownerOf(e.Endpoint)
	}
	for _, a := range []netip.Addr{e.Packet.Src.Addr(), e.Packet.Dst.Addr()} {
		if out.Owner != 0 || !a.IsValid() {
			break
		}
		if v, ok, err := p.eps.Addrs.Get(a); err == nil && ok {
			out.Owner = v.Owner
		}
	}
	return out
}

// name is that of a device; one inside a pod is "in NAMESPACE".
func (p *places) name(device uint32) string {
	if name, ok := p.names[device]; ok {
		return name
	}
	name := "#" + strconv.Itoa(int(device))
	switch {
	case device&podnsmap.Key(0) != 0:
		if place, ok, err := p.d.podnsPlace(device &^ podnsmap.Key(0)); err == nil && ok {
			name = "in " + filepath.Base(place.Netns)
		}
	case device&drops.LimitKey != 0:
		if place, ok, err := p.d.limitPlace(device &^ drops.LimitKey); err == nil && ok {
			name = "in " + filepath.Base(place.Netns)
			if place.Netns == "" {
				name = p.name(uint32(place.Ifindex))
			}
		}
	default:
		if l, err := p.h.LinkByIndex(int(device)); err == nil {
			name = l.Name
		}
	}
	p.names[device] = name
	return name
}

// ownerOf returns the owner of a key of sl_ep_stats, or of a limit; 0 when that has gone.
func (p *places) ownerOf(key uint32) uint64 {
	if key == 0 {
		return 0
	}
	if owner, ok := p.owner[key]; ok {
		return owner
	}
	var owner uint64
	if key&podnsmap.Key(0) == 0 && key&drops.LimitKey != 0 {
		owner = p.d.limitOwner(key &^ drops.LimitKey)
	} else if c, ok, err := p.eps.Stats.Get(key); err == nil && ok {
		owner = c.Owner
	}
	p.owner[key] = owner
	return owner
}

// Drop is a counter: packets dropped for a reason at a place, since the maps were made or the device came.
type Drop struct {
	Reason  drops.Reason
	Device  string
	Owner   uint64 // of the attachment; 0: none, or it has gone
	Packets uint64
}

// Drops returns the counters by device and attachment, the largest first. What was counted at devices that went long ago may be
// gone; Status has the sums, which nothing takes away.
func (d *Datapath) Drops(_ context.Context) ([]Drop, error) {
	m, err := d.tree.Pinned(pintree.MapDropsByDevice)
	if err != nil {
		return nil, err
	}
	cpu, err := d.tree.Pinned(pintree.MapEventState)
	if err != nil {
		return nil, err
	}
	all, err := drops.NewDeviceDrops(m, cpu).All()
	if err != nil {
		return nil, fmt.Errorf("sl_drops_by_dev: %w", err)
	}
	who, err := d.places()
	if err != nil {
		return nil, err
	}
	defer who.close()
	out := make([]Drop, 0, len(all))
	for p, n := range all {
		out = append(out, Drop{Reason: p.Reason, Device: who.name(p.Device), Owner: who.ownerOf(p.Endpoint), Packets: n})
	}
	slices.SortFunc(out, func(a, b Drop) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Device, b.Device))
	})
	return out, nil
}

// DropSums returns the packets dropped by reason and direction since the maps were made.
func (d *Datapath) DropSums(_ context.Context) (map[drops.Reason]drops.Sum, error) {
	m, err := d.tree.Pinned(pintree.MapDropReasons)
	if err != nil {
		return nil, err
	}
	all, err := drops.NewDrops(m).All()
	if err != nil {
		return nil, fmt.Errorf("drop counters: %w", err)
	}
	return all, nil
}

// ConnectionCounts returns how often conntrack entries were made since the maps were, and what became of them. They are not known,
// which is ErrNotLoaded, where the programs are of a build without counters.
func (d *Datapath) ConnectionCounts(_ context.Context) (conntrack.Counts, error) {
	m, err := d.tree.Pinned(pintree.MapConntrackCounts)
	if err != nil {
		return conntrack.Counts{}, err
	}
	n, err := conntrack.NewCounters(m).Read()
	if err != nil {
		return n, fmt.Errorf("connection counters: %w", err)
	}
	return n, nil
}
