// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/loader/ebpfload"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// node is what a trace knows of the node.
type node struct {
	named     func(id attachments.ID, text string) bool
	dp        loader.Interface
	status    *loader.Status
	hostPorts []hostport.Entry
	records   map[uint64]*attachments.Record
	h         *rtnl.Handle
	chains    []rtnl.NFTChain
	legacy    map[bool][]string // tables of iptables-legacy that the kernel has, by IPv4
	copy      *ebpfload.Copy
	inside    map[*loader.EndpointStatus]inside // of pods without a host veth
	policies  []loader.PolicyStatus
}

func look(ctx context.Context, dp loader.Interface, q Question) (*node, error) {
	n := &node{dp: dp, named: q.Named, records: make(map[uint64]*attachments.Record, len(q.Records))}
	for _, r := range q.Records {
		n.records[r.Owner()] = r
	}
	var err error
	if n.status, err = dp.Status(ctx); err != nil {
		return nil, err
	}
	if n.hostPorts, err = dp.HostPorts(ctx); err != nil {
		return nil, err
	}
	if n.chains, err = rtnl.NFTChains(); err != nil {
		return nil, err
	}
	n.legacy = map[bool][]string{true: legacyTables("ip_tables_names"), false: legacyTables("ip6_tables_names")}
	if n.policies, err = dp.Policies(ctx); err != nil {
		return nil, err
	}
	if n.h, err = rtnl.New(); err != nil {
		return nil, err
	}
	n.lookInside()
	return n, nil
}

func (n *node) close() { n.h.Close() }

type kind int

const (
	isOutside kind = iota
	isNode
	isPod
)

// end is a sender or a receiver.
type end struct {
	kind kind
	addr netip.Addr
	pod  *loader.EndpointStatus
}

// nodeWord is how the node is asked for.
const nodeWord = "node"

// ends finds out who the ends are, and by which addresses they talk.
func (n *node) ends(q Question) (from, to end, t Tuple, err error) {
	if from, err = n.find("from", q.From); err != nil {
		return
	}
	if to, err = n.find("to", q.To); err != nil {
		return
	}
	var six bool
	switch {
	case to.addr.IsValid():
		six = to.addr.Is6()
	case q.Source.IsValid():
		six = q.Source.Is6()
	case from.addr.IsValid():
		six = from.addr.Is6()
	default:
		six = !n.address(from, false).IsValid() || !n.address(to, false).IsValid()
	}
	if !to.addr.IsValid() {
		to.addr = n.address(to, six)
	}
	if !to.addr.IsValid() {
		return from, to, t, usage("to %q: has no address of IPv%s", q.To, version(six))
	}
	if from.kind == isNode && !from.addr.IsValid() {
		r, rerr := n.h.AskRoute(rtnl.RouteQuery{Dst: to.addr})
		if from.addr = r.Src; rerr != nil || !from.addr.IsValid() {
			from.addr = n.address(from, six)
		}
	}
	if !from.addr.IsValid() || from.addr.Is6() != six && from.kind == isPod {
		from.addr = n.address(from, six)
	}
	source := cmp.Or(q.Source, from.addr)
	if !source.IsValid() || source.Is6() != six {
		return from, to, t, usage("from %q: has no address of IPv%s, which %s is of", q.From, version(six), to.addr)
	}
	if q.Via != "" && from.kind != isOutside {
		return from, to, t, usage("--via %q: only a packet from outside comes in by a device", q.Via)
	}
	t = Tuple{Proto: q.Proto, Src: netip.AddrPortFrom(source, q.FromPort), Dst: netip.AddrPortFrom(to.addr, q.Port)}
	if q.Proto == unix.IPPROTO_ICMP && six {
		t.Proto = unix.IPPROTO_ICMPV6
	}
	if t.Proto == unix.IPPROTO_ICMP || t.Proto == unix.IPPROTO_ICMPV6 {
		t.Dst = netip.AddrPortFrom(to.addr, 0)
	}
	return from, to, t, nil
}

func version(six bool) string {
	if six {
		return "6"
	}
	return "4"
}

// usualInterface is what runtimes call a pod's first interface.
const usualInterface = "eth0"

// find finds one end. An address may be a pod's or the node's.
func (n *node) find(which, text string) (end, error) {
	if text == nodeWord {
		return end{kind: isNode}, nil
	}
	if a, err := netip.ParseAddr(text); err == nil {
		if a.Zone() != "" || a.IsMulticast() || a.IsUnspecified() {
			return end{}, usage("%s %q: give the address of one host, without a zone", which, text)
		}
		a = a.Unmap()
		if ep := n.endpoint(a); ep != nil {
			return end{isPod, a, ep}, nil
		}
		if n.isLocal(a) {
			return end{kind: isNode, addr: a}, nil
		}
		return end{kind: isOutside, addr: a}, nil
	}
	var found []*loader.EndpointStatus
	for i := range n.status.Endpoints {
		ep := &n.status.Endpoints[i]
		if r := n.records[ep.Owner]; r != nil && n.named(r.ID, text) {
			found = append(found, ep)
		}
	}
	if usual := slices.DeleteFunc(slices.Clone(found), func(ep *loader.EndpointStatus) bool { return n.records[ep.Owner].IfName != usualInterface }); len(found) > 1 && len(usual) == 1 {
		found = usual // the name of a pod with several interfaces
	}
	switch {
	case len(found) == 0:
		return end{}, usage("%s %q: no pod of the datapath has that name, or an ID that begins so, nor is it an address or %q; \"sluice top\" and \"sluice endpoints\" list the pods", which, text, nodeWord)
	case len(found) > 1:
		return end{}, usage("%s %q: %d devices match; give one's network/ID/interface, or its address", which, text, len(found))
	}
	return end{kind: isPod, pod: found[0]}, n.followable(which, text, found[0])
}

// followable refuses pods without a host veth that nothing is known of.
func (n *node) followable(which, text string, ep *loader.EndpointStatus) error {
	if _, ok := n.inside[ep]; ep.Netns != "" && !ok {
		return usage("%s %q: the network namespace %s of the pod cannot be looked into: the pod is being deleted, or it is in another mount namespace", which, text, ep.Netns)
	}
	return nil
}

// name is "network/container/interface" of an attachment.
func (n *node) name(owner uint64) string {
	if r := n.records[owner]; r != nil {
		return r.Network + "/" + r.ContainerID + "/" + r.IfName
	}
	return fmt.Sprintf("#%016x", owner)
}

func (n *node) endpoint(a netip.Addr) *loader.EndpointStatus {
	for i := range n.status.Endpoints {
		ep := &n.status.Endpoints[i]
		if slices.ContainsFunc(ep.Addrs, func(p netip.Prefix) bool { return p.Addr().Unmap() == a }) {
			return ep
		}
	}
	return nil
}

// address is an end's own one of a family.
func (n *node) address(e end, six bool) netip.Addr {
	if e.addr.IsValid() && e.addr.Is6() == six {
		return e.addr
	}
	if e.kind == isNode {
		for _, d := range n.status.Devices {
			if a := map[bool]netip.Addr{false: d.Source4, true: d.Source6}[six]; a.IsValid() {
				return a
			}
		}
	}
	if e.pod != nil {
		for _, p := range e.pod.Addrs {
			if a := p.Addr().Unmap(); a.Is6() == six && !a.IsLinkLocalUnicast() {
				return a
			}
		}
	}
	return netip.Addr{}
}

func (n *node) isLocal(a netip.Addr) bool {
	r, err := n.h.AskRoute(rtnl.RouteQuery{Dst: a})
	return err == nil && r.Type == unix.RTN_LOCAL
}

// podView is how a pod itself sends a packet.
type podView struct {
	route     rtnl.Route
	device    string // the pod's, that it leaves by
	hop       netip.Addr
	neighbour rtnl.Neighbour // zero: the pod has not asked yet
}

// podRoute asks the tables inside the pod. known is false where the pod's namespace cannot be looked into; err is the pod's refusal.
func (n *node) podRoute(ep *loader.EndpointStatus, t Tuple) (v podView, known bool, err error) {
	rec := n.records[ep.Owner]
	if rec == nil || rec.NetNS == "" {
		return v, false, nil
	}
	h, err := openNetns(rec.NetNS)
	if err != nil {
		return v, false, nil // the pod is going, or its namespace is another mount's
	}
	defer h.Close()
	q := rtnl.RouteQuery{Dst: t.Dst.Addr(), Proto: t.Proto}
	if slices.ContainsFunc(ep.Addrs, func(p netip.Prefix) bool { return p.Addr().Unmap() == t.Src.Addr() }) {
		q.Src = t.Src.Addr()
	}
	if v.route, err = h.AskRoute(q); err != nil {
		return v, true, err
	}
	if l, err := h.LinkByIndex(v.route.LinkIndex); err == nil {
		v.device = l.Name
	}
	if v.hop = v.route.Gateway; !v.hop.IsValid() {
		v.hop = t.Dst.Addr()
	}
	if v.neighbour, err = h.Neighbour(v.route.LinkIndex, v.hop); err != nil && !errors.Is(err, rtnl.ErrNotFound) {
		return v, false, nil // it is taken to answer
	}
	return v, true, nil
}

// sibling is the endpoint of another device of the same pod.
func (n *node) sibling(ep *loader.EndpointStatus, device string) *loader.EndpointStatus {
	rec := n.records[ep.Owner]
	for i := range n.status.Endpoints {
		other := &n.status.Endpoints[i]
		if r := n.records[other.Owner]; r != nil && rec != nil && r.ContainerID == rec.ContainerID && r.IfName == device {
			return other
		}
	}
	return nil
}

func parseMAC(s string) net.HardwareAddr {
	m, err := net.ParseMAC(s)
	if err != nil {
		return make(net.HardwareAddr, 6)
	}
	return m
}

// link returns a device.
func (n *node) link(index int) (rtnl.Link, error) {
	l, err := n.h.LinkByIndex(index)
	if errors.Is(err, rtnl.ErrNotFound) {
		return l, fmt.Errorf("device %d has gone: the pod is being deleted", index)
	}
	return l, err
}
