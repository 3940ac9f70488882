// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
)

// limitView is one limited direction as "bandwidth -o json" prints it.
type limitView struct {
	Owner        ownerView     `json:"owner"`
	Direction    string        `json:"direction"` // ingress (toward the pod) or egress
	Backend      string        `json:"backend"`   // edt or tbf
	Reason       string        `json:"reason"`
	RateBits     uint64        `json:"rate_bits"` // a second
	BurstBits    uint64        `json:"burst_bits"`
	BurstDerived bool          `json:"burst_derived"`
	Device       string        `json:"device"` // that has the qdisc
	InPod        bool          `json:"in_pod"`
	Bytes        uint64        `json:"bytes"` // of frames
	Packets      uint64        `json:"packets"`
	Drops        uint64        `json:"drops"`
	Policed      bool          `json:"policed"`    // the host veth drops what bypasses the queue in the pod
	Bypassed     uint64        `json:"bypassed"`   // packets that it dropped, beside drops
	Backlog      time.Duration `json:"backlog_ns"` // until the queue is empty
	Error        string        `json:"error,omitempty"`
}

func newBandwidth(a *app) *cobra.Command {
	var filter ownerFilter
	c := &cobra.Command{
		Use:   "bandwidth",
		Short: "List the pods' rate limits with what they have let through and dropped",
		Long: `List the pods' rate limits with what they have let through and dropped.

Ingress is toward the pod. A burst with a star was not configured, or was the
largest number of its type, and has been derived from the rate. QUEUE is how
long a packet that came now would wait. DROPS has those of the pod's queue and
those of the policer on the host veth, which drops what bypasses the queue.`,
		Example: `  sluice bandwidth
  sluice bandwidth --container 3f1c -o json`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var shapes []loader.RateLimitStatus
			err := a.withDatapath(c.Context(), func(dp loader.Interface) (err error) {
				shapes, err = dp.RateLimits(c.Context())
				return err
			}, func() error { return nil }) // token buckets need none
			if err != nil {
				return fmt.Errorf("read the limits: %w", err)
			}
			records, err := a.node.Records()
			if err != nil {
				fmt.Fprintf(quiet{a, a.err}, "sluice: some attachment records cannot be read: %v\n", err)
			}
			views := limitViews(records, ownersOf(records), shapes, filter)
			return a.print(views, func() error { return a.limitTable(views, filter) })
		},
	}
	filter.flags(a, c)
	return c
}

func limitViews(records []*attachments.Record, o owners, shapes []loader.RateLimitStatus, filter ownerFilter) []limitView {
	views := []limitView{}
	for _, rec := range records {
		for _, st := range limitsOf(rec, shapes) {
			if v := newLimitView(o.view(rec.Owner()), st); filter.matches(v.Owner) {
				views = append(views, v)
			}
		}
	}
	slices.SortStableFunc(views, func(x, y limitView) int {
		return cmp.Or(cmp.Compare(x.Owner.Network, y.Owner.Network), cmp.Compare(x.Owner.ContainerID, y.Owner.ContainerID),
			cmp.Compare(x.Owner.IfName, y.Owner.IfName))
	})
	return views
}

func newLimitView(owner ownerView, st limitStatus) limitView {
	v := limitView{
		Owner: owner, Direction: "ingress", Backend: st.backend, Reason: st.reason,
		RateBits: st.limit.Rate * 8, BurstBits: uint64(st.limit.Burst) * 8, BurstDerived: st.limit.Derived,
		Device: st.device, InPod: st.inPod, Bytes: st.bytes, Packets: st.packets, Drops: st.drops, Backlog: st.backlog,
		Policed: st.policed, Bypassed: st.bypassed,
	}
	if st.egress {
		v.Direction = "egress"
	}
	if st.err != nil {
		v.Error = st.err.Error()
	}
	return v
}

func (a *app) limitTable(views []limitView, filter ownerFilter) error {
	if len(views) == 0 {
		return a.say("%s", filter.none("No pod is limited."))
	}
	t := table{columns: []column{
		{name: "OWNER", cut: true}, {name: "DIRECTION"}, {name: "BACKEND"}, {name: "RATE", align: right}, {name: "BURST", align: right, drop: 2},
		{name: "DEVICE", drop: 1}, {name: "BYTES", align: right}, {name: "DROPS", align: right}, {name: "QUEUE", align: right},
	}}
	if a.wide {
		t.columns = append(t.columns, column{name: "REASON", cut: true})
	}
	for _, v := range views {
		device, burst := v.Device, countText(v.BurstBits)+"bit"
		if v.InPod {
			device = "pod:" + device
		}
		if v.BurstDerived {
			burst += "*"
		}
		cells := []string{
			v.Owner.text(a.wide), v.Direction, v.Backend, countText(v.RateBits) + "bit/s", burst, device,
			bytesText(v.Bytes), countText(v.Drops + v.Bypassed), ageText(v.Backlog),
		}
		if v.Error != "" {
			cells[6], cells[7], cells[8] = "?", "?", "?"
		}
		if a.wide {
			cells = append(cells, cmp.Or(v.Error, v.Reason))
		}
		t.add(cells...)
	}
	return a.table(&t)
}
