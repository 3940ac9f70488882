// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/orphans"
)

// leftoverView is a thing that may be swept.
type leftoverView struct {
	Kind  string `json:"kind"`
	What  string `json:"what"`
	Why   string `json:"why"`             // what was looked at
	Sweep bool   `json:"sweep"`           // false: in doubt, left alone
	Stays bool   `json:"stays,omitempty"` // it was to be removed, and is there still
}

// sweepView is what "sweep -o json" prints.
type sweepView struct {
	Looked    string         `json:"looked_at"`
	Leftovers []leftoverView `json:"leftovers"`
	Removed   bool           `json:"removed"`
}

func newSweep(a *app) *cobra.Command {
	var yes, force bool
	c := &cobra.Command{
		Use:   "sweep",
		Short: "Remove what pods that are gone have left",
		Long: `Remove what pods that are gone have left: chains, rules and sets of iptables
and nftables, intermediate devices of bandwidth limits, entries of the
datapath's maps, attachment records. It does not matter whether Sluice or the
reference plugins made them.

Without --yes it only prints what it would remove. It removes what it can prove
to be a leftover: the network namespace of the attachment is gone, or nobody
knows the attachment and its addresses are in no network namespace of the node.
What is in doubt is named and stays, and so do addresses that host-local holds
and whatever is not an attachment's.`,
		Example: `  sluice sweep
  sluice sweep --yes`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			report, err := a.care.Leftovers(c.Context())
			if err != nil && (yes && !force || len(report.Items) == 0) {
				return fmt.Errorf("what is alive cannot be told: %w", err)
			}
			if yes && !force && a.care.Elsewhere() {
				return errors.New("this process has other mounts than the node's: it does not see where pods are, and would take them for gone; run it on the node, or say --force")
			}
			v := newSweepView(report)
			if yes {
				err = errors.Join(err, a.sweep(c.Context(), report.Items, &v))
			}
			return errors.Join(a.print(v, func() error { return a.swept(v) }), err)
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "remove it")
	c.Flags().BoolVar(&force, "force", false, "also when this process may not see everything that is alive")
	return c
}

// sweep removes items, and looks again: one that came to life meanwhile stays, and after an error only some have gone.
func (a *app) sweep(ctx context.Context, items []orphans.Item, v *sweepView) error {
	err := a.care.Sweep(ctx, items)
	v.Removed = true
	after, lookErr := a.care.Leftovers(ctx)
	for i, l := range v.Leftovers {
		v.Leftovers[i].Stays = l.Sweep && slices.ContainsFunc(after.Items, func(o orphans.Item) bool { return string(o.Kind) == l.Kind && o.What == l.What })
	}
	if err == nil && lookErr != nil {
		err = fmt.Errorf("what was removed cannot be told: %w", lookErr)
	}
	return err
}

func newSweepView(r orphans.Report) sweepView {
	v := sweepView{Looked: r.Known, Leftovers: []leftoverView{}}
	for _, i := range r.Items {
		v.Leftovers = append(v.Leftovers, leftoverView{Kind: string(i.Kind), What: i.What, Why: i.Why, Sweep: i.Sweep})
	}
	return v
}

func (a *app) swept(v sweepView) error {
	verb, n := "would remove", 0
	if v.Removed {
		verb = "removed"
	}
	for _, l := range v.Leftovers {
		word, paint := verb, a.colours.yellow
		switch {
		case l.Stays:
			word, paint = "stays", a.colours.red
		case !l.Sweep:
			word, paint = "in doubt", a.colours.plain
		default:
			n++
		}
		if err := a.say("%s  %s (%s)", paint(fmt.Sprintf("%-12s", word)), l.What, l.Why); err != nil {
			return err
		}
	}
	if err := a.say("Looked at %s.", v.Looked); err != nil {
		return err
	}
	switch {
	case n == 0 && !slices.ContainsFunc(v.Leftovers, func(l leftoverView) bool { return l.Stays }):
		return a.say("Nothing to remove.")
	case v.Removed:
		return a.say("Removed %s.", plural(n, "leftover"))
	}
	return a.say("%s to remove: sluice sweep --yes does it.", plural(n, "leftover"))
}
