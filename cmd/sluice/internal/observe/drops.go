// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"errors"
	"hash/maphash"
	"net/netip"
	"time"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/flowevent"
	"github.com/sluice-cni/sluice/pkg/ipproto"
)

// dropped is what the reader of drops says: a packet, or that another process reads them, or what ended it.
type dropped struct {
	e    loader.DropEvent
	busy bool
	err  error
}

// readDrops reads the records of drops until ctx is done. There is one reader of a node: while another one reads, it asks again.
func (x *observer) readDrops(ctx context.Context, to chan<- dropped) {
	send := func(d dropped) bool {
		select {
		case to <- d:
			return true
		case <-ctx.Done():
			return false
		}
	}
	for ctx.Err() == nil {
		for e, err := range x.src.Events(ctx) {
			if errors.Is(err, loader.ErrBusy) {
				if !send(dropped{busy: true}) {
					return
				}
				break
			}
			if !send(dropped{e: e, err: err}) || err != nil {
				return
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryDrops):
		}
	}
}

// seed makes the choice of a sample unforeseeable: a pod that knew it could send what is not shown.
var seed = maphash.MakeSeed()

func (x *observer) drop(ctx context.Context, d dropped) error {
	if d.busy {
		return x.countDrops(ctx)
	}
	x.sums = 0
	if d.e.Lost > 0 {
		x.lost[flowevent.LostBuffer] += d.e.Lost
		return nil
	}
	e := flowevent.Event{
		Time: d.e.Time, Event: flowevent.Dropped, Verdict: flowevent.VerdictDropped, Direction: direction(d.e.Program),
		Source: d.e.Packet.Src, Destination: d.e.Packet.Dst, Reason: d.e.Reason.Name(), Text: d.e.Reason.String(), Header: d.e.Packet.Header,
		Device: d.e.Device, Program: d.e.Program, Length: d.e.Len,
	}
	if e.Source.IsValid() {
		e.Proto = ipproto.Name(d.e.Packet.Proto)
	}
	if x.Pod != nil && d.e.Owner != 0 {
		e.Pod = x.Pod(d.e.Owner)
	}
	return x.show(e, maphash.Comparable(seed, [2]netip.AddrPort{e.Source, e.Destination}))
}

// countDrops counts what another process reads, by the counters that programs keep for all.
func (x *observer) countDrops(ctx context.Context) error {
	reasons, err := x.src.DropSums(ctx)
	if err != nil {
		return err
	}
	var sum uint64
	for _, n := range reasons {
		sum += n.Total()
	}
	if x.sums != 0 && sum > x.sums {
		x.lost[flowevent.LostBusy] += sum - x.sums
	}
	x.sums = sum
	return nil
}

// direction is that of the packets that a program sees, from the pod.
func direction(program string) string {
	switch program {
	case "sl_from_pod", "sl_to_uplink", "sl_ns_egress", "sl_mac_check", "sl_parent":
		return flowevent.Egress
	case "sl_to_pod", "sl_from_uplink", "sl_ns_ingress", "sl_xdp_denylist":
		return flowevent.Ingress
	}
	return "" // sl_edt is on both
}
