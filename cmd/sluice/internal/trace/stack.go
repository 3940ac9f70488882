// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/sysctl"
)

// routed is the way of a packet that the stack gets from a device: netfilter, routing, and out again.
func (w *walk) routed(dev rtnl.Link) error {
	if w.netfilter(unix.NF_INET_PRE_ROUTING, "PREROUTING") {
		return nil
	}
	q := rtnl.RouteQuery{Src: w.t.Src.Addr(), Dst: w.t.Dst.Addr(), In: dev.Index, Mark: w.mark, Proto: w.t.Proto}
	if w.t.Proto == unix.IPPROTO_TCP || w.t.Proto == unix.IPPROTO_UDP {
		q.SrcPort, q.DstPort = w.t.Src.Port(), w.t.Dst.Port()
	}
	r, err := w.n.h.AskRoute(q)
	if err != nil {
		w.refused(dev, unwrap(err))
		return nil
	}
	if r.Type == unix.RTN_LOCAL {
		w.step("route", "the node's routes", Passed, "%s is the node's own", w.t.Dst.Addr())
		if !w.netfilter(unix.NF_INET_LOCAL_IN, "INPUT") {
			w.step("socket", "the node itself", Passed, "whether a process listens is not looked at: ss -ln")
			w.p.Verdict, w.p.At = Delivered, "the node itself"
		}
		return nil
	}
	if key := w.forwarding(dev); get(key) == "0" {
		w.drop("sysctl", "the node's routing", dev.Name, "forwarding-off", fmt.Sprintf("%s is 0, so the node forwards nothing from %s", dotted(key), dev.Name), fmt.Sprintf("sysctl -w %s=1", dotted(key)))
		return nil
	}
	out, err := w.n.link(r.LinkIndex)
	if err != nil {
		return err
	}
	by := ""
	if r.Gateway.IsValid() {
		by = " by " + r.Gateway.String()
	}
	w.step("route", "the node's routes", Passed, "forwarded out of %s%s", out.Name, by)
	if w.netfilter(unix.NF_INET_FORWARD, "FORWARD") {
		return nil
	}
	return w.output(r)
}

// output is the way from the stack out of a device: into a pod of this node, or away.
func (w *walk) output(r rtnl.Route) error {
	out, err := w.n.link(r.LinkIndex)
	if err != nil {
		return err
	}
	if w.netfilter(unix.NF_INET_POST_ROUTING, "POSTROUTING") {
		return nil
	}
	if ep := w.n.endpoint(w.t.Dst.Addr()); ep != nil && out.Index == ep.HostIfindex {
		return w.intoPod(ep)
	} else if ep != nil && out.Index == ep.RouteIfindex {
		if end, err := w.hook(out, hookEgress); err != nil || end != goesOn {
			return err
		}
		return w.intoPod(ep)
	}
	if w.toParent(out) {
		return nil
	}
	hop := r.Gateway
	if !hop.IsValid() {
		hop = w.t.Dst.Addr()
	}
	if out.Ethernet {
		switch n, err := w.n.h.Neighbour(out.Index, hop); {
		case errors.Is(err, rtnl.ErrNotFound):
			w.unknown("neighbour", out.Name, hop.String()+" answers on "+out.Name, "the node has not asked for the link address of %s yet", hop)
		case err != nil:
			return err
		case n.State&unix.NUD_FAILED != 0:
			w.drop("neighbour", "the neighbour table", out.Name, "no-neighbour", fmt.Sprintf("%s does not answer on %s", hop, out.Name), fmt.Sprintf("look whether %s is up: \"ip neigh show %s\"", hop, hop))
			return nil
		case !n.Reaches():
			w.unknown("neighbour", out.Name, hop.String()+" answers on "+out.Name, "the node is asking for the link address of %s", hop)
		default:
			w.step("neighbour", out.Name, Passed, "%s is %s", hop, n.MAC)
			setMACs(w.frame, n.MAC, out.MAC)
		}
	}
	switch end, err := w.hook(out, hookEgress); {
	case err != nil || end == ended:
		return err
	case end == pastStack:
		return w.redirected()
	}
	w.send(out)
	return nil
}

// refused says why the kernel's routing has dropped a packet that came in by dev.
func (w *walk) refused(dev rtnl.Link, err error) {
	const at = "the node's routing"
	src, dst := w.t.Src.Addr(), w.t.Dst.Addr()
	back, berr := w.n.h.AskRoute(rtnl.RouteQuery{Dst: src})
	checked := errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EINVAL) // Linux 6.13 and later say EINVAL for both
	_, there := w.n.h.AskRoute(rtnl.RouteQuery{Dst: dst, Mark: w.mark})
	filter := w.reversePath(dev)
	key := w.forwarding(dev)
	switch {
	case checked && berr == nil && back.Type == unix.RTN_LOCAL:
		w.drop("route", at, dev.Name, "martian-source", fmt.Sprintf("the source %s is an address of the node itself", src), "find out who else uses the node's address")
	case checked && filter != "0" && (berr != nil || filter == "1" && back.LinkIndex != dev.Index):
		way := "has no route to it"
		if berr == nil {
			way = "would answer by another device"
			if l, err := w.n.link(back.LinkIndex); err == nil {
				way = "would answer by " + l.Name
			}
		}
		k := "net/ipv4/conf/" + dev.Name + "/rp_filter"
		w.drop("sysctl", at, dev.Name, "rp-filter", fmt.Sprintf("rp_filter=%s of %s refuses the source %s: the node %s", filter, dev.Name, src, way),
			fmt.Sprintf("add a route to %s by %s, or sysctl -w %s=2 (the larger one of it and %s holds)", src, dev.Name, dotted(k), "net.ipv4.conf.all.rp_filter"))
	case there == nil && get(key) == "0":
		w.drop("sysctl", at, dev.Name, "forwarding-off", fmt.Sprintf("%s is 0, so the node forwards nothing from %s", dotted(key), dev.Name), fmt.Sprintf("sysctl -w %s=1", dotted(key)))
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		w.drop("route", at, dev.Name, "route-prohibits", fmt.Sprintf("a route or rule prohibits %s", dst), "look at \"ip rule\" and \"ip route get "+dst.String()+"\"")
	case errors.Is(err, unix.EINVAL):
		w.drop("route", at, dev.Name, "route-refuses", fmt.Sprintf("a blackhole route, or the check of the source %s, refuses %s", src, dst), fmt.Sprintf("ip route get %s from %s iif %s", dst, src, dev.Name))
	default:
		w.drop("route", at, dev.Name, "no-route", fmt.Sprintf("the node has no route to %s (%v)", dst, err), fmt.Sprintf("ip route get %s from %s iif %s", dst, src, dev.Name))
	}
}

// forwarding is the sysctl that lets packets from dev be forwarded. IPv6 has one for all devices (ip6_forward).
func (w *walk) forwarding(dev rtnl.Link) string {
	if w.t.is4() {
		return "net/ipv4/conf/" + dev.Name + "/forwarding"
	}
	return "net/ipv6/conf/all/forwarding"
}

// reversePath is the larger of the two values that count (Documentation/networking/ip-sysctl.rst). IPv6 has no such check.
func (w *walk) reversePath(dev rtnl.Link) string {
	if !w.t.is4() {
		return "0"
	}
	return max("0", get("net/ipv4/conf/all/rp_filter"), get("net/ipv4/conf/"+dev.Name+"/rp_filter"))
}

// get reads a sysctl. One that is not there is empty.
func get(key string) string {
	v, err := sysctl.Get(key)
	if err != nil {
		return ""
	}
	return v
}

// dotted is the form that sysctl(8) takes for names without dots, and with slashes for the others.
func dotted(key string) string {
	if strings.Contains(key, ".") {
		return key
	}
	return strings.ReplaceAll(key, "/", ".")
}

// otherFamilies names chains that see packets at devices and in bridges: which ones is not in the list of chains.
func (w *walk) otherFamilies(dev rtnl.Link) {
	for _, c := range w.n.chains {
		if c.Base && c.Use > 0 && (c.Family == unix.NFPROTO_NETDEV || c.Family == unix.NFPROTO_BRIDGE && dev.MasterIndex != 0) {
			w.unknown("netfilter", c.At(), "the rules of "+c.At()+" let it pass", "%d rules that are not rehearsed, if it sees %s", c.Use, dev.Name)
		}
	}
}

// bridgeNetfilter reports whether bridged packets pass the chains of IP.
func (w *walk) bridgeNetfilter() bool {
	key := "net/bridge/bridge-nf-call-iptables"
	if !w.t.is4() {
		key = "net/bridge/bridge-nf-call-ip6tables"
	}
	return get(key) == "1"
}

// netfilter names the chains at a hook. Their rules cannot be asked: a chain with some may decide otherwise. One that has none and
// drops has decided: netfilter returns true.
func (w *walk) netfilter(hook uint32, name string) bool {
	own := unix.NFPROTO_IPV6
	if w.t.is4() {
		own = unix.NFPROTO_IPV4
	}
	for _, c := range w.n.chains {
		if !c.Base || c.Hook != hook || c.Family != own && c.Family != unix.NFPROTO_INET {
			continue
		}
		chain := c.At()
		switch {
		case c.Drops && c.Use == 0:
			w.drop("netfilter", "the chain "+chain, "", "netfilter-policy", "its policy is drop, and it has no rule that accepts",
				"accept the pods' traffic there, or set firewallMark and let a rule accept it: docs/troubleshooting.md, forward-policy")
			return true
		case c.Drops:
			w.unknown("netfilter", chain, "a rule of "+chain+" accepts it", "policy drop, %d rules that are not rehearsed", c.Use)
		case c.Use > 0:
			w.unknown("netfilter", chain, "the rules of "+chain+" let it pass", "policy accept, %d rules that are not rehearsed", c.Use)
		default:
			w.step("netfilter", chain, Passed, "no rules, policy accept")
		}
	}
	for _, table := range w.n.legacy[w.t.is4()] {
		if hook == unix.NF_INET_FORWARD || hook == unix.NF_INET_LOCAL_IN || hook == unix.NF_INET_LOCAL_OUT || table == "nat" {
			w.unknown("netfilter", "iptables-legacy, table "+table, "the table "+table+" of iptables-legacy lets it pass", "%s: rules and policy are not rehearsed", name)
		}
	}
	return false
}
