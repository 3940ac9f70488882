// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// A node needs one CIDR of each family and a few addresses. More would only make the comparison of all claims slow.
const (
	maxCIDRs = 8
	maxIPs   = 16
)

// widest are the shortest pod CIDRs of each family that get a route.
const (
	widest4 = 8
	widest6 = 16
)

// notForPods are networks that no pod can have an address of.
var notForPods = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("224.0.0.0/3"),
	netip.MustParsePrefix("::/96"), netip.MustParsePrefix("::ffff:0:0/96"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("ff00::/8"),
}

// claim is an address or a network that a node says it has.
type claim struct {
	node    int // index in the list of nodes, 0 is self
	prefix  netip.Prefix
	cidr    bool
	refused bool
	rivals  []int // indexes of overlapping claims of other nodes
}

func (c *claim) String() string {
	if c.cidr {
		return "podCIDR " + c.prefix.String()
	}
	return "InternalIP " + c.prefix.Addr().String()
}

// checkFacts returns the nodes that can have routes, with the facts that can be used, in the order of their names. The rest is in the errors.
// A fact that two nodes claim belongs to the older one, and to self before all others.
func checkFacts(cfg *Config, self Node, others []Node) ([]Node, []error) {
	nodes := append([]Node{self}, others...)
	var errs []error
	var claims []claim
	skip := make([]bool, len(nodes))
	for i, n := range nodes {
		if i > 0 && n.Name == self.Name {
			skip[i] = true
			continue
		}
		if len(n.PodCIDRs) > maxCIDRs || len(n.InternalIPs) > maxIPs {
			errs = append(errs, &NodeError{n.Name, fmt.Sprintf("%d podCIDRs and %d InternalIPs: at most %d and %d are used; remove some", len(n.PodCIDRs), len(n.InternalIPs), maxCIDRs, maxIPs)})
			skip[i] = true
			continue
		}
		mine, bad := ownClaims(cfg, i, n)
		claims = append(claims, mine...)
		errs = append(errs, bad...)
	}
	findRivals(claims)
	errs = append(errs, settle(claims, nodes)...)
	good := make([]Node, len(nodes))
	for i, n := range nodes {
		good[i] = Node{Name: n.Name, Annotations: n.Annotations, Created: n.Created}
	}
	for _, c := range claims {
		if c.refused {
			continue
		}
		if n := &good[c.node]; c.cidr {
			n.PodCIDRs = append(n.PodCIDRs, c.prefix)
		} else {
			n.InternalIPs = append(n.InternalIPs, c.prefix.Addr())
		}
	}
	usable := make([]Node, 0, len(others))
	for i := 1; i < len(good); i++ {
		if !skip[i] {
			usable = append(usable, good[i])
		}
	}
	slices.SortFunc(usable, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return usable, errs
}

// ownClaims checks what can be said of a node without the others.
func ownClaims(cfg *Config, node int, n Node) (claims []claim, errs []error) {
	refuse := func(c claim, why string) {
		if node > 0 { // this node's own facts have their place in the agent
			errs = append(errs, &NodeError{n.Name, c.String() + ": " + why})
		}
	}
	for _, a := range n.InternalIPs {
		a = a.Unmap().WithZone("")
		if !a.IsValid() {
			continue
		}
		c := claim{node: node, prefix: netip.PrefixFrom(a, a.BitLen())}
		if a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
			refuse(c, "not an address of a node")
			continue
		}
		if limits(cfg, c.prefix) && inCluster(cfg, c.prefix) {
			refuse(c, "inside clusterCIDRs, where the addresses of pods are")
			continue
		}
		if !slices.ContainsFunc(claims, func(o claim) bool { return o.prefix == c.prefix }) {
			claims = append(claims, c)
		}
	}
	addrs := len(claims)
	for _, p := range n.PodCIDRs {
		c := claim{node: node, prefix: p, cidr: true}
		why := badCIDR(cfg, p)
		if i := slices.IndexFunc(claims, func(o claim) bool { return o.prefix.Overlaps(p) }); why == "" && i >= 0 {
			if i >= addrs {
				continue // twice in one list
			}
			why = fmt.Sprintf("holds the node's own address %s", claims[i].prefix.Addr())
		}
		if why != "" {
			refuse(c, why)
			continue
		}
		claims = append(claims, c)
	}
	return claims, errs
}

// badCIDR says why a network cannot be a node's pod CIDR, or nothing.
func badCIDR(cfg *Config, p netip.Prefix) string {
	overlaps := func(q netip.Prefix) bool { return q.Overlaps(p) }
	switch {
	case !p.IsValid() || p != p.Masked():
		return "not a network"
	case p.Addr().Is4() && p.Bits() < widest4 || p.Addr().Is6() && p.Bits() < widest6:
		return fmt.Sprintf("too wide for one node: at most /%d of IPv4 and /%d of IPv6 get a route", widest4, widest6)
	case slices.ContainsFunc(notForPods, overlaps):
		return "no network for pods"
	case slices.ContainsFunc(cfg.ServiceCIDRs, overlaps):
		return "overlaps serviceCIDRs"
	case limits(cfg, p) && !inCluster(cfg, p):
		return "not inside clusterCIDRs; add it there, or give the node another podCIDR"
	}
	return ""
}

// inCluster says that p is inside clusterCIDRs.
func inCluster(cfg *Config, p netip.Prefix) bool {
	return slices.ContainsFunc(cfg.ClusterCIDRs, func(c netip.Prefix) bool { return c.Bits() <= p.Bits() && c.Contains(p.Addr()) })
}

// limits says that clusterCIDRs has something for p's family.
func limits(cfg *Config, p netip.Prefix) bool {
	return slices.ContainsFunc(cfg.ClusterCIDRs, func(c netip.Prefix) bool { return c.Addr().Is4() == p.Addr().Is4() })
}

// findRivals notes in each claim which claims of other nodes overlap it. Networks nest or are apart. So the claims that hold
// one lie on a stack when all are visited in order. Two other nodes may name one InternalIP: a node can write any into its
// status, and that only leads its own traffic astray. So it does not take the address from its owner.
func findRivals(claims []claim) {
	order := make([]int, len(claims))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		p, q := claims[a].prefix, claims[b].prefix
		return cmp.Or(p.Addr().Compare(q.Addr()), p.Bits()-q.Bits(), a-b)
	})
	var stack []int
	for _, i := range order {
		for len(stack) > 0 && !claims[stack[len(stack)-1]].prefix.Overlaps(claims[i].prefix) {
			stack = stack[:len(stack)-1]
		}
		for _, j := range stack {
			a, b := &claims[i], &claims[j]
			if a.node != b.node && (a.cidr || b.cidr || a.node == 0 || b.node == 0) {
				claims[i].rivals = append(claims[i].rivals, j)
				claims[j].rivals = append(claims[j].rivals, i)
			}
		}
		stack = append(stack, i)
	}
}

// settle refuses claims that overlap one of an older node, and those of nodes of one age that overlap each other.
func settle(claims []claim, nodes []Node) (errs []error) {
	refuse := func(i, by int, why string) {
		c, other := &claims[i], &claims[by]
		c.refused = true
		errs = append(errs, &NodeError{nodes[c.node].Name, fmt.Sprintf("%s: overlaps %s of node %s, %s; each node needs its own", c, other, nodes[other.node].Name, why)})
	}
	// rival returns the first one of i's rivals that has not been refused, and is older by as much as is asked for.
	rival := func(i, age int) int {
		k := slices.IndexFunc(claims[i].rivals, func(j int) bool { return !claims[j].refused && byAge(claims, nodes, j, i) == age })
		if k < 0 {
			return -1
		}
		return claims[i].rivals[k]
	}
	for _, group := range contestedByAge(claims, nodes) {
		for _, i := range group {
			if by := rival(i, -1); by >= 0 {
				refuse(i, by, "which has it for longer")
			}
		}
		ties := make(map[int]int)
		for _, i := range group {
			if by := rival(i, 0); by >= 0 && !claims[i].refused {
				ties[i] = by
			}
		}
		for i, by := range ties {
			refuse(i, by, "and neither is older")
		}
	}
	return errs
}

// contestedByAge returns the claims that have rivals, the oldest first, and those of one age together.
func contestedByAge(claims []claim, nodes []Node) (groups [][]int) {
	var contested []int
	for i := range claims {
		if len(claims[i].rivals) > 0 {
			contested = append(contested, i)
		}
	}
	slices.SortStableFunc(contested, func(a, b int) int { return byAge(claims, nodes, a, b) })
	for _, i := range contested {
		if n := len(groups); n > 0 && byAge(claims, nodes, groups[n-1][0], i) == 0 {
			groups[n-1] = append(groups[n-1], i)
		} else {
			groups = append(groups, []int{i})
		}
	}
	return groups
}

// byAge compares the nodes of two claims. This node comes first, and those of unknown age last.
func byAge(claims []claim, nodes []Node, a, b int) int {
	x, y := nodes[claims[a].node].Created, nodes[claims[b].node].Created
	switch {
	case claims[a].node == 0 || claims[b].node == 0:
		return cmp.Compare(min(claims[a].node, 1), min(claims[b].node, 1))
	case x.IsZero() && !y.IsZero():
		return 1
	case y.IsZero() && !x.IsZero():
		return -1
	}
	return x.Compare(y)
}

// ownerOf picks the node that keeps an identifier which several claim in their annotations: the one that had it at the last Sync,
// or that the kernel has it for, or the oldest. Annotations change at any time, so age alone would let an old node take what a
// younger one has. -1 means that none has it.
func ownerOf[T any](all []T, node func(T) Node, last string, has func(T) bool) int {
	if len(all) == 1 {
		return 0
	}
	if i := slices.IndexFunc(all, func(c T) bool { return node(c).Name == last }); i >= 0 {
		return i
	}
	one := func(is func(T) bool) int {
		i := slices.IndexFunc(all, is)
		if i >= 0 && slices.ContainsFunc(all[i+1:], is) {
			return -1
		}
		return i
	}
	if i := one(has); i >= 0 {
		return i
	}
	oldest := time.Time{}
	for _, c := range all {
		if t := node(c).Created; !t.IsZero() && (oldest.IsZero() || t.Before(oldest)) {
			oldest = t
		}
	}
	return one(func(c T) bool { return !oldest.IsZero() && node(c).Created.Equal(oldest) })
}
