// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/agent/agentconf"
	"github.com/sluice-cni/sluice/pkg/agent/conflist"
	"github.com/sluice-cni/sluice/pkg/agent/nodes"
	"github.com/sluice-cni/sluice/pkg/agent/report"
	"github.com/sluice-cni/sluice/pkg/agent/routes"
	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// checkSelf reports whether pods of this node may have addresses of its pod CIDRs. If not, the network's configuration stays as it is,
// or missing.
func (a *agent) checkSelf(v nodes.View) bool {
	own, err := ownAddrs()
	if err != nil {
		a.report.Problem("podCIDR", report.PodCIDRInvalid, err.Error())
		return false
	}
	reason, err := selfProblem(a.Config, v, own)
	if reason == "" {
		a.report.Clear("podCIDR")
		return true
	}
	a.report.Problem("podCIDR", reason, err.Error())
	return false
}

// ownAddrs are the addresses of the node that no pod may get.
func ownAddrs() ([]netip.Addr, error) {
	h, err := rtnl.New()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	return routes.OwnAddrs(h)
}

func selfProblem(c *agentconf.Config, v nodes.View, own []netip.Addr) (report.Reason, error) {
	cidrs := v.Self.PodCIDRs
	switch {
	case v.UID == "":
		return report.PodCIDRMissing, errors.New("the cluster has no Node object of this name")
	case len(v.Bad) > 0:
		return report.PodCIDRInvalid, fmt.Errorf("spec.podCIDRs: %q: not a network", v.Bad)
	case len(cidrs) == 0:
		return report.PodCIDRMissing, errors.New("spec.podCIDRs is empty: the controller manager needs --allocate-node-cidrs, or another controller must set it")
	}
	if err := conflist.Check(cidrs); err != nil {
		return report.PodCIDRInvalid, err
	}
	for _, p := range cidrs {
		if i := slices.IndexFunc(c.ServiceCIDRs, p.Overlaps); i >= 0 {
			return report.PodCIDRInvalid, fmt.Errorf("podCIDR %s: overlaps %s of serviceCIDRs", p, c.ServiceCIDRs[i])
		}
		if outside(c.ClusterCIDRs, p) {
			return report.PodCIDRInvalid, fmt.Errorf("podCIDR %s: not inside clusterCIDRs %v; add it there", p, c.ClusterCIDRs)
		}
		for _, ip := range slices.Concat(v.Self.InternalIPs, own) {
			if p.Contains(ip) {
				return report.PodCIDRInvalid, fmt.Errorf("podCIDR %s: holds the node's own address %s", p, ip)
			}
		}
	}
	if other, p := rival(v.Self, v.Others); other != "" {
		return report.PodCIDRConflict, fmt.Errorf("podCIDR %s: node %s has had it for longer; give this node another one: delete the Node object and start kubelet again", p, other)
	}
	return "", nil
}

// checkExempt reports pods of other nodes that see this node's address instead of a pod's.
func (a *agent) checkExempt(v nodes.View) {
	p := masqueraded(a.Config, v)
	if !p.IsValid() {
		a.report.Clear("exempt networks")
		return
	}
	a.report.Problem("exempt networks", report.PodsMasqueraded,
		fmt.Sprintf("podCIDR %s of another node is in no network of clusterCIDRs: its pods see this node's address; add the pods' network of that family there", p))
}

// masqueraded returns a pod CIDR of another node, of a family that clusterCIDRs has nothing for, to which this node's pods are masqueraded.
func masqueraded(c *agentconf.Config, v nodes.View) netip.Prefix {
	if !c.Network.IPMasq {
		return netip.Prefix{}
	}
	exempt := c.Exempt()
	for _, o := range v.Others {
		for _, p := range o.PodCIDRs {
			sameFamily := func(q netip.Prefix) bool { return q.Addr().Is4() == p.Addr().Is4() }
			if slices.ContainsFunc(v.Self.PodCIDRs, sameFamily) && !slices.ContainsFunc(c.ClusterCIDRs, sameFamily) &&
				!slices.ContainsFunc(exempt, func(e netip.Prefix) bool { return e.Bits() <= p.Bits() && e.Contains(p.Addr()) }) {
				return p
			}
		}
	}
	return netip.Prefix{}
}

// outside says that there are cluster CIDRs of the family, and that none has the whole of p in it.
func outside(cluster []netip.Prefix, p netip.Prefix) bool {
	limited := false
	for _, c := range cluster {
		if c.Addr().Is4() == p.Addr().Is4() {
			limited = true
			if c.Bits() <= p.Bits() && c.Contains(p.Addr()) {
				return false
			}
		}
	}
	return limited
}

// rival returns a node that has an overlapping pod CIDR and is older than self. All nodes come to the same answer: a new node cannot take
// over the addresses of one that runs.
func rival(self routes.Node, others []routes.Node) (string, netip.Prefix) {
	for _, o := range others {
		if c := o.Created.Compare(self.Created); c > 0 || c == 0 && strings.Compare(o.Name, self.Name) > 0 {
			continue
		}
		for _, p := range self.PodCIDRs {
			if slices.ContainsFunc(o.PodCIDRs, p.Overlaps) {
				return o.Name, p
			}
		}
	}
	return "", netip.Prefix{}
}

// held says that the network's configuration stays as it is, because pods on the bridge use the gateway of the former pod CIDR. A bridge has one
// gateway in a family. With ptp each pod has its own, so a change takes effect for the next pod.
func (a *agent) held(path string, v nodes.View) (bool, error) {
	if a.Config.Network.Plugin != agentconf.PluginBridge {
		a.report.Clear("change of podCIDR")
		return false, nil
	}
	old, err := file.Read(path)
	if err != nil {
		return false, err
	}
	former := conflist.Subnets(old)
	if len(former) == 0 || sameSet(former, v.Self.PodCIDRs) {
		a.report.Clear("change of podCIDR")
		return false, nil
	}
	addrs, err := conflist.Outside(filepath.Join(a.Config.Paths.On(cniState), "networks", a.Config.Network.Name), v.Self.PodCIDRs)
	if err != nil {
		return false, err
	}
	if len(addrs) == 0 {
		a.report.Clear("change of podCIDR")
		return false, nil
	}
	a.report.Problem("change of podCIDR", report.PodCIDRChanged, fmt.Sprintf("podCIDRs are %v now, and %d pods still have addresses of %v: drain the node; until they are gone the network stays as it is",
		v.Self.PodCIDRs, len(addrs), former))
	return true, nil
}

func sameSet(a, b []netip.Prefix) bool {
	in := func(list []netip.Prefix) func(netip.Prefix) bool {
		return func(p netip.Prefix) bool { return !slices.Contains(list, p) }
	}
	return !slices.ContainsFunc(a, in(b)) && !slices.ContainsFunc(b, in(a))
}

func writeNetwork(path string, content []byte) (bool, error) {
	return file.Update(path, content, 0o644)
}

// uplinkMTU returns the smallest MTU of the devices that have the node's addresses, else that of the default routes.
func uplinkMTU(ips []netip.Addr) (int, error) {
	h, err := rtnl.New()
	if err != nil {
		return 0, err
	}
	defer h.Close()
	addrs, err := h.Addrs(unix.AF_UNSPEC)
	if err != nil {
		return 0, err
	}
	links := map[int]bool{}
	for _, a := range addrs {
		if slices.Contains(ips, a.Prefix.Addr()) {
			links[a.LinkIndex] = true
		}
	}
	if len(links) == 0 {
		found, err := h.Routes(unix.AF_UNSPEC)
		if err != nil {
			return 0, err
		}
		for _, r := range found {
			if r.Dst.Bits() == 0 && r.LinkIndex != 0 {
				links[r.LinkIndex] = true
			}
		}
	}
	mtu := 0
	for index := range links {
		l, err := h.LinkByIndex(index)
		if err != nil {
			return 0, err
		}
		if !l.Loopback && (mtu == 0 || l.MTU < mtu) {
			mtu = l.MTU
		}
	}
	if mtu == 0 {
		return 0, fmt.Errorf("no device has one of the node's addresses %v, or a default route", ips)
	}
	return mtu, nil
}
