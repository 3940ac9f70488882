// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/loader/loadertest"
	"github.com/sluice-cni/sluice/pkg/flowevent"
	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
)

// walks is a source with a table for each walk. The last one ends the observer.
type walks struct {
	loadertest.Datapath

	tables [][]loader.Flow
	at     int
	end    func()
	busy   bool
	sums   uint64
}

func (w *walks) Flows(context.Context, loader.FlowFilter) iter.Seq2[loader.Flow, error] {
	return func(yield func(loader.Flow, error) bool) {
		now := w.tables[w.at]
		if w.at++; w.at == len(w.tables) && w.end != nil {
			defer w.end()
		}
		for _, f := range now {
			if !yield(f, nil) {
				return
			}
		}
	}
}

func (w *walks) Events(ctx context.Context) iter.Seq2[loader.DropEvent, error] {
	return func(yield func(loader.DropEvent, error) bool) {
		if w.busy {
			yield(loader.DropEvent{}, loader.ErrBusy)
			return
		}
		<-ctx.Done()
	}
}

func (w *walks) DropSums(context.Context) (map[drops.Reason]drops.Sum, error) {
	w.sums += 7
	return map[drops.Reason]drops.Sum{1: {FromPods: w.sums}}, nil
}

func flowOf(port uint16, created time.Duration, state string, change ...func(*loader.Flow)) loader.Flow {
	f := loader.Flow{
		Proto: 6, Pod: netip.MustParseAddrPort("10.1.0.2:80"), Remote: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.7"), port),
		Created: created, State: state, Kind: "plain",
	}
	for _, c := range change {
		c(&f)
	}
	return f
}

func flags(names ...string) func(*loader.Flow) { return func(f *loader.Flow) { f.Flags = names } }
func fast(f *loader.Flow)                      { f.Fast = true }

// run walks all tables and returns what was told, as "port event reason state".
func run(t *testing.T, o Options, tables ...[]loader.Flow) (got []string) {
	t.Helper()
	x := &observer{Options: o, src: &walks{tables: tables}, table: table{conns: map[key]conn{}}, backends: map[uint64]netip.AddrPort{}, limit: newLimit(o.Rate), lost: map[string]uint64{}}
	x.emit = func(e flowevent.Event) error {
		if e.Event == flowevent.Lost {
			got = append(got, "lost "+e.Reason)
			return nil
		}
		got = append(got, strings.TrimSpace(strings.Join([]string{e.Source.String()[len("192.0.2.7:"):], e.Event, e.Reason, e.State}, " ")))
		return nil
	}
	if _, err := x.first(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range tables[1:] {
		if err := x.again(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.tellLost(true); err != nil {
		t.Fatal(err)
	}
	return got
}

// A pod's answer to a datagram that made no entry is told as what the client opened.
func TestAnswers(t *testing.T) {
	t.Parallel()
	pod, client, server := netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.2.0.9"), netip.MustParseAddr("10.96.0.10")
	for name, tt := range map[string]struct {
		flow   loader.Flow
		source string
	}{
		"an answer":                  {loader.Flow{Proto: 17, Pod: netip.AddrPortFrom(pod, 53), Remote: netip.AddrPortFrom(client, 32768), Kind: "plain", PodOpened: true}, "10.2.0.9:32768"},
		"a question":                 {loader.Flow{Proto: 17, Pod: netip.AddrPortFrom(pod, 40000), Remote: netip.AddrPortFrom(server, 53), Kind: "plain", PodOpened: true}, "10.1.0.2:40000"},
		"two ports of clients":       {loader.Flow{Proto: 17, Pod: netip.AddrPortFrom(pod, 40000), Remote: netip.AddrPortFrom(client, 50000), Kind: "plain", PodOpened: true}, "10.1.0.2:40000"},
		"two ports of servers":       {loader.Flow{Proto: 17, Pod: netip.AddrPortFrom(pod, 123), Remote: netip.AddrPortFrom(server, 123), Kind: "plain", PodOpened: true}, "10.1.0.2:123"},
		"TCP, which begins by a SYN": {loader.Flow{Proto: 6, Pod: netip.AddrPortFrom(pod, 1024), Remote: netip.AddrPortFrom(server, 50000), Kind: "plain", PodOpened: true}, "10.1.0.2:1024"},
		"masqueraded":                {loader.Flow{Proto: 17, Pod: netip.AddrPortFrom(pod, 1024), Remote: netip.AddrPortFrom(server, 50000), Kind: "masquerade", PodOpened: true}, "10.1.0.2:1024"},
		"opened by the other end":    {loader.Flow{Proto: 17, Pod: netip.AddrPortFrom(pod, 53), Remote: netip.AddrPortFrom(client, 1024), Kind: "plain"}, "10.2.0.9:1024"},
	} {
		var got []flowevent.Event
		err := Run(t.Context(), &walks{tables: [][]loader.Flow{{tt.flow}}}, Options{All: true}, func(e flowevent.Event) error { got = append(got, e); return nil })
		if err != nil || len(got) != 1 {
			t.Fatalf("%s: %d events, %v", name, len(got), err)
		}
		want := flowevent.Ingress
		if got[0].Source == tt.flow.Pod {
			want = flowevent.Egress
		}
		if got[0].Source.String() != tt.source || got[0].Direction != want {
			t.Errorf("%s: from %s, %s", name, got[0].Source, got[0].Direction)
		}
	}
}

// Connections that were used within one tick of the clock are told with times of their own, in their order.
func TestTimes(t *testing.T) {
	t.Parallel()
	idle := func(d time.Duration) func(*loader.Flow) { return func(f *loader.Flow) { f.Idle = d } }
	table := []loader.Flow{flowOf(1, 10, "new", idle(time.Second)), flowOf(2, 10, "new", idle(time.Second)), flowOf(3, 10, "new", idle(time.Second)), flowOf(4, 10, "new", idle(time.Hour))}
	var got []flowevent.Event
	err := Run(t.Context(), &walks{tables: [][]loader.Flow{table}}, Options{All: true}, func(e flowevent.Event) error { got = append(got, e); return nil })
	if err != nil || len(got) != len(table) {
		t.Fatalf("%d events, %v", len(got), err)
	}
	for i := 1; i < len(got); i++ {
		if gap := got[i].Time.Sub(got[i-1].Time); gap <= 0 || i > 1 && gap > time.Microsecond {
			t.Errorf("%s after %s", got[i].Time, got[i-1].Time)
		}
	}
}

// What two walks find differently is told once, also what began and ended between the two.
func TestWalks(t *testing.T) {
	t.Parallel()
	old := flowOf(1, 10, "established")
	for name, tt := range map[string]struct {
		tables [][]loader.Flow
		want   []string
	}{
		"nothing":     {[][]loader.Flow{{old}, {old}, {old}}, nil},
		"begins":      {[][]loader.Flow{{old}, {old, flowOf(2, 20, "new")}}, []string{"2 new  new"}},
		"establishes": {[][]loader.Flow{{flowOf(2, 20, "new")}, {flowOf(2, 20, "established")}}, []string{"2 changed  established"}},
		"fast":        {[][]loader.Flow{{old}, {flowOf(1, 10, "established", fast)}, {flowOf(1, 10, "established", fast)}}, []string{"1 changed  established"}},
		"FIN": {[][]loader.Flow{{old}, {flowOf(1, 10, "closing", flags("fin-tx"))}, {flowOf(1, 10, "closed", flags("fin-tx", "fin-rx"))},
			{flowOf(1, 10, conntrack.StateExpired, flags("fin-tx", "fin-rx"))}}, []string{"1 changed  closing", "1 ended fin closed"}},
		"RST":           {[][]loader.Flow{{old}, {flowOf(1, 10, "closed", flags("rst"))}}, []string{"1 ended rst closed"}},
		"expires":       {[][]loader.Flow{{old}, {flowOf(1, 10, conntrack.StateExpired)}}, []string{"1 ended expired expired"}},
		"short":         {[][]loader.Flow{{}, {flowOf(2, 20, "closed", flags("rst"))}}, []string{"2 new  closed", "2 ended rst closed"}},
		"ended before":  {[][]loader.Flow{{flowOf(2, 20, "closed", flags("rst"))}, {flowOf(2, 20, conntrack.StateExpired, flags("rst"))}}, nil},
		"the same ends": {[][]loader.Flow{{old}, {flowOf(1, 30, "new")}}, []string{"1 ended removed established", "1 new  new"}},
		"same ends, after its end": {[][]loader.Flow{{flowOf(1, 10, "closed", flags("rst"))}, {flowOf(1, 30, "new")}},
			[]string{"1 new  new"}},
		"moves during a walk": {[][]loader.Flow{{old}, {}, {old}}, nil},
		"found twice":         {[][]loader.Flow{{old}, {old, old}}, nil},
		"removed":             {[][]loader.Flow{{old}, {}, {}, {}}, []string{"1 ended removed established"}},
		"old place of an entry": {[][]loader.Flow{{flowOf(1, 30, "established")}, {flowOf(1, 10, conntrack.StateExpired), flowOf(1, 30, "established")}},
			nil},
	} {
		if got := run(t, Options{Follow: true}, tt.tables...); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// What sampling and the rate leave out is counted, and all events of a connection share its fate.
func TestSampleAndRate(t *testing.T) {
	t.Parallel()
	var begin, end []loader.Flow
	for i := range uint16(1000) {
		begin, end = append(begin, flowOf(1000+i, 20, "new")), append(end, flowOf(1000+i, 20, "closed", flags("rst")))
	}
	got := run(t, Options{Sample: 10}, nil, begin, end)
	seen := map[string]int{}
	for _, line := range got {
		seen[strings.Fields(line)[0]]++
	}
	if n := len(seen) - 1; n < 40 || n > 200 || got[len(got)-1] != "lost sample" {
		t.Errorf("%d of 1000 connections with --sample 10, last %q", n, got[len(got)-1])
	}
	for who, n := range seen {
		if who != "lost" && n != 2 {
			t.Errorf("connection %s: %d events", who, n)
		}
	}
	if got := run(t, Options{Rate: 50}, nil, begin); len(got) < 50 || len(got) > 200 || got[len(got)-1] != "lost rate" {
		t.Errorf("%d lines with --max-rate 50, last %q", len(got), got[len(got)-1])
	}
}

// While another process reads the drops, their number is told.
func TestBusy(t *testing.T) {
	t.Parallel()
	x := &observer{src: &walks{busy: true}, lost: map[string]uint64{}}
	for range 3 {
		if err := x.drop(t.Context(), dropped{busy: true}); err != nil {
			t.Fatal(err)
		}
	}
	if x.lost[flowevent.LostBusy] != 14 {
		t.Errorf("%v", x.lost)
	}
}

// The pauses keep the walks below a fiftieth of a core, and the observer ends when it is told to.
func TestPause(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]time.Duration{0: time.Second, 10 * time.Millisecond: time.Second, 100 * time.Millisecond: 5 * time.Second, time.Hour: time.Minute} {
		if got := pauseAfter(took); got != want {
			t.Errorf("after %v: %v, want %v", took, got, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	src := &walks{tables: [][]loader.Flow{{}, {flowOf(1, 10, "new")}}, end: cancel}
	n := 0
	err := Run(ctx, src, Options{Follow: true}, func(flowevent.Event) error { n++; return nil })
	if err != nil || n != 1 {
		t.Errorf("%d events, %v", n, err)
	}
}

func TestFilterPods(t *testing.T) {
	t.Parallel()
	e := flowevent.Event{Event: flowevent.New, Source: netip.MustParseAddrPort("10.1.0.2:1"), Destination: netip.MustParseAddrPort("[fd00::1]:2"),
		Pod: &flowevent.Pod{ContainerID: "3f1c", Namespace: "default", Name: "web-0"}}
	for pod, want := range map[string]bool{
		"default/web": true, "default/web-0": true, "default/": true, "other/web": false, "default/db": false, "3f": true, "3f1c9": false,
		"10.1.0.2": true, "::ffff:10.1.0.2": true, "fd00::1": true, "10.1.0.3": false, "/web": false,
	} {
		if got := (&Filter{Pods: []string{pod}}).Matches(&e); got != want {
			t.Errorf("%s: %v", pod, got)
		}
	}
	e.Pod = nil
	if (&Filter{Pods: []string{"3f"}}).Matches(&e) || !(&Filter{Pods: []string{"3f"}}).Matches(&flowevent.Event{Event: flowevent.Lost}) {
		t.Error("without a pod")
	}
}

// A connection that a pod opened has the end that the stack translates it to, also when it ends and the stack has forgotten it. No other
// connection is asked about, and each one until there is an answer.
func TestBackend(t *testing.T) {
	byPod := func(f *loader.Flow) { f.PodOpened = true }
	outside := func(f *loader.Flow) { f.Outside = netip.MustParseAddrPort("192.0.2.1:61000") }
	backend := netip.MustParseAddrPort("10.1.0.7:8080")
	asked := map[uint16]int{}
	var got []string
	x := &observer{
		Options: Options{All: true, Backend: func(proto uint8, from, to netip.AddrPort) netip.AddrPort {
			if proto != 6 || from.Addr() != netip.MustParseAddr("10.1.0.2") {
				t.Errorf("asked for %d, %s, %s", proto, from, to)
			}
			if asked[to.Port()]++; asked[to.Port()] == 1 && to.Port() == 1 { // not there yet
				return netip.AddrPort{}
			}
			return backend
		}},
		src: &walks{tables: [][]loader.Flow{
			{flowOf(1, 1, "new", byPod), flowOf(2, 1, "new", byPod), flowOf(3, 1, "new"), flowOf(4, 1, "new", byPod, outside)},
			{flowOf(1, 1, "established", byPod), flowOf(2, 1, "new", byPod)},
			{}, {}, // twice, for the walk may have missed it
		}},
		table: table{conns: map[key]conn{}}, backends: map[uint64]netip.AddrPort{}, limit: newLimit(0), lost: map[string]uint64{},
	}
	x.emit = func(e flowevent.Event) error {
		port := e.Destination.Port()
		if e.Direction == flowevent.Ingress {
			port = e.Source.Port()
		}
		got = append(got, fmt.Sprint(port, " ", e.Event, " ", e.Backend == backend))
		return nil
	}
	if _, err := x.first(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := x.again(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(got)
	want := []string{
		"1 changed true", "1 ended true", "1 existing false", "2 ended true", "2 existing true", "3 ended false", "3 existing false", "4 ended false", "4 existing false",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if asked[1] != 2 || asked[2] != 1 || len(asked) != 2 || len(x.backends) != 0 {
		t.Errorf("asked %v, kept %v", asked, x.backends)
	}
}

// What was shown of a connection whose end the rate does not let pass is forgotten too.
func TestBackendOfLostEnd(t *testing.T) {
	t.Parallel()
	backend := netip.MustParseAddrPort("10.1.0.9:80")
	x := &observer{
		Options: Options{All: true, Backend: func(uint8, netip.AddrPort, netip.AddrPort) netip.AddrPort { return backend }},
		src:     &walks{tables: [][]loader.Flow{{flowOf(1, 1, "new", func(f *loader.Flow) { f.PodOpened = true })}, {}, {}}},
		table:   table{conns: map[key]conn{}}, backends: map[uint64]netip.AddrPort{}, limit: newLimit(1), lost: map[string]uint64{},
	}
	x.emit = func(e flowevent.Event) error {
		if e.Backend != backend || len(x.backends) != 1 {
			t.Errorf("%s: %s, kept %v", e.Event, e.Backend, x.backends)
		}
		return nil
	}
	for range 3 {
		if err := x.again(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if x.lost[flowevent.LostRate] != 1 || len(x.backends) != 0 {
		t.Errorf("lost %v, kept %v", x.lost, x.backends)
	}
}
