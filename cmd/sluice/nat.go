// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/loader"
)

// flushView is what flushing prints as JSON.
type flushView struct {
	Flows int `json:"flows"`
}

// newConntrackRelearn is "conntrack relearn".
func newConntrackRelearn(a *app) *cobra.Command {
	var (
		f      flowFilter
		follow bool
	)
	c := &cobra.Command{
		Use:   "relearn",
		Short: "Send connections through the slow path again",
		Long: `Send connections through the slow path again. They continue, and their address
translations stay.

The next packets of these connections pass the host's stack. The host's
firewall, the pod's policy and the routes decide about them as about new
connections. When both directions are confirmed, the fast path takes them again.
Run it when a new firewall rule must hold for existing connections at once.
Without it the rule holds after relearnSeconds of /etc/sluice/config.json.
To end translated connections use "sluice nat flush".

With --follow it runs until interrupted, and sends the connections through the
slow path after each change of an nftables rule set, also by iptables-nft and
kube-proxy. The kernel reports no change by iptables-legacy.`,
		Example: `  sluice conntrack relearn
  sluice conntrack relearn --follow
  sluice conntrack relearn --pod 10.1.0.5 --proto tcp`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if follow {
				return a.followRules(c.Context(), &f)
			}
			return a.relearn(c.Context(), &f)
		},
	}
	f.selectFlags(a, c)
	c.Flags().BoolVar(&follow, "follow", false, "do so after each change of an nftables rule set, until interrupted")
	return c
}

func newNAT(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "nat",
		Short: "List, count or end translated connections; show the masquerade ports",
		Long: `List, count or end the connections that the datapath translates: those through
published ports, and those of masqueraded pods.`,
		Example: `  sluice nat list --kind masquerade
  sluice nat stats
  sluice nat pools
  sluice nat flush --pod 10.1.0.5`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newNATList(a), newNATFlush(a), newNATStats(a), newNATPools(a))
	return c
}

func translated(v flowView) bool { return v.Outside.IsValid() }

func newNATList(a *app) *cobra.Command {
	var f flowFilter
	c := &cobra.Command{
		Use:     "list",
		Short:   "List the translated connections by both of their tuples",
		Example: `  sluice nat list --container 3f1c -o json`,
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withDatapath(c.Context(), func(dp loader.Interface) error {
				views, err := f.collectWhere(c.Context(), dp, a.ownersFor(f.pod), translated)
				if err != nil {
					return err
				}
				return a.print(views, func() error { return a.natTable(views) })
			}, func() error { return a.nothing([]flowView{}) })
		},
	}
	f.selectFlags(a, c)
	return c
}

func (a *app) natTable(views []flowView) error {
	if len(views) == 0 {
		return a.say("No translated connection matches.")
	}
	t := table{columns: []column{
		{name: "PROTO"}, {name: "KIND", drop: 2}, {name: "POD"}, {name: "OUTSIDE"}, {name: "REMOTE"}, {name: "STATE", drop: 3},
		{name: "IDLE", align: right, drop: 4}, {name: "OWNER", drop: 1},
	}}
	for _, v := range views {
		t.add(v.Proto, v.Kind, v.Pod.String(), v.Outside.String(), v.Remote.String(), v.State, ageText(v.idle), v.Owner.text(a.wide))
	}
	return a.table(&t)
}

func newNATFlush(a *app) *cobra.Command {
	var f flowFilter
	var all bool
	c := &cobra.Command{
		Use:   "flush",
		Short: "End translated connections",
		Long: `Forget translated connections: of a pod, of whatever the flags select, or --all.

The datapath treats their next packets as new. A client's packet to a published
port opens a connection to the pod that has the port now. A packet of a
masqueraded pod gets a source port again, mostly the same one. If an answer from
outside arrives first, the node refuses it, and the TCP connection ends.`,
		Example: `  sluice nat flush --pod 10.1.0.5
  sluice nat flush --all`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !all && f.empty() {
				return errors.New("which connections? --all for every one")
			}
			return a.flush(c.Context(), &f, translated, loader.Interface.FlushFlows, "removed")
		},
	}
	f.selectFlags(a, c)
	c.Flags().BoolVar(&all, "all", false, "every translated connection")
	return c
}

type flusher func(dp loader.Interface, ctx context.Context, match func(loader.Flow) bool) (int, error)

// flush lets do have the flows that f selects.
func (a *app) flush(ctx context.Context, f *flowFilter, where func(flowView) bool, do flusher, what string) error {
	return a.withDatapath(ctx, func(dp loader.Interface) error {
		match, err := f.matcher(a.ownersFor(f.pod))
		if err != nil {
			return err
		}
		n, err := do(dp, ctx, func(fl loader.Flow) bool { v, ok := match(fl); return ok && where(v) })
		if err != nil {
			return err
		}
		return a.print(flushView{n}, func() error { return a.say("%s %s.", plural(n, "connection"), what) })
	}, func() error { return a.nothing(flushView{}) })
}

// natStatView is the connections of one kind, protocol and state.
type natStatView struct {
	Kind  string `json:"kind"`
	Proto string `json:"proto"`
	State string `json:"state"`
	Flows int    `json:"flows"`
	Fast  int    `json:"fast"`
	Bytes uint64 `json:"bytes"`
}

func newNATStats(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "stats",
		Short:   "Count the translated connections by kind, protocol and state",
		Example: `  sluice nat stats`,
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withDatapath(c.Context(), func(dp loader.Interface) error {
				flows, err := (&flowFilter{sort: "idle"}).collectWhere(c.Context(), dp, a.owners(), translated)
				if err != nil {
					return err
				}
				views := natStats(flows)
				return a.print(views, func() error { return a.natStatTable(views) })
			}, func() error { return a.nothing([]natStatView{}) })
		},
	}
}

func natStats(flows []flowView) []natStatView {
	sums := map[natStatView]natStatView{}
	for _, f := range flows {
		key := natStatView{Kind: f.Kind, Proto: f.Proto, State: f.State}
		sum, ok := sums[key]
		if !ok {
			sum = key
		}
		sum.Flows++
		sum.Bytes += f.RxBytes + f.TxBytes
		if f.Fast {
			sum.Fast++
		}
		sums[key] = sum
	}
	views := append([]natStatView{}, slices.Collect(maps.Values(sums))...)
	slices.SortFunc(views, func(x, y natStatView) int {
		return cmp.Or(cmp.Compare(x.Kind, y.Kind), cmp.Compare(x.Proto, y.Proto), cmp.Compare(x.State, y.State))
	})
	return views
}

func (a *app) natStatTable(views []natStatView) error {
	if len(views) == 0 {
		return a.say("No connection is translated.")
	}
	t := table{columns: []column{
		{name: "KIND"}, {name: "PROTO"}, {name: "STATE"}, {name: "FLOWS", align: right}, {name: "FAST", align: right}, {name: "BYTES", align: right},
	}}
	for _, v := range views {
		t.add(v.Kind, v.Proto, v.State, strconv.Itoa(v.Flows), strconv.Itoa(v.Fast), bytesText(v.Bytes))
	}
	return a.table(&t)
}
