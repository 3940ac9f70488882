// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// Status is a look at the node, compared with what the maps say of it.
type Status struct {
	Skipped      []SkippedDevice
	Unseen       []Unseen
	LostGateways []netip.Addr
	Addresses    []HostAddress // as the maps have them
}

// Status looks at the node. It changes nothing.
func (node Node) Status(h *rtnl.Handle) (s Status, err error) {
	sides, err := node.sides()
	if err != nil {
		return s, err
	}
	n, err := readNode(h, node.Config.Uplinks, sides)
	if err != nil {
		return s, err
	}
	s.Skipped = n.skipped
	for _, name := range n.missing {
		s.Skipped = append(s.Skipped, SkippedDevice{Name: name, Why: "configured, but does not exist"})
	}
	addrs, uplinks, err := node.knownNode()
	if err != nil {
		return s, err
	}
	s.leaveOut(h, n, uplinks)
	if s.Unseen, err = unseen(h, n, addrs, uplinks); err != nil {
		return s, err
	}
	if s.LostGateways, err = node.lostGateways(h, n); err != nil {
		return s, err
	}
	for a, index := range addrs {
		s.Addresses = append(s.Addresses, HostAddress{Addr: a, Ifindex: int(index)})
	}
	slices.SortFunc(s.Addresses, func(a, b HostAddress) int { return a.Addr.Compare(b.Addr) })
	return s, nil
}

// leaveOut takes from n the spare uplinks that Sync leaves out, and says why.
func (s *Status) leaveOut(h *rtnl.Handle, n *node, uplinks map[uint32]endpoint.Sources) {
	for index, spare := range n.spare {
		if _, known := uplinks[uint32(index)]; known || !spare || !attach.OnlyIngress(h, index) {
			continue
		}
		name := strconv.Itoa(index)
		if l, err := h.LinkByIndex(index); err == nil {
			name = l.Name
		}
		s.Skipped = append(s.Skipped, SkippedDevice{Ifindex: index, Name: name, Why: whyNoEgress})
		delete(n.uplinks, index)
	}
}

// unseen compares a look at the node with what the maps say of it: addrs and uplinks. Of addresses that have gone only those of
// uplinks count: a pod on a point-to-point link takes its gateway's with it.
func unseen(h links, n *node, addrs map[netip.Addr]uint32, uplinks map[uint32]endpoint.Sources) ([]Unseen, error) {
	var out []Unseen
	for index := range n.uplinks {
		if _, known := uplinks[uint32(index)]; !known {
			out = append(out, Unseen{Ifindex: index})
		}
	}
	for a, index := range n.addrs {
		if _, known := addrs[a]; !known {
			out = append(out, Unseen{Ifindex: int(index), Addr: a})
		}
	}
	for a, index := range addrs {
		_, is := n.addrs[a]
		if _, uplink := uplinks[index]; !is && uplink {
			out = append(out, Unseen{Ifindex: int(index), Addr: a, Gone: true})
		}
	}
	slices.SortFunc(out, func(a, b Unseen) int { return cmp.Or(a.Ifindex-b.Ifindex, a.Addr.Compare(b.Addr)) })
	known := make(map[int]rtnl.Link)
	for i, u := range out {
		l, err := linkOf(h, known, u.Ifindex)
		if err != nil && !errors.Is(err, rtnl.ErrNotFound) {
			return nil, err
		}
		out[i].Name = l.Name
	}
	return out, nil
}

// lostGateways returns the addresses that the node showed to pods and has no more, although the device is there: another process has
// flushed a bridge's, and nothing is routed to its pods or from them.
func (node Node) lostGateways(h links, n *node) ([]netip.Addr, error) {
	eps, err := node.EndpointMaps()
	if err != nil {
		return nil, err
	}
	lost := make(map[netip.Addr]int)
	err = eps.Addrs.Each(func(_ netip.Addr, v *endpoint.Value) bool {
		if gw := codec.FromAddr(v.Gateway); !gw.IsUnspecified() && n.addrs[gw] == 0 {
			lost[gw] = int(v.RouteIfindex)
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("endpoints: %w", err)
	}
	var out []netip.Addr
	known := make(map[int]rtnl.Link)
	for gw, index := range lost {
		_, err := linkOf(h, known, index)
		if err == nil {
			out = append(out, gw)
		} else if !errors.Is(err, rtnl.ErrNotFound) {
			return nil, err
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out, nil
}

// SkippedDevice is a device that would be an uplink but is not handled.
type SkippedDevice struct {
	Ifindex int    `json:"ifindex"`
	Name    string `json:"name"`
	Why     string `json:"why"`
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
