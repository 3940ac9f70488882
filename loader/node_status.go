// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/uplinks"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// whyNoEgress is what Status says of a spare uplink that cannot have programs.
const whyNoEgress = "its ingress qdisc, of another program, leaves no room for Sluice's programs on this kernel"

// nodeStatus is a look at the node, compared with what the maps say of it.
type nodeStatus struct {
	Skipped      []SkippedDevice
	Unseen       []Unseen
	LostGateways []netip.Addr
	Addresses    []HostAddress // as the maps have them
}

// nodeStatus looks at the node. It changes nothing.
func (d *Datapath) nodeStatus(h *rtnl.Handle) (s nodeStatus, err error) {
	roles, err := d.roles()
	if err != nil {
		return s, err
	}
	n, _, err := uplinks.Read(h, d.tree.Config.Uplinks, roles, nil, 0)
	if err != nil {
		return s, err
	}
	s.Skipped = n.Skipped
	for _, name := range n.Missing {
		s.Skipped = append(s.Skipped, SkippedDevice{Name: name, Why: "configured, but does not exist"})
	}
	addrs, ups, err := d.knownNode()
	if err != nil {
		return s, err
	}
	s.leaveOut(h, n, ups)
	if s.Unseen, err = unseen(h, n, addrs, ups); err != nil {
		return s, err
	}
	if s.LostGateways, err = d.lostGateways(h, n); err != nil {
		return s, err
	}
	for a, index := range addrs {
		s.Addresses = append(s.Addresses, HostAddress{Addr: a, Ifindex: int(index)})
	}
	slices.SortFunc(s.Addresses, func(a, b HostAddress) int { return a.Addr.Compare(b.Addr) })
	return s, nil
}

// leaveOut takes from n the spare uplinks that Sync leaves out, and says why.
func (s *nodeStatus) leaveOut(h *rtnl.Handle, n *uplinks.Snapshot, known map[uint32]endpoint.Sources) {
	for index, spare := range n.Spare {
		if _, has := known[uint32(index)]; has || !spare || !attach.OnlyIngress(h, index) {
			continue
		}
		name := strconv.Itoa(index)
		if l, err := h.LinkByIndex(index); err == nil {
			name = l.Name
		}
		s.Skipped = append(s.Skipped, SkippedDevice{Ifindex: index, Name: name, Why: whyNoEgress})
		delete(n.Uplinks, index)
	}
}

// unseen compares a look at the node with what the maps say of it: addrs and the uplinks known. Of addresses that have gone only those of
// uplinks count: a pod on a point-to-point link takes its gateway's with it.
func unseen(h *rtnl.Handle, n *uplinks.Snapshot, addrs map[netip.Addr]uint32, known map[uint32]endpoint.Sources) ([]Unseen, error) {
	var out []Unseen
	for index := range n.Uplinks {
		if _, has := known[uint32(index)]; !has {
			out = append(out, Unseen{Ifindex: index})
		}
	}
	for a, index := range n.Addrs {
		if _, has := addrs[a]; !has {
			out = append(out, Unseen{Ifindex: int(index), Addr: a})
		}
	}
	for a, index := range addrs {
		_, is := n.Addrs[a]
		if _, uplink := known[index]; !is && uplink {
			out = append(out, Unseen{Ifindex: int(index), Addr: a, Gone: true})
		}
	}
	slices.SortFunc(out, func(a, b Unseen) int { return cmp.Or(a.Ifindex-b.Ifindex, a.Addr.Compare(b.Addr)) })
	for i, u := range out {
		l, err := h.LinkByIndex(u.Ifindex)
		if err != nil && !errors.Is(err, rtnl.ErrNotFound) {
			return nil, err
		}
		out[i].Name = l.Name
	}
	return out, nil
}

// lostGateways returns the addresses that the node showed to pods and has no more, although the device is there: another process has
// flushed a bridge's, and nothing is routed to its pods or from them.
func (d *Datapath) lostGateways(h *rtnl.Handle, n *uplinks.Snapshot) ([]netip.Addr, error) {
	eps, err := d.tree.EndpointMaps()
	if err != nil {
		return nil, err
	}
	lost := make(map[netip.Addr]int)
	err = eps.Addrs.Each(func(_ netip.Addr, v *endpoint.Value) bool {
		if gw := codec.FromAddr(v.Gateway); !gw.IsUnspecified() && n.Addrs[gw] == 0 {
			lost[gw] = int(v.RouteIfindex)
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("endpoints: %w", err)
	}
	var out []netip.Addr
	for gw, index := range lost {
		_, err := h.LinkByIndex(index)
		if err == nil {
			out = append(out, gw)
		} else if !errors.Is(err, rtnl.ErrNotFound) {
			return nil, err
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out, nil
}

// Unseen is something of the node that has changed since the maps were last brought up to date: the next Sync takes it in.
type Unseen struct {
	Ifindex int        `json:"ifindex"`
	Name    string     `json:"name"`
	Addr    netip.Addr `json:"addr,omitzero"`  // of the device; invalid: the device itself, which is an uplink now
	Gone    bool       `json:"gone,omitempty"` // the address has left the node
}

// HostAddress is an address that stands for the node.
type HostAddress struct {
	Addr    netip.Addr `json:"addr"`
	Ifindex int        `json:"ifindex"`
}
