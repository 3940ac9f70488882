// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/ipproto"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
)

// hostPortView is one published port as "hostports -o json" prints it.
type hostPortView struct {
	Proto    string     `json:"proto"`
	HostIP   netip.Addr `json:"host_ip"` // unspecified: every address of the node in that family
	HostPort uint16     `json:"host_port"`
	PodIP    netip.Addr `json:"pod_ip"` // unspecified: see Claim
	PodPort  uint16     `json:"pod_port"`
	SNAT     bool       `json:"snat"`
	MasqAll  bool       `json:"masq_all"`

	AllowedSources []netip.Prefix `json:"allowed_sources"`      // empty: everybody
	Conditions     string         `json:"conditions,omitempty"` // as iptables(8) words them

	Claim bool `json:"claim,omitempty"` // netfilter rules of the owner have the port

	Generation uint64    `json:"generation"`
	Owner      ownerView `json:"owner"`
}

func newHostPorts(a *app) *cobra.Command {
	var filter ownerFilter
	c := &cobra.Command{
		Use:     "hostports",
		Aliases: []string{"ports"},
		Short:   "List the published ports of the node",
		Long: `List the published ports of the node and the pods they lead to.

0.0.0.0 and [::] stand for every address of the node in their family.
"netfilter" stands for a port that the pod has by rules of iptables or nftables.`,
		Example: `  sluice hostports
  sluice hostports --network dbnet -o json`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			views := []hostPortView{}
			err := a.withDatapath(c.Context(), func(dp loader.Interface) error {
				ports, err := dp.HostPorts(c.Context())
				if err != nil {
					return fmt.Errorf("read the published ports: %w", err)
				}
				views = hostPortViews(ports, a.owners(), filter)
				return a.print(views, func() error { return a.hostPortTable(views, filter) })
			}, func() error { return a.nothing(views) })
			return err
		},
	}
	filter.flags(a, c)
	return c
}

func hostPortViews(ports []hostport.Entry, o owners, filter ownerFilter) []hostPortView {
	views := make([]hostPortView, 0, len(ports))
	for _, p := range ports {
		owner := o.view(p.Owner)
		if !filter.matches(owner) {
			continue
		}
		views = append(views, hostPortView{
			Proto: ipproto.Name(p.Proto), HostIP: p.HostIP, HostPort: p.Port, PodIP: p.PodIP, PodPort: p.PodPort,
			SNAT: p.SNAT, MasqAll: p.MasqAll, Generation: p.Generation, Owner: owner,
			AllowedSources: append([]netip.Prefix{}, p.AllowedSources...), Conditions: conditionsText(p.Conditions), Claim: p.IsClaim(),
		})
	}
	return views
}

func (a *app) hostPortTable(views []hostPortView, filter ownerFilter) error {
	if len(views) == 0 {
		return a.say("%s", filter.none("No port is published."))
	}
	t := table{columns: []column{{name: "PROTO"}, {name: "HOST"}, {name: "POD"}, {name: "OWNER", cut: true}}}
	if a.wide {
		t.columns = append(t.columns, column{name: "SNAT"}, column{name: "SOURCES"}, column{name: "CONDITIONS"}, column{name: "GENERATION", align: right})
	}
	for _, v := range views {
		pod := netip.AddrPortFrom(v.PodIP, v.PodPort).String()
		if v.Claim {
			pod = "netfilter"
		}
		cells := []string{
			v.Proto,
			netip.AddrPortFrom(v.HostIP, v.HostPort).String(),
			pod,
			v.Owner.text(a.wide),
		}
		if a.wide {
			sources := "all"
			if len(v.AllowedSources) > 0 {
				sources = strings.Trim(fmt.Sprint(v.AllowedSources), "[]")
			}
			cells = append(cells, yesNo(v.SNAT), sources, v.Conditions, strconv.FormatUint(v.Generation, 10))
		}
		t.add(cells...)
	}
	return a.table(&t)
}

func conditionsText(c hostport.Conditions) string {
	var words []string
	add := func(not bool, option, value string) {
		if not {
			words = append(words, "!")
		}
		words = append(words, option, value)
	}
	if c.Source.IsValid() {
		add(c.NotSource, "-s", c.Source.String())
	}
	if c.Dest.IsValid() {
		add(c.NotDest, "-d", c.Dest.String())
	}
	if c.InDevice != "" {
		add(c.NotIn, "-i", c.InDevice)
	}
	return strings.Join(words, " ")
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
