// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
)

// RelearnFlows makes the connections that match learn their way anew, by the stack and under the policy there is now. They go on:
// translations stay. It returns how many there were.
func (d *Datapath) RelearnFlows(_ context.Context, match func(Flow) bool) (int, error) {
	return d.flushFlows(func(m conntrack.Map, f func(*conntrack.Record) bool, _ []conntrack.Map) (int, error) {
		return m.Unlearn(f)
	}, match)
}

// FlushFlows removes the connections that match, and their translations. What they go on sending opens a connection where that
// is allowed, perhaps by another port; TCP ends where it is not. It returns how many there were.
func (d *Datapath) FlushFlows(_ context.Context, match func(Flow) bool) (int, error) {
	return d.flushFlows(func(m conntrack.Map, f func(*conntrack.Record) bool, all []conntrack.Map) (int, error) {
		return m.Delete(f, all...)
	}, match)
}

// forgetSources ends masquerading by addresses that the node has no more, as the kernel does: no answer comes for them, and a
// pod that goes on sending would keep such a connection alive for ever. Its next packet gets an address that is there. To be
// called when the uplinks have their new ones.
func (d *Datapath) forgetSources(gone []netip.Addr) error {
	if len(gone) == 0 {
		return nil
	}
	_, err := d.flushRecords(func(m conntrack.Map, all []conntrack.Map) (int, error) {
		return m.Delete(func(r *conntrack.Record) bool { return r.Masqueraded() && slices.Contains(gone, r.Other.Local.Addr()) }, all...)
	})
	return err
}

func (d *Datapath) flushFlows(do func(conntrack.Map, func(*conntrack.Record) bool, []conntrack.Map) (int, error), match func(Flow) bool) (int, error) {
	now, nf := conntrack.Now(), newNetfilter()
	return d.flushRecords(func(m conntrack.Map, all []conntrack.Map) (int, error) {
		return do(m, func(r *conntrack.Record) bool {
			s := newFlow(r, now)
			nf.complete(&s)
			return match(s)
		}, all)
	})
}

// flushRecords calls do for each of the tables of flows, with all of them.
func (d *Datapath) flushRecords(do func(m conntrack.Map, all []conntrack.Map) (int, error)) (int, error) {
	var all []conntrack.Map
	for _, name := range []string{pintree.MapConntrack, pintree.MapConntrackUnassured} {
		m, err := d.tree.Pinned(name)
		if err != nil {
			return 0, err
		}
		all = append(all, conntrack.New(m))
	}
	sum := 0
	for _, m := range all {
		n, err := do(m, all)
		sum += n
		if err != nil {
			return sum, fmt.Errorf("flows: %w", err)
		}
	}
	return sum, nil
}
