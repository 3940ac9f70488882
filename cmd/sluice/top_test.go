// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
)

// busyNode is a node whose counters grow from look to look.
type busyNode struct {
	*fakeNode
	looks uint64
}

func (n *busyNode) Datapath(ctx context.Context) (loader.Interface, error) {
	dp, err := n.fakeNode.Datapath(ctx)
	if err != nil {
		return nil, err
	}
	return busyDatapath{dp, n}, nil
}

type busyDatapath struct {
	loader.Interface
	n *busyNode
}

func (d busyDatapath) Endpoints(context.Context) ([]loader.EndpointStatus, error) {
	d.n.looks++
	all := append([]loader.EndpointStatus{}, d.n.dp.State.Endpoints...)
	for i := range all {
		s := &all[i].Stats
		s.RxPackets, s.RxBytes = s.RxPackets+1000*d.n.looks, s.RxBytes+d.n.looks<<20
		s.TxPackets, s.Drops = s.TxPackets+10*d.n.looks, s.Drops+d.n.looks
	}
	return all, nil
}

func TestTopRates(t *testing.T) {
	t.Parallel()
	n := newFakeNode()
	n.podNames = map[attachments.ID][2]string{webRef: {"shop", "web-0"}}
	top := newTopper(&app{node: n}, topOptions{sort: "bytes"})
	top.names()
	top.limits = map[uint64][2]uint64{webRef.Owner(): {2000, 0}}
	top.flows = map[uint64]int{webRef.Owner(): 2, lostRef.Owner(): 1}
	look := func(after time.Duration, web, lost loader.EndpointCounter, index int) topSample {
		return topSample{at: born.Add(after), loaded: true, pods: map[uint64]topPod{
			webRef.Owner():  {devices: map[topDevice]loader.EndpointCounter{{"", 7}: web}},
			lostRef.Owner(): {devices: map[topDevice]loader.EndpointCounter{{"", index}: lost}},
		}}
	}
	before := look(0, loader.EndpointCounter{RxPackets: 100, RxBytes: 1000, TxBytes: 50}, loader.EndpointCounter{RxBytes: 500_000}, 8)
	// The device of the second one was made anew: its counters began at 0.
	now := look(2*time.Second, loader.EndpointCounter{RxPackets: 300, RxBytes: 4000, TxBytes: 150}, loader.EndpointCounter{RxBytes: 400}, 9)
	v := top.view(before, now)
	if len(v.Pods) != 2 || v.Connections != 3 || v.Seconds != 2 || v.Attachments != 2 {
		t.Fatalf("%+v", v)
	}
	web, lost := v.Pods[0], v.Pods[1]
	if web.Owner.ContainerID != webRef.ContainerID || web.Owner.podText(false) != "shop/web-0" || web.RxPackets != 100 || web.RxBytes != 1500 || web.TxBytes != 50 || web.Connections != 2 {
		t.Errorf("%+v", web)
	}
	if web.Ingress == nil || web.Ingress.Use != 0.75 || web.Ingress.RateBits != 16000 || web.Egress != nil {
		t.Errorf("limits %+v %+v", web.Ingress, web.Egress)
	}
	if lost.RxBytes != 200 || lost.Connections != 1 {
		t.Errorf("%+v", lost)
	}
	for sort, first := range map[string]string{"packets": webRef.ContainerID, "connections": webRef.ContainerID, "limit": webRef.ContainerID, "name": "", "drops": ""} {
		top.o.sort = sort
		if got := top.view(before, now).Pods[0].Owner.ContainerID; got != first {
			t.Errorf("--sort %s: %q is first", sort, got)
		}
	}
	top.o.limit, top.o.network = 1, "none"
	if v := top.view(before, now); len(v.Pods) != 0 || v.Attachments != 0 {
		t.Errorf("%+v", v)
	}
}

func TestTopOnce(t *testing.T) {
	n := &busyNode{fakeNode: newFakeNode()}
	var out, errs bytes.Buffer
	if status := (&app{out: &out, err: &errs, node: n, width: 80}).run(t.Context(), strings.Fields("top --once --interval 200ms --limit 1 --sort packets")); status != 0 || errs.Len() > 0 {
		t.Fatalf("%d %s", status, &errs)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], "2 attachments, 3 connections") || !strings.HasPrefix(lines[1], "POD") {
		t.Errorf("%s", &out)
	}
	for _, line := range lines {
		if utf8.RuneCountInString(line) > 80 {
			t.Errorf("%d columns: %s", utf8.RuneCountInString(line), line)
		}
	}
	out.Reset()
	if status := (&app{out: &out, err: &errs, node: n}).run(t.Context(), strings.Fields("top --once --interval 100ms -o json")); status != 0 {
		t.Fatalf("%d %s", status, &errs)
	}
	var v topView
	if err := json.Unmarshal(out.Bytes(), &v); err != nil || strings.Count(out.String(), "\n") != 1 {
		t.Fatalf("%v: %s", err, &out)
	}
	wantSnakeCase(t, out.String())
	if len(v.Pods) != 2 || v.Pods[0].RxPackets < 100 || v.Pods[0].RxPackets > 10_000 || v.Seconds < 0.1 {
		t.Errorf("%+v", v)
	}
}

// Where the output is no terminal there is a table at each interval, and nothing that a terminal obeys.
func TestTopPlain(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	var out, errs bytes.Buffer
	if status := (&app{out: &out, err: &errs, node: &busyNode{fakeNode: newFakeNode()}}).run(ctx, strings.Fields("top --interval 100ms")); status != 0 || errs.Len() > 0 {
		t.Fatalf("%d %s", status, &errs)
	}
	if n := strings.Count(out.String(), "RX B/S"); n < 2 || strings.Contains(out.String(), "\x1b") {
		t.Errorf("%d tables:\n%s", n, &out)
	}
}

func TestTopRefuses(t *testing.T) {
	for line, want := range map[string]string{
		"top --interval 0s":     "100ms or more",
		"top --sort size":       "must be bytes",
		"top web":               "takes no arguments",
		"top --limit -1 --once": "--limit",
	} {
		if out, errs, status := runTool(t, newFakeNode(), 0, strings.Fields(line)...); status != 1 || !strings.Contains(errs, want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: %d, %q %q", line, status, out, errs)
		}
	}
	if out, errs, status := runTool(t, &fakeNode{}, 0, "top", "--once"); status != 0 || errs != "" || out != notLoaded+"\n" {
		t.Errorf("nothing loaded: %d, %q %q", status, out, errs)
	}
}

// On a terminal top has a screen of its own, which follows the terminal's size. It shows no name as a command, and leaves all as it was.
func TestTopScreen(t *testing.T) {
	t.Setenv("TERM", "xterm")
	n := &busyNode{fakeNode: newFakeNode()}
	evil := attachments.ID{Network: "db\x1b[31mnet", ContainerID: "3f\u009b2J" + strings.Repeat("x", 60), IfName: "eth0\x07"}
	n.records = []*attachments.Record{{ID: evil}}
	n.dp.State.Endpoints = []loader.EndpointStatus{{Owner: evil.Owner(), HostIfindex: 7, Addrs: []netip.Prefix{netip.MustParsePrefix("10.1.0.2/16")}}}
	p := newPTY(t, 100, 20)
	before := p.mode(t)
	done := make(chan int, 1)
	var errs bytes.Buffer
	go func() {
		done <- (&app{out: p.user, err: &errs, in: p.user, node: n, wide: true}).run(context.Background(), strings.Fields("top --interval 200ms"))
	}()
	p.await(t, "RX B/S", 0)
	if mode := p.mode(t); mode.Lflag&(unix.ECHO) != 0 {
		t.Error("keys are echoed")
	}
	for _, columns := range []int{40, 70} {
		p.resize(t, columns, 20)
		p.await(t, "eth0", len(p.seen())+1) // a drawing that began before
		p.await(t, "eth0", len(p.seen())+1)
		for _, line := range lastScreen(p.seen()) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, " ")); n > columns {
				t.Errorf("%d columns of %d: %q", n, columns, line)
			}
		}
	}
	p.press(t, "q")
	select {
	case status := <-done:
		if status != 0 || errs.Len() > 0 {
			t.Errorf("%d %s", status, &errs)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("q does not end it")
	}
	p.await(t, "\x1b[?1049l", 0)
	if after := p.mode(t); after != before {
		t.Errorf("the terminal is left as %+v, was %+v", after, before)
	}
	s := p.seen()
	if strings.Count(s, "\x1b[?1049h") != 1 || !strings.HasSuffix(s, "\x1b[?1049l") || !strings.Contains(s, "\x1b[?25h") {
		t.Errorf("screen: %q", s)
	}
	for _, bad := range []string{"\x1b[31m", "\u009b", "\x07"} {
		if strings.Contains(s, bad) {
			t.Errorf("%q reaches the terminal", bad)
		}
	}
}

// The end of the context, which Ctrl-C is, leaves the terminal as it was too.
func TestTopInterrupted(t *testing.T) {
	t.Setenv("TERM", "xterm")
	p := newPTY(t, 80, 10)
	before := p.mode(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() {
		done <- (&app{out: p.user, err: &bytes.Buffer{}, in: p.user, node: &busyNode{fakeNode: newFakeNode()}}).run(ctx, []string{"top"})
	}()
	p.await(t, "measuring", 0)
	cancel()
	if status := <-done; status != 0 {
		t.Error(status)
	}
	p.await(t, "\x1b[?1049l", 0)
	if after := p.mode(t); after != before {
		t.Errorf("the terminal is left as %+v, was %+v", after, before)
	}
}

// A terminal without control sequences gets tables below each other.
func TestTopDumb(t *testing.T) {
	t.Setenv("TERM", "dumb")
	p := newPTY(t, 80, 10)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() {
		done <- (&app{out: p.user, err: &bytes.Buffer{}, in: p.user, node: &busyNode{fakeNode: newFakeNode()}}).run(ctx, strings.Fields("top --interval 100ms"))
	}()
	p.await(t, "RX B/S", 0)
	p.await(t, "RX B/S", len(p.seen()))
	cancel()
	if status := <-done; status != 0 || strings.Contains(p.seen(), "\x1b") {
		t.Errorf("%d, %q", status, p.seen())
	}
}
