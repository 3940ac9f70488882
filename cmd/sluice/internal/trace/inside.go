// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// inside is a pod's device without a host veth: what its namespace says of it.
type inside struct {
	link   rtnl.Link // in the pod's namespace
	parent rtnl.Link // on the node; zero: none, as of a device that was moved into the pod
}

// Kinds of devices on a parent.
const (
	macvlan = "macvlan"
	ipvlan  = "ipvlan"
)

// Modes in which a device reaches others of its parent without the wire (MACVLAN_MODE_BRIDGE, IPVLAN_MODE_L2).
const (
	macvlanBridge = 4
	ipvlanL2      = 0
)

// lookInside asks the namespaces of pods without a host veth for devices and addresses: the maps have none of them. A pod that is
// being deleted stays unknown.
func (n *node) lookInside() {
	n.inside = map[*loader.EndpointStatus]inside{}
	for i := range n.status.Endpoints {
		ep := &n.status.Endpoints[i]
		if ep.Netns == "" {
			continue
		}
		if in, err := n.askInside(ep); err == nil {
			n.inside[ep] = in
		}
	}
}

func (n *node) askInside(ep *loader.EndpointStatus) (in inside, err error) {
	h, err := openNetns(ep.Netns)
	if err != nil {
		return in, err
	}
	defer h.Close()
	if in.link, err = h.LinkByIndex(ep.Ifindex); err != nil {
		return in, err
	}
	addrs, err := h.AddrsOf(ep.Ifindex, rtnl.FamilyAll)
	if err != nil {
		return in, err
	}
	if in.link.PeerIndex != 0 && in.link.PeerNetnsID != -1 { // else it has no parent, or one inside the pod
		if in.parent, err = n.h.LinkByIndex(in.link.PeerIndex); err != nil {
			return in, err
		}
	}
	ep.MAC, ep.MTU = in.link.MAC.String(), in.link.MTU
	for _, a := range addrs {
		if !a.Prefix.Addr().IsLinkLocalUnicast() { // that one names no pod
			ep.Addrs = append(ep.Addrs, a.Prefix)
		}
	}
	return in, nil
}

// onParent returns the pod whose device on parent has the packet's destination, nil if there is none.
func (n *node) onParent(parent int, t Tuple) *loader.EndpointStatus {
	ep := n.endpoint(t.Dst.Addr())
	if ep == nil || ep.Netns == "" || parent == 0 || n.inside[ep].parent.Index != parent {
		return nil
	}
	return ep
}

// rules names the program inside the pod that decides by its rules. It runs where a trace cannot: its verdict is named, not known.
func (w *walk) rules(ep *loader.EndpointStatus, program string) {
	where := fmt.Sprintf("%s on %s, in the pod", program, w.n.inside[ep].link.Name)
	if w.answer {
		w.step("program", where, Passed, "an answer to what was admitted")
		return
	}
	for _, p := range w.n.policies {
		if slices.Contains(p.Owners, ep.Owner) {
			w.unknown("program", where, fmt.Sprintf("policy %d of pod %s admits it", p.ID, w.n.name(ep.Owner)), "policy %d decides: \"sluice firewall\" lists its rules", p.ID)
			return
		}
	}
	w.step("program", where, Passed, "the pod has no rules")
}

// fromInside is the way of what a pod sends by a device without a host veth: past the node's stack, by the parent device if it has one.
func (w *walk) fromInside(ep *loader.EndpointStatus, v podView, known bool) error {
	in := w.n.inside[ep]
	dst, stopped := w.podNeighbour(ep, v, known)
	if stopped {
		return nil
	}
	w.rules(ep, "sl_ns_egress")
	if in.parent.Index == 0 {
		w.step("device", "the pod's device "+in.link.Name, Passed, "it has no parent device on the node: the packet leaves the node's sight")
		w.p.Verdict, w.p.At, w.p.Device, w.p.away = Sent, "the pod's device "+in.link.Name, in.link.Name, true
		return nil
	}
	w.frame, w.in = frame(w.t, w.answer, dst, parseMAC(ep.MAC)), rtnl.Link{}
	if in.link.Kind == macvlan || in.link.Kind == ipvlan {
		if done, err := w.besideParent(ep, in, v.hop); done || err != nil {
			return err
		}
	}
	w.below = true
	switch out, err := w.hook(in.parent, hookEgress); {
	case err != nil || out == ended:
		return err
	case out == pastStack:
		return w.redirected()
	}
	w.send(in.parent)
	return nil
}

// besideParent is the way of a packet that a macvlan or ipvlan device does not give to its parent: to another one of the same parent.
// done says that the way has ended.
func (w *walk) besideParent(ep *loader.EndpointStatus, in inside, hop netip.Addr) (done bool, err error) {
	if in.link.Kind == ipvlan && in.link.Sub.IPVLANMode != ipvlanL2 {
		w.unknown("device", in.parent.Name, "the node's routes and netfilter chains let it pass", "ipvlan in mode l3 or l3s asks the node's routes, which is not followed")
		return false, nil
	}
	if peer := w.n.onParent(in.parent.Index, w.t); peer != nil && peer != ep {
		if in.link.Kind == macvlan && in.link.Sub.MacvlanMode != macvlanBridge {
			w.drop("device", in.parent.Name, "", "macvlan-mode", fmt.Sprintf("in this mode %s does not pass packets from one of its macvlan devices to another", in.parent.Name),
				"use the mode bridge, or a switch that sends packets back")
			return true, nil
		}
		w.step("device", in.parent.Name, Passed, "%s passes it to its device of %s", in.parent.Name, w.n.name(peer.Owner))
		w.intoInside(peer)
		return true, nil
	}
	if w.n.isLocal(w.t.Dst.Addr()) || hop.IsValid() && w.n.isLocal(hop) {
		w.parentApart(in.parent)
		return true, nil
	}
	return false, nil
}

// parentApart drops what the node and a macvlan or ipvlan device on its device send each other.
func (w *walk) parentApart(parent rtnl.Link) {
	w.drop("device", parent.Name, "", "parent-apart", fmt.Sprintf("%s does not pass packets between the node and its own macvlan and ipvlan devices", parent.Name),
		"give the node a macvlan or ipvlan device on "+parent.Name+" too, or the pod a second interface")
}

// intoInside is the last part of a way into a pod without a host veth.
func (w *walk) intoInside(ep *loader.EndpointStatus) {
	w.rules(ep, "sl_ns_ingress")
	w.deliverTo(ep)
}

// fromParent is the way of a packet that came in by dev, if it is for a pod's device on it: that one gets it before the node's stack.
func (w *walk) fromParent(dev rtnl.Link) bool {
	ep := w.n.onParent(dev.Index, w.t)
	if ep == nil {
		return false
	}
	w.step("device", dev.Name, Passed, "%s passes it to its device of %s", dev.Name, w.n.name(ep.Owner))
	w.intoInside(ep)
	return true
}

// toParent drops what the node sends out of a device toward one on it: no packet comes back that way.
func (w *walk) toParent(out rtnl.Link) bool {
	ep := w.n.onParent(out.Index, w.t)
	if ep == nil {
		return false
	}
	if kind := w.n.inside[ep].link.Kind; kind != macvlan && kind != ipvlan {
		return false
	}
	w.parentApart(out)
	return true
}

// arrivesFor is the link address that a packet from outside has: that of the pod's device on dev, or of dev itself.
func (n *node) arrivesFor(dev rtnl.Link, t Tuple) net.HardwareAddr {
	if ep := n.onParent(dev.Index, t); ep != nil {
		return parseMAC(ep.MAC)
	}
	return dev.MAC
}
