// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/loader/ebpfload"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// Verdict is what becomes of a packet.
type Verdict string

// The verdicts.
const (
	Delivered Verdict = "delivered" // to a pod or to the node itself
	Sent      Verdict = "sent"      // out of a device
	Dropped   Verdict = "dropped"
)

// Results of a step.
const (
	Passed     = "passed"
	Rewritten  = "rewritten"
	Redirected = "redirected" // past the stack
	Stopped    = "dropped"
	NotAsked   = "not_rehearsed" // it is on the way, and cannot be asked
)

// Step is one place on the way.
type Step struct {
	Kind   string `json:"kind"` // pod, program, bridge, route, sysctl, netfilter, neighbour or socket
	At     string `json:"at"`
	Result string `json:"result"`
	Text   string `json:"text"`
	Packet string `json:"packet"` // as it is behind this place
}

// Path is the way of one packet.
type Path struct {
	Packet  string  `json:"packet"`
	Steps   []Step  `json:"steps"`
	Verdict Verdict `json:"verdict"`
	At      string  `json:"at"` // the place of the verdict
	Device  string  `json:"device,omitempty"`
	As      string  `json:"as"`               // the packet at its end
	Reason  string  `json:"reason,omitempty"` // of a drop, as "sluice drops" names it where a program dropped it
	Why     string  `json:"why,omitempty"`
	Do      string  `json:"do,omitempty"`
	// NotRehearsed are places that may decide otherwise.
	NotRehearsed []string `json:"not_rehearsed"`

	begin, end Tuple
	pod        *loader.EndpointStatus // that it was delivered to
	out        rtnl.Link              // that it was sent out of
	away       bool                   // it was sent out of a device that the node does not see, and so will be its answer
}

// Matches reports whether a packet, or an answer to it, can be one of this way: before or after its address was rewritten.
func (p *Path) Matches(proto uint8, a, b netip.AddrPort) bool {
	if proto != p.begin.Proto {
		return false
	}
	for _, t := range []Tuple{p.begin, p.end} {
		for _, t := range []Tuple{t, t.reverse(), {t.Proto, p.begin.Src, t.Dst}, {t.Proto, t.Dst, p.begin.Src}} {
			if a.Addr() == t.Src.Addr() && b.Addr() == t.Dst.Addr() && (a.Port() == 0 || a.Port() == p.begin.Dst.Port() || a.Port() == p.end.Dst.Port() || b.Port() == p.begin.Dst.Port() || b.Port() == p.end.Dst.Port()) {
				return true
			}
		}
	}
	return false
}

// Result is the way of a packet and of the first answer to it.
type Result struct {
	Path
	Answer *Path `json:"answer,omitempty"`
}

// Dropped reports whether the packet or its answer is.
func (r *Result) Dropped() bool {
	return r.Verdict == Dropped || r.Answer != nil && r.Answer.Verdict == Dropped
}

// Line says in one line what becomes of the packet.
func (r *Result) Line() string {
	if r.Verdict != Dropped && r.Answer != nil && r.Answer.Verdict == Dropped {
		return r.line() + "; its answer is " + r.Answer.line()
	}
	line := r.line()
	if n := len(r.NotRehearsed); n > 0 && r.Verdict != Dropped {
		line += fmt.Sprintf(", if %s", strings.Join(r.NotRehearsed, ", and "))
	}
	return line
}

func (p *Path) line() string {
	switch p.Verdict {
	case Delivered:
		return fmt.Sprintf("delivered to %s as %s", p.At, p.end.Dst)
	case Sent:
		return fmt.Sprintf("sent out of %s as %s", p.Device, p.end.Src)
	}
	at := p.At
	if p.Device != "" {
		at += " on " + p.Device
	}
	return fmt.Sprintf("dropped at %s: %s: %s: %s", at, p.Reason, p.Why, p.Do)
}

// Question is the packet that is asked about.
type Question struct {
	// Named reports whether a pod is called so, as the commands print it.
	Named          func(id attachments.ID, text string) bool
	From, To       string // pod, "node", or an address
	Proto          uint8
	Port, FromPort uint16
	Source         netip.Addr // of the packet; invalid: the sender's own
	Via            string     // device that it comes in by; empty: the one toward the sender
	Records        []*attachments.Record
}

// UsageError says that the question is wrong.
type UsageError struct{ Text string }

// Error implements error.
func (e UsageError) Error() string { return e.Text }

func usage(format string, a ...any) error { return UsageError{fmt.Sprintf(format, a...)} }

// Trace answers q. It acts on the network namespace of the calling thread.
func Trace(ctx context.Context, dp loader.Interface, q Question) (r *Result, err error) {
	n, err := look(ctx, dp, q)
	if err != nil {
		return nil, err
	}
	defer n.close()
	from, to, t, err := n.ends(q)
	if err != nil {
		return nil, err
	}
	request, err := dp.LoadRequest(ctx)
	if err != nil {
		return nil, err
	}
	n.copy, err = ebpfload.NewCopy(request, [][16]byte{codec.Addr(t.Src.Addr()), codec.Addr(t.Dst.Addr()), codec.Addr(from.addr), codec.Addr(to.addr)})
	if err != nil {
		return nil, fmt.Errorf("copy the datapath: %w", err)
	}
	defer func() { err = errors.Join(err, n.copy.Close()) }()
	r = &Result{}
	if err := n.start(&r.Path, from, t, q.Via, false); errors.Is(err, ebpfload.ErrNoTestRun) {
		return nil, fmt.Errorf("%w; send a real packet, and watch it by \"sluice monitor\"", err)
	} else if err != nil {
		return nil, err
	}
	if r.Verdict == Dropped || r.away {
		return r, nil
	}
	r.Answer = &Path{}
	back := end{addr: r.end.Dst.Addr()}
	via := ""
	switch {
	case r.pod != nil:
		back.kind, back.pod = isPod, r.pod
	case r.Verdict == Sent:
		back.kind, via = isOutside, r.out.Name
	default:
		back.kind = isNode
	}
	return r, n.start(r.Answer, back, r.end.reverse(), via, true)
}

// start begins the way of a packet where its sender is.
func (n *node) start(p *Path, from end, t Tuple, via string, answer bool) error {
	w := &walk{n: n, p: p, t: t, answer: answer}
	p.begin, p.Packet, p.Steps, p.NotRehearsed = t, t.String(), []Step{}, []string{}
	var err error
	switch from.kind {
	case isPod:
		err = w.fromPod(from.pod)
	case isNode:
		err = w.fromNode()
	default:
		err = w.fromOutside(via)
	}
	p.end, p.As = w.t, w.t.String()
	return err
}
