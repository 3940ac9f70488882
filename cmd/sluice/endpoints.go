// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/loader"
)

// endpointView is one pod device as "endpoints -o json" prints it.
type endpointView struct {
	Owner        ownerView      `json:"owner"`
	Addresses    []netip.Prefix `json:"addresses"`
	Features     []string       `json:"features"`
	Device       string         `json:"device"` // host end; empty when it has gone
	Ifindex      int            `json:"ifindex"`
	RouteIfindex int            `json:"route_ifindex"`
	MAC          string         `json:"mac"`
	GatewayMAC   string         `json:"gateway_mac"`
	MTU          int            `json:"mtu"`
	RxPackets    uint64         `json:"rx_packets"` // toward the pod
	RxBytes      uint64         `json:"rx_bytes"`
	TxPackets    uint64         `json:"tx_packets"`
	TxBytes      uint64         `json:"tx_bytes"`
	RxFast       uint64         `json:"rx_fast_packets"` // of rx_packets, by the learned path
	TxFast       uint64         `json:"tx_fast_packets"`
	Drops        uint64         `json:"drops"`
	Netns        string         `json:"netns,omitempty"` // of a device without a host end: where it is, with its ifindex there
}

func newEndpoints(a *app) *cobra.Command {
	var filter ownerFilter
	c := &cobra.Command{
		Use:     "endpoints",
		Aliases: []string{"pods"},
		Short:   "List the pods' devices with their counters",
		Long: `List the pods' devices that the datapath serves, with their counters.

RX is toward the pod. FAST is the share of packets that took the learned path
and never entered the host's stack. Counters start when the pod is added.`,
		Example: `  sluice endpoints
  sluice endpoints --container 3f1c -w`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			views := []endpointView{}
			return a.withDatapath(c.Context(), func(dp loader.Interface) error {
				endpoints, err := dp.Endpoints(c.Context())
				if err != nil {
					return fmt.Errorf("read the endpoints: %w", err)
				}
				views = endpointViews(endpoints, a.owners(), filter)
				return a.print(views, func() error { return a.endpointTable(views, filter) })
			}, func() error { return a.nothing(views) })
		},
	}
	filter.flags(a, c)
	return c
}

func endpointViews(endpoints []loader.EndpointStatus, o owners, filter ownerFilter) []endpointView {
	views := make([]endpointView, 0, len(endpoints))
	for _, e := range endpoints {
		owner := o.view(e.Owner)
		if !filter.matches(owner) {
			continue
		}
		device, index := e.HostIfName, e.HostIfindex
		if e.Netns != "" {
			device, index = "in "+path.Base(e.Netns), e.Ifindex
		}
		views = append(views, endpointView{
			Owner: owner, Addresses: append([]netip.Prefix{}, e.Addrs...), Features: e.Features, Device: device, Ifindex: index, Netns: e.Netns,
			RouteIfindex: e.RouteIfindex, MAC: e.MAC, GatewayMAC: e.GatewayMAC, MTU: e.MTU,
			RxPackets: e.Stats.RxPackets, RxBytes: e.Stats.RxBytes, TxPackets: e.Stats.TxPackets, TxBytes: e.Stats.TxBytes,
			RxFast: e.Stats.RxFast, TxFast: e.Stats.TxFast, Drops: e.Stats.Drops,
		})
	}
	slices.SortStableFunc(views, func(x, y endpointView) int {
		return cmp.Or(cmp.Compare(x.Owner.Network, y.Owner.Network), cmp.Compare(x.Owner.ContainerID, y.Owner.ContainerID),
			cmp.Compare(x.Owner.IfName, y.Owner.IfName), cmp.Compare(x.Owner.ID, y.Owner.ID))
	})
	return views
}

func (a *app) endpointTable(views []endpointView, filter ownerFilter) error {
	if len(views) == 0 {
		return a.say("%s", filter.none("The datapath serves no pod."))
	}
	t := table{columns: []column{
		{name: "OWNER", cut: true}, {name: "ADDRESSES", cut: true}, {name: "DEVICE", drop: 1}, {name: "FEATURES", drop: 2},
		{name: "RX", align: right}, {name: "TX", align: right}, {name: "FAST", align: right, drop: 3}, {name: "DROPS", align: right},
	}}
	if a.wide {
		t.columns = append(t.columns, column{name: "MAC"}, column{name: "MTU", align: right},
			column{name: "RX PKTS", align: right}, column{name: "TX PKTS", align: right})
	}
	for _, v := range views {
		device := v.Device
		if device == "" {
			device = "gone"
		}
		cells := []string{
			v.Owner.text(a.wide), addrsText(v.Addresses), device, strings.Join(v.Features, ","),
			bytesText(v.RxBytes), bytesText(v.TxBytes), v.fastText(), countText(v.Drops),
		}
		if a.wide {
			cells = append(cells, v.MAC, strconv.Itoa(v.MTU), countText(v.RxPackets), countText(v.TxPackets))
		}
		t.add(cells...)
	}
	return a.table(&t)
}

func (v endpointView) fastText() string {
	all := v.RxPackets + v.TxPackets
	if all == 0 {
		return "-"
	}
	return fmt.Sprintf("%d%%", 100*(v.RxFast+v.TxFast)/all)
}

func addrsText(addrs []netip.Prefix) string {
	s := make([]string, 0, len(addrs))
	for _, p := range addrs {
		s = append(s, p.Addr().String())
	}
	return strings.Join(s, ",")
}
