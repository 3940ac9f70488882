// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/loader"
)

// policyView is one policy as "firewall -o json" prints it.
type policyView struct {
	ID            uint16              `json:"id"`
	IngressPolicy string              `json:"ingress_policy"`
	Pods          []ownerView         `json:"pods"`
	Ingress       []loader.RuleStatus `json:"ingress"`
	Egress        []loader.RuleStatus `json:"egress"`
}

func newFirewall(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "firewall",
		Short: "List the policies of pods, with what each rule decided",
		Long: `List the policies of pods, with what each rule decided.

Pods with the same ingressPolicy and rules share a policy. HITS are connections
that a rule allowed, or packets that it denied; the last line of a direction is
its default.`,
		Example: `  sluice firewall
  sluice firewall -o json`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			views := []policyView{}
			return a.withDatapath(c.Context(), func(dp loader.Interface) error {
				policies, err := dp.Policies(c.Context())
				if err != nil {
					return fmt.Errorf("read the policies: %w", err)
				}
				views = policyViews(policies, a.owners())
				return a.print(views, func() error { return a.policyTables(views) })
			}, func() error { return a.nothing(views) })
		},
	}
}

func policyViews(policies []loader.PolicyStatus, o owners) []policyView {
	views := make([]policyView, 0, len(policies))
	for _, p := range policies {
		v := policyView{ID: p.ID, IngressPolicy: string(p.Mode), Pods: []ownerView{}, Ingress: p.Ingress, Egress: p.Egress}
		for _, owner := range p.Owners {
			v.Pods = append(v.Pods, o.view(owner))
		}
		views = append(views, v)
	}
	return views
}

func (a *app) policyTables(views []policyView) error {
	if len(views) == 0 {
		return a.say("No pod is under a policy.")
	}
	for i, v := range views {
		if i > 0 {
			if err := a.say(""); err != nil {
				return err
			}
		}
		if err := a.say("policy %d, ingressPolicy %s, %s", v.ID, v.IngressPolicy, plural(len(v.Pods), "pod")); err != nil {
			return err
		}
		t := table{columns: []column{
			{name: "DIRECTION"}, {name: "RULE"}, {name: "ACTION"}, {name: "NETWORK"}, {name: "PROTO"}, {name: "PORTS"}, {name: "HITS", align: right},
		}}
		for _, r := range v.Ingress {
			t.add(ruleCells("ingress", r)...)
		}
		for _, r := range v.Egress {
			t.add(ruleCells("egress", r)...)
		}
		if err := a.table(&t); err != nil {
			return err
		}
		if !a.wide {
			continue
		}
		for _, p := range v.Pods {
			if err := a.say("  %s", p.text(true)); err != nil {
				return err
			}
		}
	}
	return nil
}

func ruleCells(direction string, r loader.RuleStatus) []string {
	number, action, network, ports := "default", "deny", "any", "any"
	if r.Number >= 0 {
		number = strconv.Itoa(r.Number)
	}
	if r.Allow {
		action = "allow"
	}
	if r.Network.IsValid() {
		network = r.Network.String()
	}
	if r.Ports != "" {
		ports = r.Ports
	}
	return []string{direction, number, action, network, r.Protocol, ports, countText(r.Hits)}
}
