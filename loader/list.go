// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"cmp"
	"context"
	"iter"
	"net/netip"
	"slices"
	"strconv"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// Endpoints returns the pod devices, each with its addresses, in the order of the host end's index.
func (d *Datapath) Endpoints(_ context.Context) ([]EndpointStatus, error) {
	eps, err := d.tree.EndpointMaps()
	if err != nil {
		return nil, err
	}
	type id struct {
		owner uint64
		index uint32
	}
	found := make(map[id]*EndpointStatus)
	err = eps.Addrs.Each(func(a netip.Addr, v *endpoint.Value) bool {
		s, ok := found[id{v.Owner, v.Ifindex}]
		if !ok {
			s = &EndpointStatus{
				Owner: v.Owner, Features: endpoint.FlagNames(v.Flags), HostIfindex: int(v.Ifindex), RouteIfindex: int(v.RouteIfindex),
				MAC: v.HardwareAddr().String(), GatewayMAC: v.GatewayAddr().String(), MTU: int(v.Mtu),
			}
			found[id{v.Owner, v.Ifindex}] = s
		}
		s.Addrs = append(s.Addrs, v.Prefix(a))
		return true
	})
	if err != nil {
		return nil, err
	}
	h, err := rtnl.New()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	out := make([]EndpointStatus, 0, len(found))
	for _, s := range found {
		if l, err := h.LinkByIndex(s.HostIfindex); err == nil {
			s.HostIfName = l.Name
		}
		c, _, err := eps.Stats.Get(uint32(s.HostIfindex))
		if err != nil {
			return nil, err
		}
		s.Stats = counters(c)
		slices.SortFunc(s.Addrs, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
		out = append(out, *s)
	}
	inside, err := d.podnsEndpoints(eps.Stats)
	if err != nil {
		return nil, err
	}
	out = append(out, inside...)
	slices.SortFunc(out, func(a, b EndpointStatus) int {
		return cmp.Or(cmp.Compare(a.HostIfindex, b.HostIfindex), cmp.Compare(a.Owner, b.Owner))
	})
	return out, nil
}

func counters(c endpoint.Counters) EndpointCounter {
	return EndpointCounter{
		RxPackets: c.RxPackets, RxBytes: c.RxBytes, TxPackets: c.TxPackets, TxBytes: c.TxBytes,
		RxFast: c.RxFast, TxFast: c.TxFast, Drops: c.Drops,
	}
}

// HostPorts returns the hostPorts in the order of address, protocol and port, with the sources of their allowlists and the names of the
// devices in their conditions.
func (d *Datapath) HostPorts(_ context.Context) ([]hostport.Entry, error) {
	m, err := d.tree.HostPortMap()
	if err != nil {
		return nil, err
	}
	lists, err := d.allowlists()
	if err != nil {
		return nil, err
	}
	sources, err := lists.All()
	if err != nil {
		return nil, err
	}
	h, err := rtnl.New()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	var out []hostport.Entry
	err = m.Each(func(e hostport.Entry) bool {
		e.AllowedSources, e.Conditions.InDevice = sources[e.Allowlist], inDevice(h, e.Conditions.InIfindex)
		out = append(out, e)
		return true
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(a, b hostport.Entry) int {
		return cmp.Or(a.HostIP.Compare(b.HostIP), cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.Port, b.Port))
	})
	return out, nil
}

// inDevice names the device of a condition, by its number if it does not exist any more.
func inDevice(h *rtnl.Handle, index uint32) string {
	if index == 0 {
		return ""
	}
	if l, err := h.LinkByIndex(int(index)); err == nil {
		return l.Name
	}
	return "#" + strconv.Itoa(int(index))
}

// Flows returns the connections that f matches, while the datapath goes on changing them: one may be seen twice or not at all
// when it moves during the walk. An error ends the sequence.
func (d *Datapath) Flows(ctx context.Context, f FlowFilter) iter.Seq2[Flow, error] {
	return func(yield func(Flow, error) bool) {
		now := conntrack.Now()
		for _, name := range []string{pintree.MapConntrack, pintree.MapConntrackUnassured} {
			m, err := d.tree.Pinned(name)
			if err != nil {
				yield(Flow{}, err)
				return
			}
			more := true
			err = conntrack.New(m).Each(func(r *conntrack.Record) bool {
				if ctx.Err() != nil {
					return false
				}
				s := newFlow(r, now)
				if f.matches(r, s) {
					more = yield(s, nil)
				}
				return more
			})
			if !more {
				return
			}
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				yield(Flow{}, err)
				return
			}
		}
	}
}

func (f FlowFilter) matches(r *conntrack.Record, s Flow) bool {
	switch {
	case r.IsIndex():
		return false
	case f.Owner != 0 && f.Owner != r.Owner:
		return false
	case f.Pod.IsValid() && f.Pod.Unmap() != s.Pod.Addr():
		return false
	case f.Proto != 0 && f.Proto != r.Proto:
		return false
	}
	return f.All || s.State != conntrack.StateExpired
}

func newFlow(r *conntrack.Record, now conntrack.Time) Flow {
	s := Flow{
		Proto: r.Proto, Pod: r.Local, Remote: r.Remote, State: r.State(now), Kind: r.Kind(), PodOpened: r.PodOpened(),
		Fast: r.Fast(), Flags: r.Flags.Names(), Age: r.Age(now).Round(shown), Idle: r.Idle(now).Round(shown),
		RxPackets: r.RxPackets, RxBytes: r.RxBytes, TxPackets: r.TxPackets, TxBytes: r.TxBytes, Owner: r.Owner,
	}
	if r.Translated() {
		s.Outside = r.Other.Local
	}
	return s
}
