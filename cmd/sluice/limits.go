// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// The backends of a limit, as records name them.
const (
	limitEDT = "edt"
	limitTBF = "tbf"
)

// limitRecord is the bandwidth plugin's section of an attachment record.
type limitRecord struct {
	Backend     string     `json:"backend"`
	Reason      string     `json:"reason"`
	Ingress     *rateLimit `json:"ingress"`
	Egress      *rateLimit `json:"egress"`
	HostIfName  string     `json:"hostIfName"`
	HostIfindex int        `json:"hostIfindex"`
	IFB         string     `json:"ifb"`
}

type rateLimit struct {
	Rate    uint64 `json:"rate"`  // bytes a second
	Burst   uint32 `json:"burst"` // bytes
	Derived bool   `json:"derived"`
}

// inside says that the device has no end on the node.
func (s *limitRecord) inside() bool { return s.HostIfindex == 0 }

// limitStatus is one limited direction of an attachment, with what it has seen.
type limitStatus struct {
	egress  bool
	backend string
	reason  string // why that one
	limit   rateLimit
	device  string // that has the qdisc
	inPod   bool

	bytes, packets, drops uint64
	policed               bool          // the host veth drops what bypasses the queue
	bypassed              uint64        // packets that it dropped
	backlog               time.Duration // until the queue is empty
	err                   error         // the counters cannot be read
}

// limitsOf returns what an attachment record says is limited. RateLimits are the loader's
// limits; the counters of token buckets are asked of the kernel.
func limitsOf(rec *attachments.Record, shapes []loader.RateLimitStatus) []limitStatus {
	var s limitRecord
	if ok, err := rec.Section("bandwidth", &s); !ok || err != nil {
		return nil
	}
	var out []limitStatus
	for _, egress := range []bool{false, true} {
		l := s.Ingress
		if egress {
			l = s.Egress
		}
		if l == nil {
			continue
		}
		st := limitStatus{egress: egress, backend: s.Backend, reason: s.Reason, limit: *l}
		st.device, st.inPod = s.queueDevice(rec.ID, egress)
		if s.Backend == limitEDT && s.inside() && !egress {
			st.backend, st.reason = limitTBF, "the device has no host veth"
		}
		if st.backend == limitEDT {
			st.fromShape(rec.Owner(), shapes)
		} else {
			st.err = st.fromQdisc(rec.NetNS)
		}
		out = append(out, st)
	}
	return out
}

// queueDevice is the device whose root qdisc limits a direction.
func (s *limitRecord) queueDevice(ref attachments.ID, egress bool) (name string, inside bool) {
	switch {
	case s.inside() && !egress:
		return s.IFB, true
	case s.inside(), egress && s.Backend == limitEDT:
		return ref.IfName, true
	case egress:
		return s.IFB, false
	}
	return s.HostIfName, false
}

func (st *limitStatus) fromShape(owner uint64, shapes []loader.RateLimitStatus) {
	st.err = errors.New("the datapath has no such limit")
	for _, sh := range shapes {
		switch {
		case sh.Owner != owner || sh.Egress != st.egress:
		case sh.Police:
			st.policed, st.bypassed = true, sh.Drops
		default:
			st.bytes, st.packets, st.drops, st.backlog, st.err = sh.Bytes, sh.Packets, sh.Drops, sh.Backlog, nil
		}
	}
}

func (st *limitStatus) fromQdisc(path string) error {
	var ns *netns.NS
	if st.inPod {
		var err error
		if ns, err = netns.Open(path); err != nil {
			return err
		}
		defer ns.Close()
	}
	h, err := rtnl.NewIn(ns)
	if err != nil {
		return err
	}
	defer h.Close()
	dev, err := h.LinkByName(st.device)
	if err != nil {
		return err
	}
	q, err := h.RootQdisc(dev.Index)
	if err != nil {
		return err
	}
	if q.Kind != rtnl.QdiscTBF {
		return fmt.Errorf("the limit is not in force: %s has the qdisc %s, not %s", st.device, q.Kind, rtnl.QdiscTBF)
	}
	st.bytes, st.packets, st.drops = q.Stats.Bytes, uint64(q.Stats.Packets), uint64(q.Stats.Drops)
	st.backlog = time.Duration(float64(q.Stats.Backlog) / float64(st.limit.Rate) * float64(time.Second))
	return nil
}
