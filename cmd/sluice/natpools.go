// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/ipproto"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
)

// natPoolsView is what "nat pools -o json" prints.
type natPoolsView struct {
	Ports      []string      `json:"ports"`       // ranges
	PortsTotal int           `json:"ports_total"` // toward one destination, by one address and protocol
	Exemptions []string      `json:"exemptions"`  // destinations that are never masqueraded, beside the pod's own subnet
	Exhausted  uint64        `json:"exhausted"`   // packets dropped for want of a port
	NoAddress  uint64        `json:"no_address"`  // packets dropped because the uplink has no address
	Pods       []ownerView   `json:"pods"`        // that are masqueraded
	Sources    []natPoolView `json:"sources"`
}

// natPoolView is an address of the node that pods are seen by.
type natPoolView struct {
	Address  netip.Addr     `json:"address"`
	Proto    string         `json:"proto"`
	Flows    int            `json:"flows"`
	Pods     int            `json:"pods"`
	Busiest  netip.AddrPort `json:"busiest"` // the destination with the most
	InUse    int            `json:"in_use"`  // ports toward it
	PortFree *int           `json:"free"`    // null: it is not known which ports there are
}

func newNATPools(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "pools",
		Short: "Show the masquerade addresses and how many ports are left",
		Long: `Show which pods are masqueraded, with which addresses of the node, and how many
ports are in use. One port can serve many destinations (address, port and
protocol) at once. IN USE and FREE are the figures of the busiest destination.`,
		Example: `  sluice nat pools
  sluice nat pools -o json`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withDatapath(c.Context(), func(dp loader.Interface) error {
				v, err := a.natPools(c.Context(), dp)
				if err != nil {
					return err
				}
				return a.print(v, func() error { return a.natPoolsScreen(v) })
			}, func() error {
				return a.nothing(natPoolsView{Ports: []string{}, Exemptions: []string{}, Pods: []ownerView{}, Sources: []natPoolView{}})
			})
		},
	}
}

func (a *app) natPools(ctx context.Context, dp loader.Interface) (*natPoolsView, error) {
	st, err := dp.Status(ctx)
	if err != nil {
		return nil, err
	}
	sums, err := dp.DropSums(ctx)
	if err != nil {
		return nil, err
	}
	owners := a.owners()
	v := &natPoolsView{
		Ports: append([]string{}, st.Config.SNATPorts...), PortsTotal: portsIn(st.Config.SNATPorts), Pods: []ownerView{},
		Exemptions: append([]string{}, st.Config.NonMasqueradeCIDRs...),
		Exhausted:  sums[drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_SNAT_PORTS)].Total(),
		NoAddress:  sums[drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_NO_SNAT_ADDR)].Total(),
	}
	for _, e := range st.Endpoints {
		if slices.Contains(e.Features, "masquerade") {
			v.Pods = append(v.Pods, owners.view(e.Owner))
		}
	}
	v.Sources, err = natPools(dp.Flows(ctx, loader.FlowFilter{}), v.PortsTotal)
	return v, err
}

// natPools sums the masqueraded flows up by the address and protocol they are seen by.
func natPools(flows func(func(loader.Flow, error) bool), total int) ([]natPoolView, error) {
	type source struct {
		addr  netip.Addr
		proto uint8
	}
	type use struct {
		flows  int
		owners map[uint64]bool
		toward map[netip.AddrPort]int
	}
	found := map[source]*use{}
	for f, err := range flows {
		if err != nil {
			return nil, fmt.Errorf("read the flows: %w", err)
		}
		if f.Kind != "masquerade" || !f.Outside.IsValid() {
			continue
		}
		s := source{f.Outside.Addr(), f.Proto}
		u := found[s]
		if u == nil {
			u = &use{owners: map[uint64]bool{}, toward: map[netip.AddrPort]int{}}
			found[s] = u
		}
		u.flows++
		u.owners[f.Owner] = true
		if f.Outside.Port() != f.Pod.Port() { // else it keeps its own, which needs none of the pool
			u.toward[f.Remote]++
		}
	}
	views := []natPoolView{}
	for s, u := range found {
		v := natPoolView{Address: s.addr, Proto: ipproto.Name(s.proto), Flows: u.flows, Pods: len(u.owners)}
		for to, n := range u.toward {
			if n > v.InUse || (n == v.InUse && to.Compare(v.Busiest) < 0) {
				v.Busiest, v.InUse = to, n
			}
		}
		if total > 0 {
			free := max(0, total-v.InUse)
			v.PortFree = &free
		}
		views = append(views, v)
	}
	slices.SortFunc(views, func(x, y natPoolView) int {
		return cmp.Or(x.Address.Compare(y.Address), cmp.Compare(x.Proto, y.Proto))
	})
	return views, nil
}

// portsIn counts the ports in ranges as "61000-65535".
func portsIn(ranges []string) int {
	sum := 0
	for _, r := range ranges {
		first, last, _ := strings.Cut(r, "-")
		a, errA := strconv.Atoi(first)
		b, errB := strconv.Atoi(last)
		if errA == nil && errB == nil && b >= a {
			sum += b - a + 1
		}
	}
	return sum
}

func (a *app) natPoolsScreen(v *natPoolsView) error {
	plain, warn := a.colours.plain, a.colours.plain
	if v.Exhausted > 0 {
		warn = a.colours.red
	}
	exempt := "the pod's own subnet, multicast"
	if len(v.Exemptions) > 0 {
		exempt += ", " + strings.Join(v.Exemptions, ", ")
	}
	ports := "not known"
	if v.PortsTotal > 0 {
		ports = fmt.Sprintf("%s: %d toward one destination", strings.Join(v.Ports, ", "), v.PortsTotal)
	} else {
		exempt += "; more is not known"
	}
	pods := make([]string, 0, len(v.Pods))
	for _, p := range v.Pods {
		pods = append(pods, p.text(a.wide))
	}
	if len(pods) == 0 {
		pods = []string{"none"}
	}
	for _, f := range []struct {
		name, text string
		paint      func(string) string
	}{
		{"pods", strings.Join(pods, ", "), plain},
		{"not to", exempt, plain},
		{"ports", ports, plain},
		{"exhausted", plural(int(v.Exhausted), "packet") + " dropped for want of a port", warn},
		{"no address", plural(int(v.NoAddress), "packet") + " dropped for want of an address", plain},
	} {
		if err := a.field(f.name, f.text, f.paint); err != nil {
			return err
		}
	}
	if len(v.Sources) == 0 {
		return a.say("No connection is masqueraded.")
	}
	t := table{columns: []column{
		{name: "AS"}, {name: "PROTO"}, {name: "FLOWS", align: right}, {name: "PODS", align: right},
		{name: "BUSIEST DESTINATION", drop: 1}, {name: "IN USE", align: right}, {name: "FREE", align: right},
	}}
	for _, s := range v.Sources {
		free := "?"
		if s.PortFree != nil {
			free = strconv.Itoa(*s.PortFree)
		}
		t.add(s.Address.String(), s.Proto, strconv.Itoa(s.Flows), strconv.Itoa(s.Pods), s.Busiest.String(), strconv.Itoa(s.InUse), free)
	}
	if err := a.say(""); err != nil {
		return err
	}
	return a.table(&t)
}
