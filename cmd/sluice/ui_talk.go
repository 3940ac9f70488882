// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/ipproto"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
)

const (
	uiTalkEdges   = 600 // that the page gets
	uiTalkOutside = 12  // addresses outside that have an end of their own; the others share one
)

// uiTalkView says between which ends connections were opened.
type uiTalkView struct {
	Edges   []uiTalkEdge `json:"edges"`    // most bytes first
	LeftOut int          `json:"left_out"` // edges
}

// uiTalkEdge sums up the connections of two ends.
type uiTalkEdge struct {
	From        uiTalkEnd `json:"from"`
	Via         string    `json:"via,omitempty"` // the hostPort, as "tcp 8080"
	To          uiTalkEnd `json:"to"`
	Connections int       `json:"connections"`
	Bytes       uint64    `json:"bytes"` // both directions
}

// uiTalkEnd is a pod, the node, an address outside, or all other addresses outside.
type uiTalkEnd struct {
	Kind    string `json:"kind"`              // pod, node or outside
	Owner   string `json:"owner,omitempty"`   // of a pod, as the maps hold it
	Address string `json:"address,omitempty"` // of an end outside
}

// uiTalk sums up connections.
type uiTalk struct {
	pods      map[netip.Addr]uint64
	node      map[netip.Addr]bool
	published map[hostport.Key]bool // of any host address
	seen      map[uiTalkTuple]bool
	edges     map[uiTalkKey]*uiTalkEdge
	outside   map[netip.Addr]uint64 // bytes
}

// uiTalkTuple names a connection of two pods, which each of them has an entry of.
type uiTalkTuple struct {
	proto    uint8
	from, to netip.AddrPort
}

type uiTalkKey struct {
	from, to netip.Addr // of pods: the first one of the pod's
	via      string
}

func newUITalk(endpoints []loader.EndpointStatus, node []hostAddressView, ports []hostport.Entry) *uiTalk {
	t := &uiTalk{
		pods: map[netip.Addr]uint64{}, node: map[netip.Addr]bool{}, published: map[hostport.Key]bool{}, seen: map[uiTalkTuple]bool{},
		edges: map[uiTalkKey]*uiTalkEdge{}, outside: map[netip.Addr]uint64{},
	}
	for _, e := range endpoints {
		for _, a := range e.Addrs {
			t.pods[a.Addr()] = e.Owner
		}
	}
	for _, h := range node {
		t.node[h.Address] = true
	}
	for _, p := range ports {
		t.published[hostport.Key{Proto: p.Proto, Port: p.Port}] = true
	}
	return t
}

// add counts a connection. One between two pods of the node counts once.
func (t *uiTalk) add(f loader.Flow) {
	from, to, via := f.Remote, f.Pod, ""
	if f.ByPod() {
		from, to = to, from
	}
	if f.Kind == "hostport" {
		via = fmt.Sprintf("%s %d", ipproto.Name(f.Proto), f.Outside.Port())
	}
	if f.PodOpened && t.node[to.Addr()] && t.published[hostport.Key{Proto: f.Proto, Port: to.Port()}] {
		return // the pod behind the hostPort has an entry too
	}
	if _, both := t.pods[f.Remote.Addr()]; both {
		tuple := uiTalkTuple{f.Proto, from, to}
		if t.seen[tuple] {
			return
		}
		t.seen[tuple] = true
	}
	bytes := f.RxBytes + f.TxBytes
	if end := t.end(f.Remote.Addr()); end.Kind == "outside" {
		t.outside[f.Remote.Addr()] += bytes
	}
	key := uiTalkKey{from.Addr(), to.Addr(), via}
	e := t.edges[key]
	if e == nil {
		e = &uiTalkEdge{From: t.end(from.Addr()), Via: via, To: t.end(to.Addr())}
		t.edges[key] = e
	}
	e.Connections++
	e.Bytes += bytes
}

func (t *uiTalk) end(a netip.Addr) uiTalkEnd {
	if owner, ok := t.pods[a]; ok {
		return uiTalkEnd{Kind: "pod", Owner: fmt.Sprintf("%016x", owner)}
	}
	if t.node[a] || a.IsLoopback() {
		return uiTalkEnd{Kind: "node"}
	}
	return uiTalkEnd{Kind: "outside", Address: a.String()}
}

// view joins the ends that have no place of their own, and sorts by bytes.
func (t *uiTalk) view() uiTalkView {
	addrs := make([]netip.Addr, 0, len(t.outside))
	for a := range t.outside {
		addrs = append(addrs, a)
	}
	slices.SortFunc(addrs, func(x, y netip.Addr) int { return cmp.Or(cmp.Compare(t.outside[y], t.outside[x]), x.Compare(y)) })
	shown := map[string]bool{}
	for _, a := range addrs[:min(uiTalkOutside, len(addrs))] {
		shown[a.String()] = true
	}
	joined := map[uiTalkEdge]*uiTalkEdge{}
	for _, e := range t.edges {
		for _, end := range []*uiTalkEnd{&e.From, &e.To} {
			if !shown[end.Address] {
				end.Address = ""
			}
		}
		key := uiTalkEdge{From: e.From, Via: e.Via, To: e.To}
		if j := joined[key]; j != nil {
			j.Connections += e.Connections
			j.Bytes += e.Bytes
		} else {
			joined[key] = e
		}
	}
	edges := make([]uiTalkEdge, 0, len(joined))
	for _, e := range joined {
		edges = append(edges, *e)
	}
	slices.SortFunc(edges, func(x, y uiTalkEdge) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(y.Connections, x.Connections), x.From.compare(y.From), x.To.compare(y.To), cmp.Compare(x.Via, y.Via))
	})
	n := min(uiTalkEdges, len(edges))
	return uiTalkView{Edges: edges[:n], LeftOut: len(edges) - n}
}

func (e uiTalkEnd) compare(o uiTalkEnd) int {
	return cmp.Or(cmp.Compare(e.Kind, o.Kind), cmp.Compare(e.Owner, o.Owner), cmp.Compare(e.Address, o.Address))
}
