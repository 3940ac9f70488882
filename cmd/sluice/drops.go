// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
)

// dropCountView is one reason as "drops -o json" prints it.
type dropCountView struct {
	Reason  string          `json:"reason"`
	Text    string          `json:"text"`
	Advice  string          `json:"advice"`
	Packets uint64          `json:"packets"`
	Places  []dropPlaceView `json:"places"` // what is still known of where; devices that went long ago are not
}

type dropPlaceView struct {
	Device  string     `json:"device"`
	Owner   *ownerView `json:"owner"` // null: not a pod's, or the pod has gone
	Packets uint64     `json:"packets"`
}

func newDrops(a *app) *cobra.Command {
	var all bool
	var reason string
	var watch time.Duration
	c := &cobra.Command{
		Use:   "drops",
		Short: "Count dropped packets by reason, device and pod, and say what to do",
		Long: `Count the packets that the datapath dropped, by reason, device and pod, and say
what to do about each. Counters start when the datapath is loaded. --all adds
reasons without packets; --watch prints the list anew at an interval.`,
		Example: `  sluice drops
  sluice drops --reason ports-exhausted
  sluice drops --watch 2s`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("watch") && watch <= 0 {
				return fmt.Errorf("--watch %s: must be more than 0", watch)
			}
			for {
				err := a.withDatapath(c.Context(), func(dp loader.Interface) error { return a.drops(c.Context(), dp, reason, all) },
					func() error { return a.nothing([]dropCountView{}) })
				if err != nil || watch <= 0 {
					return err
				}
				select {
				case <-c.Context().Done():
					return nil
				case <-time.After(watch):
				}
			}
		},
	}
	c.Flags().BoolVar(&all, "all", false, "also reasons for which nothing was dropped")
	c.Flags().DurationVar(&watch, "watch", 0, "print anew at this `interval`, until interrupted")
	choiceFlag(c, &reason, "reason", "only this `reason`", reasonNames(), "")
	return c
}

func (a *app) drops(ctx context.Context, dp loader.Interface, reason string, all bool) error {
	views, err := dropViews(ctx, dp, a.owners, reason, all)
	if err != nil {
		return err
	}
	return a.print(views, func() error { return a.dropTables(views, reason) })
}

// dropViews counts drops for a reason, "" for each. It asks for the owners after it has counted: an owner may be new.
func dropViews(ctx context.Context, dp loader.Interface, now func() owners, reason string, all bool) ([]dropCountView, error) {
	sums, err := dp.DropSums(ctx)
	if err != nil {
		return nil, err
	}
	places, err := dp.Drops(ctx)
	if err != nil {
		return nil, err
	}
	owners, views := now(), []dropCountView{}
	for r := drops.Reason(1); r < drops.Max; r++ {
		v := dropCountView{Reason: r.Name(), Text: r.String(), Advice: r.Advice(), Packets: sums[r].Total(), Places: []dropPlaceView{}}
		if (reason != "" && reason != v.Reason) || (v.Packets == 0 && !all) {
			continue
		}
		for _, p := range places {
			if p.Reason != r {
				continue
			}
			place := dropPlaceView{Device: p.Device, Packets: p.Packets}
			if p.Owner != 0 {
				owner := owners.view(p.Owner)
				place.Owner = &owner
			}
			v.Places = append(v.Places, place)
		}
		views = append(views, v)
	}
	return views, nil
}

func (a *app) dropTables(views []dropCountView, reason string) error {
	if len(views) == 0 && reason != "" {
		return a.say("No packet was dropped for this reason.")
	}
	if len(views) == 0 {
		return a.say("No packet was dropped.")
	}
	for i, v := range views {
		if i > 0 {
			if err := a.say(""); err != nil {
				return err
			}
		}
		if err := a.say("%s", a.colours.bold(fmt.Sprintf("%s: %d, %s", v.Reason, v.Packets, v.Text))); err != nil {
			return err
		}
		if err := a.field("", v.Advice, a.colours.plain); err != nil {
			return err
		}
		if len(v.Places) == 0 {
			continue
		}
		t := table{indent: "  ", columns: []column{{name: "DEVICE", cut: true}, {name: "POD", cut: true}, {name: "PACKETS", align: right}}}
		for _, p := range v.Places {
			owner := "-"
			if p.Owner != nil {
				owner = p.Owner.text(a.wide)
			}
			t.add(p.Device, owner, strconv.FormatUint(p.Packets, 10))
		}
		if err := a.table(&t); err != nil {
			return err
		}
	}
	return nil
}
