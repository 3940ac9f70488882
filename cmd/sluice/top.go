// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/terminal"
	"github.com/sluice-cni/sluice/loader"
)

// topView is one look as "top -o json" prints it, on a line of its own.
type topView struct {
	Time        time.Time    `json:"time"`
	Seconds     float64      `json:"seconds"` // between the two looks that the rates are of
	Attachments int          `json:"attachments"`
	Connections int          `json:"connections"` // of all attachments
	Pods        []topPodView `json:"pods"`
}

// topPodView is one attachment. Rates are per second.
type topPodView struct {
	Owner       ownerView      `json:"owner"`
	Addresses   []netip.Prefix `json:"addresses"`
	RxPackets   float64        `json:"rx_packets_per_second"` // toward the pod
	TxPackets   float64        `json:"tx_packets_per_second"`
	RxBytes     float64        `json:"rx_bytes_per_second"`
	TxBytes     float64        `json:"tx_bytes_per_second"`
	Drops       float64        `json:"drops_per_second"`
	Connections int            `json:"connections"`
	Ingress     *limitUse      `json:"ingress_limit,omitempty"`
	Egress      *limitUse      `json:"egress_limit,omitempty"`
}

// limitUse is a rate limit and how much of it is used.
type limitUse struct {
	RateBits uint64  `json:"rate_bits"` // a second
	Use      float64 `json:"use"`       // 1 is all of it; a burst is more
}

var topSorts = []string{"bytes", "packets", "connections", "limit", "drops", "name"}

// topOptions are the flags of "top".
type topOptions struct {
	ownerFilter
	interval time.Duration
	once     bool
	sort     string
	limit    uint
}

// minInterval keeps top from being the busiest process of the node.
const minInterval = 100 * time.Millisecond

func newTop(a *app) *cobra.Command {
	var o topOptions
	c := &cobra.Command{
		Use:   "top",
		Short: "Show the pods by packets, bytes and connections a second",
		Long: `Show the pods by packets and bytes a second, connections, and how much of their
rate limits they use. It refreshes until q is pressed or it is interrupted.

Pods have the names that the runtime gave them, if it did; -w shows network and
container instead. Rates are those of the interval, from the counters that the
datapath keeps. RX is toward the pod. It only reads. On a node with very many
connections they are counted less often, so that counting takes a tenth of the
time at most.

With --once it prints one table. Where the output is no terminal it prints a table
at each interval. With -o json each look is one line with an object.`,
		Example: `  sluice top
  sluice top --sort connections --limit 10
  sluice top --once --interval 10s -o json`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.interval < minInterval {
				return fmt.Errorf("--interval %s: must be %s or more", o.interval, minInterval)
			}
			return a.top(c.Context(), o)
		},
	}
	o.flags(a, c)
	c.Flags().DurationVar(&o.interval, "interval", 2*time.Second, "`time` between two looks")
	c.Flags().BoolVar(&o.once, "once", false, "print one table, of one interval, and end")
	c.Flags().UintVar(&o.limit, "limit", 0, "show at most `n` pods")
	choiceFlag(c, &o.sort, "sort", "order by this `key`, biggest first", topSorts, "bytes")
	return c
}

// topSample is what one look has found.
type topSample struct {
	at     time.Time
	pods   map[uint64]topPod
	loaded bool
}

// topPod are the counters of an attachment's devices.
type topPod struct {
	addresses []netip.Prefix
	devices   map[topDevice]loader.EndpointCounter
}

// topDevice tells the devices of an attachment apart. One that is made anew has another number.
type topDevice struct {
	netns string
	index int
}

// topper takes looks.
type topper struct {
	a       *app
	o       topOptions
	owners  owners
	pods    podNames
	limits  map[uint64][2]uint64 // ingress, egress; bytes a second
	flows   map[uint64]int
	counted time.Time
	walk    time.Duration
}

func newTopper(a *app, o topOptions) *topper {
	return &topper{a: a, o: o, pods: podNames{node: a.node}}
}

// countShare is the part of the time that counting connections may take.
const countShare = 10

func (t *topper) look(ctx context.Context) (topSample, error) {
	s := topSample{pods: map[uint64]topPod{}}
	err := t.a.withDatapath(ctx, func(dp loader.Interface) error {
		s.loaded = true
		endpoints, err := dp.Endpoints(ctx)
		if err != nil {
			return fmt.Errorf("read the endpoints: %w", err)
		}
		s.at = time.Now()
		for _, e := range endpoints {
			p, ok := s.pods[e.Owner]
			if !ok {
				p.devices = map[topDevice]loader.EndpointCounter{}
			}
			p.addresses = append(p.addresses, e.Addrs...)
			p.devices[topDevice{e.Netns, cmp.Or(e.HostIfindex, e.Ifindex)}] = e.Stats
			s.pods[e.Owner] = p
		}
		return t.count(ctx, dp)
	}, func() error { return nil })
	t.names()
	return s, err
}

// lookUnlessDone is look, whose error does not count once ctx is done: the command was interrupted.
func (t *topper) lookUnlessDone(ctx context.Context) (topSample, error) {
	s, err := t.look(ctx)
	if ctx.Err() != nil {
		err = nil
	}
	return s, err
}

// count counts the connections by owner, unless that has taken much time lately.
func (t *topper) count(ctx context.Context, dp loader.Interface) error {
	start := time.Now()
	if start.Sub(t.counted) < countShare*t.walk {
		return nil
	}
	flows := map[uint64]int{}
	for f, err := range dp.Flows(ctx, loader.FlowFilter{}) {
		if err != nil {
			return fmt.Errorf("read the conntrack map: %w", err)
		}
		flows[f.Owner]++
	}
	t.flows, t.counted, t.walk = flows, start, time.Since(start)
	return nil
}

// names reads the attachment records. One that cannot be read costs its name alone, and is said once: what is printed while the
// screen is drawn would spoil it.
func (t *topper) names() {
	records, err := t.a.node.Records()
	if err != nil && t.owners == nil {
		fmt.Fprintf(quiet{t.a, t.a.err}, "sluice: some attachment records cannot be read: %s\n", visible(err.Error()))
	}
	t.owners, t.limits = owners{}, map[uint64][2]uint64{}
	for _, r := range records {
		t.owners[r.Owner()] = attachment{ID: r.ID}
		var s limitRecord
		if ok, err := r.Section("bandwidth", &s); !ok || err != nil {
			continue
		}
		var rates [2]uint64
		for i, l := range []*rateLimit{s.Ingress, s.Egress} {
			if l != nil {
				rates[i] = l.Rate
			}
		}
		t.limits[r.Owner()] = rates
	}
	t.pods.name(t.owners)
}

// view compares two looks.
func (t *topper) view(before, now topSample) topView {
	v := topView{Time: now.at, Seconds: now.at.Sub(before.at).Seconds(), Pods: []topPodView{}}
	for owner, p := range now.pods {
		pod := topPodView{Owner: t.owners.view(owner), Addresses: append([]netip.Prefix{}, p.addresses...), Connections: t.flows[owner]}
		if !t.o.matches(pod.Owner) {
			continue
		}
		v.Attachments++
		v.Connections += pod.Connections
		for id, c := range p.devices {
			old := before.pods[owner].devices[id]
			pod.RxPackets += rate(old.RxPackets, c.RxPackets, v.Seconds)
			pod.TxPackets += rate(old.TxPackets, c.TxPackets, v.Seconds)
			pod.RxBytes += rate(old.RxBytes, c.RxBytes, v.Seconds)
			pod.TxBytes += rate(old.TxBytes, c.TxBytes, v.Seconds)
			pod.Drops += rate(old.Drops, c.Drops, v.Seconds)
		}
		limits := t.limits[owner]
		pod.Ingress, pod.Egress = newLimitUse(limits[0], pod.RxBytes), newLimitUse(limits[1], pod.TxBytes)
		v.Pods = append(v.Pods, pod)
	}
	slices.SortFunc(v.Pods, func(x, y topPodView) int { return cmp.Or(t.o.compare(x, y), compareOwners(x.Owner, y.Owner)) })
	if t.o.limit > 0 && uint(len(v.Pods)) > t.o.limit {
		v.Pods = v.Pods[:t.o.limit]
	}
	return v
}

// rate is per second. Counters that are smaller than before began anew.
func rate(before, now uint64, seconds float64) float64 {
	if now < before {
		before = 0
	}
	if seconds <= 0 {
		return 0
	}
	return float64(now-before) / seconds
}

func newLimitUse(limit uint64, bytes float64) *limitUse {
	if limit == 0 {
		return nil
	}
	return &limitUse{RateBits: limit * 8, Use: bytes / float64(limit)}
}

func compareOwners(x, y ownerView) int {
	return cmp.Or(cmp.Compare(x.Network, y.Network), cmp.Compare(x.ContainerID, y.ContainerID), cmp.Compare(x.IfName, y.IfName), cmp.Compare(x.ID, y.ID))
}

// compare orders by the chosen key, biggest first.
func (o topOptions) compare(x, y topPodView) int {
	switch o.sort {
	case "packets":
		return cmp.Compare(y.RxPackets+y.TxPackets, x.RxPackets+x.TxPackets)
	case "connections":
		return cmp.Compare(y.Connections, x.Connections)
	case "limit":
		return cmp.Compare(y.use(), x.use())
	case "drops":
		return cmp.Compare(y.Drops, x.Drops)
	case "name":
		return 0
	}
	return cmp.Compare(y.RxBytes+y.TxBytes, x.RxBytes+x.TxBytes)
}

// use is that of the limit nearest to its end.
func (p topPodView) use() (most float64) {
	for _, l := range []*limitUse{p.Ingress, p.Egress} {
		if l != nil {
			most = max(most, l.Use)
		}
	}
	return most
}

func (l *limitUse) text() string {
	if l == nil {
		return "-"
	}
	return strconv.FormatFloat(100*l.Use, 'f', 0, 64) + "%"
}

func (a *app) top(ctx context.Context, o topOptions) (err error) {
	t := newTopper(a, o)
	before, err := t.look(ctx)
	if err != nil {
		return err
	}
	if o.once && !before.loaded {
		return a.nothing(topView{Time: time.Now(), Pods: []topPodView{}})
	}
	if out := terminal.Of(a.out); out != nil && !o.once && a.output == outputTable && os.Getenv("TERM") != "dumb" {
		screen, err := terminal.OpenScreen(a.in, out)
		if err != nil {
			return err
		}
		return errors.Join(a.topScreen(ctx, t, screen, before), screen.Close())
	}
	for first := true; ; first = false {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(o.interval):
		}
		now, err := t.lookUnlessDone(ctx)
		if err != nil || ctx.Err() != nil {
			return err
		}
		if err := a.topLook(t, t.view(before, now), now.loaded, first); err != nil || o.once {
			return err
		}
		before = now
	}
}

// topLook prints one look below the others.
func (a *app) topLook(t *topper, v topView, loaded, first bool) error {
	if a.output == outputJSON {
		return json.NewEncoder(a.out).Encode(v)
	}
	if !first {
		if err := a.say(""); err != nil {
			return err
		}
	}
	return a.topTable(t, v, loaded)
}

// topScreen draws look after look in the same place.
func (a *app) topScreen(ctx context.Context, t *topper, screen *terminal.Screen, before topSample) error {
	var v *topView
	loaded, next := before.loaded, time.Now().Add(t.o.interval)
	for {
		if err := screen.Draw(a.topText(t, screen, v, loaded)); err != nil {
			return err
		}
		switch screen.Wait(ctx, next) {
		case terminal.Quit:
			return nil
		case terminal.Resized:
		case terminal.Elapsed:
			now, err := t.lookUnlessDone(ctx)
			if err != nil || ctx.Err() != nil {
				return err
			}
			view := t.view(before, now)
			v, before, loaded, next = &view, now, now.loaded, time.Now().Add(t.o.interval)
		}
	}
}

// topText is what the screen shows: as much as it has room for.
func (a *app) topText(t *topper, screen *terminal.Screen, v *topView, loaded bool) string {
	var b bytes.Buffer
	columns, rows := screen.Size()
	on := &app{out: &b, colours: a.colours, width: columns, wide: a.wide}
	if v == nil {
		_ = on.say("Sluice: measuring for %s. q ends.", t.o.interval)
		return b.String()
	}
	shown := *v
	if room := max(rows-2, 1); len(shown.Pods) > room {
		shown.Pods = shown.Pods[:room]
	}
	_ = on.topTable(t, shown, loaded)
	return b.String()
}

func (a *app) topTable(t *topper, v topView, loaded bool) error {
	if !loaded {
		return a.say(notLoaded)
	}
	head := fmt.Sprintf("%s  %s, %s, rates of %.1f s", v.Time.Format(time.TimeOnly), plural(v.Attachments, "attachment"), plural(v.Connections, "connection"), v.Seconds)
	if a.width > 0 {
		head = terminal.Cut(head, a.width)
	}
	if err := a.say("%s", a.colours.bold(head)); err != nil {
		return err
	}
	if len(v.Pods) == 0 {
		return a.say("%s", t.o.none("The datapath serves no pod."))
	}
	table := table{columns: []column{
		{name: "POD", cut: true}, {name: "ADDRESSES", drop: 3, cut: true}, {name: "RX PKT/S", align: right, drop: 2}, {name: "TX PKT/S", align: right, drop: 2},
		{name: "RX B/S", align: right}, {name: "TX B/S", align: right}, {name: "CONNS", align: right}, {name: "DROP/S", align: right, drop: 4},
		{name: "LIMIT RX", align: right, drop: 1}, {name: "LIMIT TX", align: right, drop: 1},
	}}
	for _, p := range v.Pods {
		table.add(p.Owner.podText(a.wide), addrsText(p.Addresses), rateText(p.RxPackets, 1000), rateText(p.TxPackets, 1000), rateText(p.RxBytes, 1024),
			rateText(p.TxBytes, 1024), strconv.Itoa(p.Connections), rateText(p.Drops, 1000), p.Ingress.text(), p.Egress.text())
	}
	return a.table(&table)
}

// rateText prints a rate. One that is below half of one is not 0.
func rateText(perSecond float64, base uint64) string {
	if perSecond > 0 && perSecond < 0.5 {
		return "<1"
	}
	return scaled(uint64(perSecond+0.5), base)
}
