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

// leftoverView is one thing that an attachment left behind.
type leftoverView struct {
	Kind      string `json:"kind"`
	What      string `json:"what"`
	Why       string `json:"why"`             // what was looked at
	Removable bool   `json:"removable"`       // false: in doubt, left alone
	Stays     bool   `json:"stays,omitempty"` // it was to be removed, and is there still
}

// cleanupView is what "cleanup -o json" prints.
type cleanupView struct {
	Looked    string         `json:"looked_at"`
	Leftovers []leftoverView `json:"leftovers"`
	Removed   bool           `json:"removed"`
}

func newCleanup(a *app) *cobra.Command {
	var yes, force bool
	c := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove what deleted pods left behind",
		Long: `Remove what deleted pods left behind: chains, rules and sets of iptables and
nftables, IFB devices of bandwidth limits, map entries of the datapath, and
attachment records. It handles leftovers of Sluice and of the upstream plugins.

Without --yes it only prints what it would remove. A thing is a leftover in two
cases. Either the attachment's network namespace is gone. Or no runtime and no
record knows the attachment, and no network namespace of the node has its
addresses. Doubtful items are listed and kept. Addresses that host-local holds
are kept too.`,
		Example: `  sluice cleanup
  sluice cleanup --yes`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			report, err := a.ops.Leftovers(c.Context())
			if err != nil && (yes && !force || len(report.Items) == 0) {
				return fmt.Errorf("cannot tell which attachments are alive: %w", err)
			}
			if yes && !force && a.ops.InForeignMounts() {
				return errors.New("this process has other mounts than the node, so it cannot see the pods' namespaces and would take living pods for deleted ones; run it on the node, or use --force")
			}
			v := newCleanupView(report)
			if yes {
				err = errors.Join(err, a.cleanup(c.Context(), report.Items, &v))
			}
			return errors.Join(a.print(v, func() error { return a.cleanupScreen(v) }), err)
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "remove it")
	c.Flags().BoolVar(&force, "force", false, "remove even if this process may not see every living attachment")
	return c
}

// cleanup removes items and then looks again, because an attachment may have come back in between, and because after an error
// only some items are gone.
func (a *app) cleanup(ctx context.Context, items []orphans.Item, v *cleanupView) error {
	err := a.ops.Cleanup(ctx, items)
	v.Removed = true
	after, lookErr := a.ops.Leftovers(ctx)
	for i, l := range v.Leftovers {
		v.Leftovers[i].Stays = l.Removable && slices.ContainsFunc(after.Items, func(o orphans.Item) bool { return string(o.Kind) == l.Kind && o.What == l.What })
	}
	if err == nil && lookErr != nil {
		err = fmt.Errorf("cannot tell what was removed: %w", lookErr)
	}
	return err
}

func newCleanupView(r orphans.Report) cleanupView {
	v := cleanupView{Looked: r.Known, Leftovers: []leftoverView{}}
	for _, i := range r.Items {
		v.Leftovers = append(v.Leftovers, leftoverView{Kind: string(i.Kind), What: i.What, Why: i.Why, Removable: i.Removable})
	}
	return v
}

func (a *app) cleanupScreen(v cleanupView) error {
	verb, n := "would remove", 0
	if v.Removed {
		verb = "removed"
	}
	for _, l := range v.Leftovers {
		word, paint := verb, a.colours.yellow
		switch {
		case l.Stays:
			word, paint = "stays", a.colours.red
		case !l.Removable:
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
	return a.say("%s to remove: sluice cleanup --yes does it.", plural(n, "leftover"))
}
