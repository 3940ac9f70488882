// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/leftover"
)

// leftoverView is a thing that may be swept.
type leftoverView struct {
	Kind  string `json:"kind"`
	What  string `json:"what"`
	Why   string `json:"why"`   // what was looked at
	Sweep bool   `json:"sweep"` // false: in doubt, left alone
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
				if err := a.care.Sweep(c.Context(), report.Items); err != nil {
					return err
				}
				v.Removed = true
			}
			return errors.Join(a.print(v, func() error { return a.swept(v) }), err)
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "remove it")
	c.Flags().BoolVar(&force, "force", false, "also when this process may not see everything that is alive")
	return c
}

func newSweepView(r leftover.Report) sweepView {
	v := sweepView{Looked: r.Known, Leftovers: []leftoverView{}}
	for _, i := range r.Items {
		v.Leftovers = append(v.Leftovers, leftoverView{string(i.Kind), i.What, i.Why, i.Sweep})
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
		if !l.Sweep {
			word, paint = "in doubt", a.colours.plain
		} else {
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
	case n == 0:
		return a.say("Nothing to remove.")
	case v.Removed:
		return a.say("Removed %s.", plural(n, "leftover"))
	}
	return a.say("%s to remove: sluice sweep --yes does it.", plural(n, "leftover"))
}
