// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/trace"
	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// liveView is what became of a real packet.
type liveView struct {
	Seen    bool           `json:"seen"`
	Dropped *dropEventView `json:"dropped,omitempty"`
	Flow    *flowView      `json:"connection,omitempty"`
	// Netfilter are the rules and policies of nftables that the packet met, if a rule traces it.
	Netfilter []nftStepView `json:"netfilter,omitempty"`
	// NetfilterLost says that the kernel had more traces than could be read.
	NetfilterLost bool   `json:"netfilter_lost,omitempty"`
	Text          string `json:"text"`
}

func (v *liveView) isDropped() bool { return v.Dropped != nil || v.droppedByNetfilter() != nil }

// droppedByNetfilter returns the place of nftables that dropped the packet, or nil.
func (v *liveView) droppedByNetfilter() *nftStepView {
	if n := len(v.Netfilter); n > 0 && v.Netfilter[n-1].Verdict == nftDrop {
		return &v.Netfilter[n-1]
	}
	return nil
}

// nftStepView is a rule of nftables that matched, or the policy of a chain.
type nftStepView struct {
	Chain   string `json:"chain"`            // family, table and chain
	Handle  uint64 `json:"handle,omitempty"` // of the rule; none: the chain's policy
	Verdict string `json:"verdict"`
}

const nftDrop = "drop"

func (v nftStepView) place() string {
	if v.Handle == 0 {
		return "the policy of chain " + v.Chain
	}
	return fmt.Sprintf("rule %d of chain %s", v.Handle, v.Chain)
}

func (a *app) liveScreen(v *liveView) error {
	for _, s := range v.Netfilter {
		paint := a.colours.plain
		if s.Verdict == nftDrop {
			paint = a.colours.red
		}
		if err := a.field("nftables", s.place()+": "+s.Verdict, paint); err != nil {
			return err
		}
	}
	if v.NetfilterLost {
		if err := a.field("nftables", "more packets are traced than could be read: let the rule match fewer", a.colours.yellow); err != nil {
			return err
		}
	}
	return a.say("live: %s", v.Text)
}

// flowPause is between two looks at the connections.
const flowPause = 200 * time.Millisecond

// live watches what happens to the next real packet of the kind. It sends nothing.
func (a *app) live(ctx context.Context, dp loader.Interface, r *trace.Result, wait time.Duration) (*liveView, error) {
	if err := a.note("waiting %s for a packet like it", wait); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	before, err := a.flowsOf(ctx, dp, r)
	if err != nil {
		return nil, err
	}
	traces, err := rtnl.WatchNFTTraces()
	if err != nil && !errors.Is(err, unix.EPROTONOSUPPORT) { // a kernel without netfilter
		return nil, err
	}
	var (
		group sync.WaitGroup
		event *loader.DropEvent
		flow  *loader.Flow
		nft   nftSteps
		terr  error
		eerr  error
	)
	if err == nil {
		defer traces.Close()
		group.Go(func() {
			defer cancel()
			if err := nft.watch(ctx, traces, r); ctx.Err() == nil {
				terr = err
			}
		})
	}
	group.Go(func() { // its maps are open; what reads events looks for pins, which the calling thread sees
		flow = a.watchFlows(ctx, dp, r, before)
		pause(ctx, flowPause) // a later hook may drop what an earlier one has counted
		cancel()
	})
	for e, err := range dp.Events(ctx) {
		if eerr = err; err != nil {
			break
		}
		if e.Lost == 0 && r.Matches(e.Packet.Proto, e.Packet.Src, e.Packet.Dst) {
			event = &e
			break
		}
	}
	cancel()
	group.Wait()
	return a.liveResult(event, flow, &nft, wait, errors.Join(eerr, terr))
}

// liveResult says what was seen. err counts if nothing was.
func (a *app) liveResult(event *loader.DropEvent, flow *loader.Flow, nft *nftSteps, wait time.Duration, err error) (*liveView, error) {
	owners := a.owners()
	v := &liveView{Seen: true, Netfilter: nft.steps, NetfilterLost: nft.lost}
	by := v.droppedByNetfilter()
	switch {
	case event != nil:
		e := dropEventViewOf(*event, owners)
		v.Dropped, v.Text = &e, "dropped: "+e.text(a)
	case by != nil:
		v.Text = fmt.Sprintf("dropped by nftables: %s: nft -a list chain %s", by.place(), by.Chain)
	case flow != nil:
		f := flowViewOf(*flow, owners)
		v.Flow, v.Text = &f, fmt.Sprintf("passes: %s, pod %s, remote %s, %s, %d packets to the pod, %d from it", f.Proto, f.Pod, f.Remote, f.State, f.RxPackets, f.TxPackets)
	case len(nft.steps) > 0:
		v.Text = "seen by nftables, and by no program since"
	case err != nil:
		return nil, err
	default:
		v.Seen, v.Text = false, fmt.Sprintf("no packet like it within %s: it does not reach the programs, or nobody sends it", wait)
	}
	return v, nil
}

// nftSteps are the places of nftables that one packet met.
type nftSteps struct {
	packet uint32
	steps  []nftStepView
	lost   bool
}

// mostNFTSteps bounds what is kept of a packet. The kernel's own limit of jumps lets it meet more.
const mostNFTSteps = 256

// watch notes the places of the first packet of the kind, until nftables drops the packet. It returns ctx's error when that ends.
func (s *nftSteps) watch(ctx context.Context, w *rtnl.NFTTraceWatch, r *trace.Result) error {
	for {
		traces, lost, err := w.Next(ctx)
		s.lost = s.lost || lost
		if err != nil {
			return err
		}
		for i := range traces {
			if s.add(&traces[i], r) {
				return nil
			}
		}
	}
}

// add notes a place if it is the packet's, and reports whether the packet ends there.
func (s *nftSteps) add(t *rtnl.NFTTrace, r *trace.Result) bool {
	if len(s.steps) == 0 {
		p := drops.DecodePacket(t.Headers, 0)
		if !p.Src.Addr().IsValid() || !r.Matches(p.Proto, p.Src, p.Dst) {
			return false
		}
		s.packet = t.Packet
	}
	if t.Packet != s.packet || t.Rule == 0 && !t.Policy || len(s.steps) == mostNFTSteps {
		return false
	}
	s.steps = append(s.steps, nftStepView{Chain: t.At(), Handle: t.Rule, Verdict: t.Verdict})
	return t.Drops
}

// flowsOf are the connections of a trace's kind, with the packets that they have had.
func (a *app) flowsOf(ctx context.Context, dp loader.Interface, r *trace.Result) (map[string]loader.Flow, error) {
	all := map[string]loader.Flow{}
	for f, err := range dp.Flows(ctx, loader.FlowFilter{}) {
		if err != nil {
			return nil, err
		}
		if r.Matches(f.Proto, f.Pod, f.Remote) {
			all[fmt.Sprint(f.Proto, f.Pod, f.Remote)] = f
		}
	}
	return all, nil
}

// watchFlows returns a connection that has had a packet since, nil when ctx is done before.
func (a *app) watchFlows(ctx context.Context, dp loader.Interface, r *trace.Result, before map[string]loader.Flow) *loader.Flow {
	for {
		pause(ctx, flowPause)
		if ctx.Err() != nil {
			return nil
		}
		now, err := a.flowsOf(ctx, dp, r)
		if err != nil {
			return nil
		}
		for key, f := range now {
			if old, ok := before[key]; !ok || f.RxPackets+f.TxPackets > old.RxPackets+old.TxPackets {
				return &f
			}
		}
	}
}
