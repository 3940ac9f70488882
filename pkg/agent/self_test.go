// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/agent/agentconf"
	"github.com/sluice-cni/sluice/pkg/agent/nodes"
	"github.com/sluice-cni/sluice/pkg/agent/report"
	"github.com/sluice-cni/sluice/pkg/agent/routes"
)

func cidrs(s ...string) (out []netip.Prefix) {
	for _, p := range s {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func TestSelfProblem(t *testing.T) {
	t.Parallel()
	conf := agentconf.Default()
	conf.ClusterCIDRs, conf.ServiceCIDRs = cidrs("10.244.0.0/16"), cidrs("10.96.0.0/12")
	made := time.Unix(1000, 0)
	self := func(list ...string) routes.Node {
		return routes.Node{Name: "m", PodCIDRs: cidrs(list...), InternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Created: made}
	}
	other := func(name string, at time.Time, list ...string) routes.Node {
		return routes.Node{Name: name, PodCIDRs: cidrs(list...), Created: at}
	}
	older, younger := made.Add(-time.Second), made.Add(time.Second)
	for name, tt := range map[string]struct {
		v    nodes.View
		want report.Reason
		text string
	}{
		"good":                    {nodes.View{UID: "u", Self: self("10.244.1.0/24", "fd24::/64")}, "", ""},
		"not in the cluster":      {nodes.View{}, report.PodCIDRMissing, "no Node object"},
		"none":                    {nodes.View{UID: "u", Self: self()}, report.PodCIDRMissing, "--allocate-node-cidrs"},
		"no network":              {nodes.View{UID: "u", Self: self("10.244.1.0/24"), Bad: []string{"10.244.1.1/24"}}, report.PodCIDRInvalid, "10.244.1.1/24"},
		"no room":                 {nodes.View{UID: "u", Self: self("10.244.1.0/31")}, report.PodCIDRInvalid, "no room"},
		"outside of the cluster":  {nodes.View{UID: "u", Self: self("10.245.1.0/24")}, report.PodCIDRInvalid, "not inside clusterCIDRs"},
		"wider than the cluster":  {nodes.View{UID: "u", Self: self("10.240.0.0/12")}, report.PodCIDRInvalid, "not inside clusterCIDRs"},
		"of Services":             {nodes.View{UID: "u", Self: self("10.96.1.0/24")}, report.PodCIDRInvalid, "serviceCIDRs"},
		"an address of lo":        {nodes.View{UID: "u", Self: self("10.244.9.0/24")}, report.PodCIDRInvalid, "10.244.9.9"},
		"of lo, IPv6":             {nodes.View{UID: "u", Self: self("10.244.1.0/24", "fd24:9::/64")}, report.PodCIDRInvalid, "fd24:9::9"},
		"an older node has it":    {nodes.View{UID: "u", Self: self("10.244.1.0/24"), Others: []routes.Node{other("z", older, "10.244.0.0/16")}}, report.PodCIDRConflict, "node z"},
		"a younger node wants it": {nodes.View{UID: "u", Self: self("10.244.1.0/24"), Others: []routes.Node{other("a", younger, "10.244.1.0/24")}}, "", ""},
		"of one age, name before": {nodes.View{UID: "u", Self: self("10.244.1.0/24"), Others: []routes.Node{other("a", made, "10.244.1.128/25")}}, report.PodCIDRConflict, "node a"},
		"of one age, name behind": {nodes.View{UID: "u", Self: self("10.244.1.0/24"), Others: []routes.Node{other("z", made, "10.244.1.128/25")}}, "", ""},
	} {
		reason, err := selfProblem(conf, tt.v, []netip.Addr{netip.MustParseAddr("10.244.9.9"), netip.MustParseAddr("fd24:9::9")})
		if reason != tt.want || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.text)) {
			t.Errorf("%s: %s, %v, want %s", name, reason, err, tt.want)
		}
	}
	conf.ClusterCIDRs = nil
	if reason, err := selfProblem(conf, nodes.View{UID: "u", Self: self("192.0.2.0/24")}, nil); reason != report.PodCIDRInvalid {
		t.Errorf("a podCIDR with the node's own address: %s, %v", reason, err)
	}
}

// A family for which clusterCIDRs has nothing is masqueraded between nodes. That is a problem only where both nodes have pods of it.
func TestMasqueraded(t *testing.T) {
	t.Parallel()
	dual := nodes.View{UID: "u", Self: routes.Node{PodCIDRs: cidrs("10.244.1.0/24", "fd24:0:0:1::/64")}, Others: []routes.Node{{PodCIDRs: cidrs("10.244.2.0/24", "fd24:0:0:2::/64")}}}
	single := dual
	single.Self.PodCIDRs = cidrs("10.244.1.0/24")
	alone := dual
	alone.Others = nil
	for name, tt := range map[string]struct {
		v            nodes.View
		cluster, non []netip.Prefix
		want         string
		plain        bool
	}{
		"both families":              {v: dual, cluster: cidrs("10.244.0.0/16", "fd24::/48")},
		"IPv4 alone":                 {v: dual, cluster: cidrs("10.244.0.0/16"), want: "fd24:0:0:2::/64"},
		"IPv6 alone":                 {v: dual, cluster: cidrs("fd24::/48"), want: "10.244.2.0/24"},
		"none":                       {v: dual, want: "10.244.2.0/24"},
		"exempt otherwise":           {v: dual, cluster: cidrs("10.244.0.0/16"), non: cidrs("fd00::/8")},
		"no pods of it on this node": {v: single, cluster: cidrs("10.244.0.0/16")},
		"no other node":              {v: alone},
		"no masquerade":              {v: dual, plain: true},
		"out of clusterCIDRs, which is another problem": {v: dual, cluster: cidrs("10.0.0.0/24", "fd24::/48")},
	} {
		c := agentconf.Default()
		c.ClusterCIDRs, c.NonMasqueradeCIDRs, c.Network.IPMasq = tt.cluster, tt.non, !tt.plain
		if got := masqueraded(c, tt.v); got.IsValid() != (tt.want != "") || got.IsValid() && got.String() != tt.want {
			t.Errorf("%s: %s, want %q", name, got, tt.want)
		}
	}
}
