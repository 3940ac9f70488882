// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/ipproto"
)

// flowView is one connection as "conntrack list -o json" prints it.
type flowView struct {
	Proto       string         `json:"proto"`
	Pod         netip.AddrPort `json:"pod"`
	Remote      netip.AddrPort `json:"remote"`
	Outside     netip.AddrPort `json:"outside,omitzero"` // the node's end of a translated connection
	Backend     netip.AddrPort `json:"backend,omitzero"` // the far end behind netfilter's translation, such as a Service's pod
	State       string         `json:"state"`
	Kind        string         `json:"kind"`
	OpenedBy    string         `json:"opened_by"` // "pod" or "remote"
	Fast        bool           `json:"fast"`
	Slow        string         `json:"slow,omitempty"` // why it is not fast
	Flags       []string       `json:"flags"`
	AgeSeconds  float64        `json:"age_seconds"`
	IdleSeconds float64        `json:"idle_seconds"`
	RxPackets   uint64         `json:"rx_packets"` // toward the pod
	RxBytes     uint64         `json:"rx_bytes"`
	TxPackets   uint64         `json:"tx_packets"`
	TxBytes     uint64         `json:"tx_bytes"`
	Owner       ownerView      `json:"owner"`

	age, idle time.Duration
}

// flowFilter is what the flags of "conntrack list" select.
type flowFilter struct {
	ownerFilter
	pod, remote        string
	proto, kind, state string
	all                bool
	sort               string
	limit              uint
}

var (
	flowProtos = ipproto.Names()
	flowKinds  = []string{"hostport", "masquerade", "netfilter", "plain"}
	flowStates = []string{"new", "unreplied", "established", "closing", "closed"}
	flowSorts  = []string{"idle", "age", "bytes"}
)

func newConntrack(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "conntrack",
		Short: "List connections, or send them through the slow path again",
		Example: `  sluice conntrack list --kind hostport
  sluice conntrack relearn --pod 10.1.0.5`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newConntrackList(a), newConntrackRelearn(a))
	return c
}

func newConntrackList(a *app) *cobra.Command {
	var f flowFilter
	c := &cobra.Command{
		Use:   "list",
		Short: "List the connections through the datapath",
		Long: `List the connections through the datapath, most recently used first.

POD is the pod's end. REMOTE is the other end. With -w, OUTSIDE is the node's
end of a translated connection: the published port of a "hostport" one, the
source address that the remote sees of a "masquerade" one. BACKEND is the other
end behind a translation of netfilter, such as the pod behind a Service; a
"netfilter" connection is one that netfilter alone translates. A FAST
connection takes the fast path in both directions. A word there says why one
does not: "opening" (not answered yet), "confirming" (the stack has to confirm
it, at first or again), "ending" (netfilter has to see its end), "stack" (it
ends in the node's stack, or is translated there in a way that is not learned),
or "hairpin" (the pod reaches itself through the node).`,
		Example: `  sluice conntrack list --kind hostport
  sluice conntrack list --container 3f1c --proto tcp --sort bytes --limit 10
  sluice conntrack list --pod shop/cart-0
  sluice conntrack list --remote 192.0.2.7 -o json`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			views := []flowView{}
			return a.withDatapath(c.Context(), func(dp loader.Interface) error {
				views, err := f.collect(c.Context(), dp, a.ownersFor(f.pod))
				if err != nil {
					return err
				}
				return a.print(views, func() error { return a.flowTable(views) })
			}, func() error { return a.nothing(views) })
		},
	}
	f.selectFlags(a, c)
	c.Flags().BoolVar(&f.all, "all", false, "also entries that have expired")
	c.Flags().UintVar(&f.limit, "limit", 0, "print at most `n` connections")
	choiceFlag(c, &f.sort, "sort", "order by this `key`, most recent or biggest first", flowSorts, "idle")
	return c
}

// selectFlags adds the flags that choose flows.
func (f *flowFilter) selectFlags(a *app, c *cobra.Command) {
	f.flags(a, c)
	flags := c.Flags()
	flags.StringVar(&f.pod, "pod", "", "only connections of this `pod`: an address, NAMESPACE/NAME, or the beginning of a container ID")
	must(c.RegisterFlagCompletionFunc("pod", a.completeAddresses))
	flags.StringVar(&f.remote, "remote", "", "only connections with this remote `address`")
	for _, choice := range []struct {
		to          *string
		name, usage string
		values      []string
		preset      string
	}{
		{&f.proto, "proto", "only connections of this `protocol`", flowProtos, ""},
		{&f.kind, "kind", "only connections of this `kind`", flowKinds, ""},
		{&f.state, "state", "only connections in this `state`", flowStates, ""},
	} {
		choiceFlag(c, choice.to, choice.name, choice.usage, choice.values, choice.preset)
	}
}

// empty reports whether the filter selects every flow.
func (f *flowFilter) empty() bool { return *f == flowFilter{sort: f.sort} }

// matcher returns what decides whether a flow is selected, and how it is shown.
func (f *flowFilter) matcher(o owners) (func(loader.Flow) (flowView, bool), error) {
	isPod, err := f.podMatcher(o)
	if err != nil {
		return nil, err
	}
	remote, err := optionalAddr("--remote", f.remote)
	if err != nil {
		return nil, err
	}
	return func(flow loader.Flow) (flowView, bool) {
		v := flowViewOf(flow, o)
		return v, f.matches(v) && isPod(flow) && (!remote.IsValid() || flow.Remote.Addr() == remote)
	}, nil
}

// podMatcher returns what decides whether a flow is of the pod in --pod. A name that no pod has is a mistake.
func (f *flowFilter) podMatcher(o owners) (func(loader.Flow) bool, error) {
	if f.pod == "" {
		return func(loader.Flow) bool { return true }, nil
	}
	if ip, err := netip.ParseAddr(f.pod); err == nil {
		if ip.Zone() != "" {
			return nil, errZone("--pod", f.pod)
		}
		return func(flow loader.Flow) bool { return flow.Pod.Addr() == ip.Unmap() }, nil
	}
	named := make(map[uint64]bool)
	for owner := range o {
		named[owner] = o.view(owner).isCalled(f.pod)
	}
	if !slices.Contains(slices.Collect(maps.Values(named)), true) {
		return nil, fmt.Errorf("--pod %q: neither an address nor a pod of this node; \"sluice top\" shows their names", f.pod)
	}
	return func(flow loader.Flow) bool { return named[flow.Owner] }, nil
}

// collect walks the flows and returns those selected, sorted.
func (f *flowFilter) collect(ctx context.Context, dp loader.Interface, o owners) ([]flowView, error) {
	return f.collectWhere(ctx, dp, o, func(flowView) bool { return true })
}

func (f *flowFilter) collectWhere(ctx context.Context, dp loader.Interface, o owners, where func(flowView) bool) ([]flowView, error) {
	match, err := f.matcher(o)
	if err != nil {
		return nil, err
	}
	views := []flowView{}
	for flow, err := range dp.Flows(ctx, loader.FlowFilter{All: f.all}) {
		if err != nil {
			return nil, fmt.Errorf("read the conntrack map: %w", err)
		}
		if v, ok := match(flow); ok && where(v) {
			views = append(views, v)
		}
	}
	slices.SortFunc(views, f.compare)
	if f.limit > 0 && uint(len(views)) > f.limit {
		views = views[:f.limit]
	}
	return views, nil
}

func (f *flowFilter) matches(v flowView) bool {
	return f.ownerFilter.matches(v.Owner) &&
		(f.proto == "" || v.Proto == f.proto) &&
		(f.kind == "" || v.Kind == f.kind) &&
		(f.state == "" || v.State == f.state)
}

// compare orders by the chosen key, then by the tuple, so that equal flows do
// not change places from one call to the next.
func (f *flowFilter) compare(x, y flowView) int {
	var by int
	switch f.sort {
	case "age":
		by = cmp.Compare(x.age, y.age)
	case "bytes":
		by = cmp.Compare(y.RxBytes+y.TxBytes, x.RxBytes+x.TxBytes)
	default:
		by = cmp.Compare(x.idle.Truncate(time.Second), y.idle.Truncate(time.Second))
	}
	return cmp.Or(by, x.Pod.Compare(y.Pod), x.Remote.Compare(y.Remote), cmp.Compare(x.Proto, y.Proto))
}

func flowViewOf(f loader.Flow, o owners) flowView {
	v := flowView{
		Proto: ipproto.Name(f.Proto), Pod: f.Pod, Remote: f.Remote, Outside: f.Outside, Backend: f.Backend, State: f.State, Kind: f.Kind,
		OpenedBy: "remote", Fast: f.Fast, Slow: f.Slow, Flags: f.Flags, AgeSeconds: seconds(f.Age), IdleSeconds: seconds(f.Idle),
		RxPackets: f.RxPackets, RxBytes: f.RxBytes, TxPackets: f.TxPackets, TxBytes: f.TxBytes,
		Owner: o.view(f.Owner), age: f.Age, idle: f.Idle,
	}
	if f.PodOpened {
		v.OpenedBy = "pod"
	}
	if v.Flags == nil {
		v.Flags = []string{}
	}
	return v
}

func seconds(d time.Duration) float64 { return d.Truncate(time.Millisecond).Seconds() }

func (a *app) flowTable(views []flowView) error {
	if len(views) == 0 {
		return a.say("No connection matches.")
	}
	t := table{columns: []column{
		{name: "PROTO", drop: 2}, {name: "POD"}, {name: "REMOTE"}, {name: "STATE"}, {name: "KIND", drop: 3}, {name: "FAST", drop: 5},
		{name: "AGE", align: right}, {name: "IDLE", align: right}, {name: "PKTS", align: right, drop: 4}, {name: "BYTES", align: right},
		{name: "OWNER", drop: 1},
	}}
	if a.wide {
		t.columns = append(t.columns, column{name: "OUTSIDE"}, column{name: "BACKEND"}, column{name: "OPENED BY"})
	}
	for _, v := range views {
		cells := []string{
			v.Proto, v.Pod.String(), v.Remote.String(), v.State, v.Kind, cmp.Or(v.Slow, yesNo(v.Fast)), ageText(v.age), ageText(v.idle),
			countText(v.RxPackets + v.TxPackets), bytesText(v.RxBytes + v.TxBytes), v.Owner.text(a.wide),
		}
		if a.wide {
			cells = append(cells, endOrNone(v.Outside), endOrNone(v.Backend), v.OpenedBy)
		}
		t.add(cells...)
	}
	return a.table(&t)
}

func endOrNone(end netip.AddrPort) string {
	if !end.IsValid() {
		return "-"
	}
	return end.String()
}

func optionalAddr(flag, value string) (netip.Addr, error) {
	if value == "" {
		return netip.Addr{}, nil
	}
	ip, err := netip.ParseAddr(value)
	if err != nil {
		return ip, fmt.Errorf("%s %q: not an IP address", flag, value)
	}
	if ip.Zone() != "" {
		return ip, errZone(flag, value)
	}
	return ip.Unmap(), nil
}

// errZone is for an address that nothing in the maps can have: they know no zones.
func errZone(flag, value string) error {
	return fmt.Errorf("%s %q: give the address without its zone", flag, value)
}
