// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
	podnsmap "github.com/sluice-cni/sluice/pkg/maps/podns"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// Endpoints returns the pod devices, each with its addresses, in the order of the host end's index.
func (d *Datapath) Endpoints(_ context.Context) ([]EndpointStatus, error) {
	all, _, err := d.endpointStatus()
	return all, err
}

// endpointStatus is Endpoints, with the counters of all pods, of those that have gone too, from one reading.
func (d *Datapath) endpointStatus() ([]EndpointStatus, EndpointCounter, error) {
	eps, err := d.tree.EndpointMaps()
	if err != nil {
		return nil, EndpointCounter{}, err
	}
	counted, total, err := eps.Stats.All()
	if err != nil {
		return nil, EndpointCounter{}, fmt.Errorf("counters of pods: %w", err)
	}
	all, err := d.endpointStatusWith(eps, counted)
	return all, counters(total), err
}

func (d *Datapath) endpointStatusWith(eps pintree.EndpointMaps, counted map[uint32]endpoint.Counters) ([]EndpointStatus, error) {
	type id struct {
		owner uint64
		index uint32
	}
	found := make(map[id]*EndpointStatus)
	err := eps.Addrs.Each(func(a netip.Addr, v *endpoint.Value) bool {
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
		s.Stats = counters(counted[uint32(s.HostIfindex)])
		slices.SortFunc(s.Addrs, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
		out = append(out, *s)
	}
	inside, err := d.podnsWithoutHostVeth()
	if err != nil {
		return nil, err
	}
	for _, dev := range inside {
		out = append(out, EndpointStatus{
			Owner: dev.Owner, Features: endpoint.FlagNames(dev.Flags), Number: int(dev.Number), Netns: dev.Netns, Ifindex: dev.Ifindex,
			Stats: counters(counted[podnsmap.Key(dev.Number)]),
		})
	}
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
