// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"

	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// maxAsked is how many connections of a walk netfilter's table is asked about.
const maxAsked = 1024

// notTracked is a flag of a connection without an answer that netfilter has no entry of, though it has those of others. Either the node
// has refused it, as where a Service has no endpoint, or a rule keeps it from being tracked.
const notTracked = "not-in-netfilter"

// netfilter says of connections what the kernel's table knows.
//
// Who translates a destination after the pod's first hook, as kube-proxy does, gives the answer another tuple there. The datapath sees
// such a connection to a Service without any answer. Netfilter sees both.
type netfilter struct {
	asked int
	has   bool // an entry of any
	find  func(*Flow) (rtnl.Flow, error)
}

func newNetfilter() *netfilter {
	return &netfilter{find: func(s *Flow) (rtnl.Flow, error) { return rtnl.FindFlow(s.Proto, s.Pod, s.Remote) }}
}

// complete corrects the state of a connection that the pod opened, and that has no answer as far as the datapath knows.
func (n *netfilter) complete(s *Flow) {
	if s.State != conntrack.StateUnreplied || !s.PodOpened || s.Outside.IsValid() || s.Pod.Port() == 0 || n.asked >= maxAsked {
		return
	}
	n.asked++
	f, err := n.find(s)
	switch {
	case errors.Is(err, rtnl.ErrNotFound):
		if n.has {
			s.Flags = append(s.Flags, notTracked)
		}
		return
	case err != nil: // what cannot be asked is not known
		return
	}
	n.has = true
	switch {
	case !f.Replied:
	case f.TCPState == rtnl.TCPClose || f.TCPState == rtnl.TCPTimeWait:
		s.State = conntrack.StateClosed
	case f.TCPState >= rtnl.TCPFinWait && f.TCPState < rtnl.TCPTimeWait:
		s.State = conntrack.StateClosing
	default:
		s.State = conntrack.StateEstablished
	}
}
