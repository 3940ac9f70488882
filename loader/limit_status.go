// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
	"github.com/sluice-cni/sluice/pkg/maps/edt"
)

// RateLimitStatus is a limit with its counters since it was made.
type RateLimitStatus struct {
	Owner   uint64        `json:"owner,string"`
	Egress  bool          `json:"egress"`
	Police  bool          `json:"police"` // at the host veth, beside the limit on the pod's own device
	Rate    uint64        `json:"rate"`   // bytes a second
	Burst   uint64        `json:"burst"`  // bytes
	Horizon time.Duration `json:"horizon"`

	Bytes   uint64        `json:"bytes"` // of frames, sent or waiting
	Packets uint64        `json:"packets"`
	Drops   uint64        `json:"drops"`
	Marks   uint64        `json:"marks"`   // packets that waited long enough for an ECN mark
	Wait    time.Duration `json:"wait"`    // mean over all packets
	Backlog time.Duration `json:"backlog"` // until the queue is empty
}

// RateLimits returns every limit, in no order.
func (d *Datapath) RateLimits(_ context.Context) ([]RateLimitStatus, error) {
	m, err := d.limitMaps()
	if err != nil {
		return nil, err
	}
	all, err := m.limits.All()
	if err != nil {
		return nil, fmt.Errorf("limits: %w", err)
	}
	now := uint64(conntrack.Now())
	out := make([]RateLimitStatus, 0, len(all))
	for _, l := range all {
		s := RateLimitStatus{
			Owner: l.Owner, Egress: l.Flags&edt.FlagEgress != 0, Police: l.Flags&edt.FlagPolice != 0, Rate: l.Rate,
			Burst: uint64(float64(l.Burst)*float64(l.Rate)/1e9 + 0.5), Horizon: time.Duration(l.Horizon),
			Bytes: l.Bytes, Packets: l.Packets, Drops: l.Drops, Marks: l.Marks,
		}
		if l.Packets > 0 {
			s.Wait = time.Duration(l.QueuedNs / l.Packets)
		}
		if l.Clock > now && !s.Police { // a policer has no queue: its clock is its debt
			s.Backlog = time.Duration(l.Clock - now)
		}
		out = append(out, s)
	}
	return out, nil
}
