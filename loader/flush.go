// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"fmt"

	"github.com/sluice-cni/sluice/pkg/maps/flow"
	"github.com/sluice-cni/sluice/pkg/maps/metrics"
)

// Relearn makes the connections that match learn their way anew, by the stack and under the policy there is now. They go on:
// translations stay. It returns how many there were.
func (d *Datapath) Relearn(_ context.Context, match func(Flow) bool) (int, error) {
	return d.flushFlows(func(m flow.Map, f func(*flow.Record) bool, _ []flow.Map) (int, error) { return m.Unlearn(f) }, match)
}

// FlushFlows removes the connections that match, and their translations. What they go on sending opens a connection where that
// is allowed, perhaps by another port; TCP ends where it is not. It returns how many there were.
func (d *Datapath) FlushFlows(_ context.Context, match func(Flow) bool) (int, error) {
	return d.flushFlows(func(m flow.Map, f func(*flow.Record) bool, all []flow.Map) (int, error) { return m.Delete(f, all...) }, match)
}

func (d *Datapath) flushFlows(do func(flow.Map, func(*flow.Record) bool, []flow.Map) (int, error), match func(Flow) bool) (int, error) {
	var all []flow.Map
	for _, name := range []string{mapFlows, mapFlowsNew} {
		m, err := d.pinned(name)
		if err != nil {
			return 0, err
		}
		all = append(all, flow.New(m))
	}
	now, sum := flow.Now(), 0
	for _, m := range all {
		n, err := do(m, func(r *flow.Record) bool { return match(newFlow(r, now)) }, all)
		sum += n
		if err != nil {
			return sum, fmt.Errorf("flows: %w", err)
		}
	}
	return sum, nil
}

// DropSums returns the packets dropped by reason since the maps were made.
func (d *Datapath) DropSums(_ context.Context) (map[metrics.Reason]uint64, error) {
	m, err := d.pinned(mapDrops)
	if err != nil {
		return nil, err
	}
	all, err := metrics.NewDrops(m).All()
	if err != nil {
		return nil, fmt.Errorf("drop counters: %w", err)
	}
	return all, nil
}
