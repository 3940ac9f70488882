// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/internal/uplinks"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
	"github.com/sluice-cni/sluice/pkg/policy"
	"github.com/sluice-cni/sluice/pkg/rollback"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// Endpoint is one pod device as the datapath knows it.
type Endpoint struct {
	Ref          attachments.ID
	HostIfindex  int    // host veth of the pod
	RouteIfindex int    // device its packets are routed from: the bridge, else the host end; 0 means HostIfindex
	HostIfName   string // for messages
	Netkit       bool   // the pair is netkit, and the host veth is its primary device
	RouteIfName  string // of RouteIfindex, if Resolve was asked; empty without a host end
	MAC          net.HardwareAddr
	GatewayMAC   net.HardwareAddr // of RouteIfindex
	MTU          int
	Addrs        []netip.Prefix // the pod's addresses with the length of its own subnet
	Podns        *PodnsDevice   // the device inside the pod: for those without a host veth, and for features that work there
	Policy       *policy.Policy // with FeatureAdmit: the peers of both directions; nil restricts nothing

	NetworkPolicy NetworkPolicyPod // with FeatureAdmit: whose NetworkPolicies restrict the device too; zero: nobody's
}

// Feature is a service that an endpoint gets. Several plugins turn on one each.
type Feature uint32

// The features.
const (
	FeatureMasquerade = Feature(endpoint.FlagMasquerade) // connections the pod opens leave with the node's address
	FeatureAdmit      = Feature(endpoint.FlagAdmit)      // its packets carry the admit mark
	FeaturePublish    = Feature(endpoint.FlagPublish)    // it has published ports
	FeatureQueueRx    = Feature(endpoint.FlagQueueRx)    // a qdisc of the host end limits what it gets
	FeatureQueueTx    = Feature(endpoint.FlagQueueTx)    // an intermediate device, or a policer behind tcx, limits what it sends
)

// String returns the names of the features.
func (f Feature) String() string {
	names := endpoint.FlagNames(uint32(f))
	if f&FeatureMACCheck != 0 {
		names = append(names, "mac-check")
	}
	return fmt.Sprint(names)
}

func (e Endpoint) validate() error {
	switch {
	case e.Ref.ContainerID == "" || e.Ref.IfName == "":
		return errors.New("endpoint without container ID or interface name")
	case e.HostIfindex <= 0 && e.Podns != nil && e.Podns.Netns != "" && e.Podns.Ifindex > 0:
		return nil // its addresses play no part
	case e.HostIfindex <= 0:
		return fmt.Errorf("endpoint %s: no host device", e.Ref)
	case len(e.MAC) != 6:
		return fmt.Errorf("endpoint %s: MAC %q is not an Ethernet address", e.Ref, e.MAC)
	case len(e.GatewayMAC) != 0 && len(e.GatewayMAC) != 6:
		return fmt.Errorf("endpoint %s: gateway MAC %q is not an Ethernet address", e.Ref, e.GatewayMAC)
	case len(e.Addrs) == 0:
		return fmt.Errorf("endpoint %s: no address", e.Ref)
	}
	for _, p := range e.Addrs {
		if !p.IsValid() || p.Addr().IsUnspecified() {
			return fmt.Errorf("endpoint %s: %s is not an address with a prefix length", e.Ref, p)
		}
	}
	return nil
}

// has reports whether the device has the end that every feature in f needs.
func (e Endpoint) has(f Feature) error {
	if inside := FeatureAdmit; e.HostIfindex <= 0 && f&^inside != 0 {
		return fmt.Errorf("%w: %s has no host end, which %v needs", ErrNoDevice, e.Ref, f&^inside)
	}
	return nil
}

func (e Endpoint) value(p netip.Prefix, flags uint32, gw gateways) *endpoint.Value {
	v := &endpoint.Value{
		Owner: e.Ref.Owner(), Pod: e.Ref.Pod(), Ifindex: uint32(e.HostIfindex), RouteIfindex: uint32(e.RouteIfindex),
		Flags: flags, Mtu: uint32(max(0, e.MTU)), PrefixLen: codec.PrefixLen(p), Gateway: codec.Addr(gw.of(p)),
	}
	if v.RouteIfindex == 0 {
		v.RouteIfindex = v.Ifindex
	}
	copy(v.Mac[:], e.MAC)
	copy(v.GatewayMac[:], e.GatewayMAC)
	return v
}

// hooks are those of a host end where ep's are.
func (e Endpoint) hooks(of []hook.Hook) []hook.Hook {
	if e.Netkit {
		return hook.OnNetkit(of)
	}
	return of
}

// group is the device that packets to the pod are routed from; 0 inside a pod.
func (e Endpoint) group() uint32 {
	if e.RouteIfindex == 0 {
		return uint32(e.HostIfindex)
	}
	return uint32(e.RouteIfindex)
}

// podns is what the features f ask of the podns device.
func (e Endpoint) podns(f Feature) podnsRequest {
	return podnsRequest{Ref: e.Ref, Device: *e.Podns, HostIfindex: e.HostIfindex, Group: e.group(), Policy: e.Policy, NetworkPolicy: e.NetworkPolicy, Flags: uint32(f)}
}

// gateways are the addresses of the device that a pod's packets are routed from.
type gateways []rtnl.Addr

func gatewaysOf(a *attach.Attacher, e Endpoint) (gateways, error) {
	index := e.RouteIfindex
	if index == 0 {
		index = e.HostIfindex
	}
	h, err := a.Netlink()
	if err != nil {
		return nil, err
	}
	addrs, err := h.AddrsOf(index, rtnl.FamilyAll)
	if err != nil && !errors.Is(err, rtnl.ErrNotFound) { // what needs the device will say so
		return nil, fmt.Errorf("endpoint %s: addresses of device %d: %w", e.Ref, index, err)
	}
	return uplinks.FilterNodeAddrs(addrs), nil
}

// of returns the address that the node shows to the pod at p: that of the pod's own subnet, else what masquerading on the
// device would take. The zero Addr: none.
func (g gateways) of(p netip.Prefix) netip.Addr {
	for _, a := range g {
		if a.Prefix.Addr().Is4() == p.Addr().Is4() && p.Masked().Contains(a.Prefix.Addr()) {
			return a.Prefix.Addr()
		}
	}
	if len(g) == 0 {
		return netip.Addr{}
	}
	s := uplinks.Sources(g, g[0].LinkIndex)
	if p.Addr().Is4() {
		return s.V4
	}
	return s.V6
}

// endpointEntry is one address of an owner.
type endpointEntry struct {
	addr netip.Addr
	v    endpoint.Value
}

// hostVeth is the host veth of an owner's entry.
type hostVeth struct {
	index uint32
	owner uint64
}

func (e endpointEntry) hostVeth() hostVeth { return hostVeth{e.v.Ifindex, e.v.Owner} }

// Held is what a caller knows of an owner's entries, as the attachment record has it. With it they are found by their keys. The zero
// value says nothing: the whole map is read, O(addresses of the node). So it is for records of former builds, and without a record.
type Held struct {
	Addrs       []netip.Addr // all that Enable may have been called with; nil: not known
	HostIfindex int          // of the device with a source MAC check; 0: not known
}

// HeldBy is what is known of an owner whose addresses Enable was called with.
func HeldBy(addrs []netip.Prefix) Held {
	h := Held{Addrs: make([]netip.Addr, 0, len(addrs))}
	for _, p := range addrs {
		h.Addrs = append(h.Addrs, p.Addr())
	}
	return h
}

// entriesOf returns what owner has: among the addresses that are held, else in the whole map.
func entriesOf(eps pintree.EndpointMaps, owner uint64, held Held) (out []endpointEntry, err error) {
	if held.Addrs == nil {
		err = eps.Addrs.Each(func(a netip.Addr, v *endpoint.Value) bool {
			if v.Owner == owner {
				out = append(out, endpointEntry{a, *v})
			}
			return true
		})
		if err != nil {
			return nil, fmt.Errorf("endpoints: %w", err)
		}
		return out, nil
	}
	seen := make(map[netip.Addr]bool, len(held.Addrs))
	for _, a := range held.Addrs {
		if a = a.Unmap(); seen[a] {
			continue
		}
		seen[a] = true
		v, ok, err := eps.Addrs.Get(a)
		if err != nil {
			return nil, fmt.Errorf("endpoint %s: %w", a, err)
		}
		if ok && v.Owner == owner {
			out = append(out, endpointEntry{a, v})
		}
	}
	return out, nil
}

// Enable turns on a feature for ep and attaches the programs to its device. Features of the same owner add up; calling it
// again changes nothing. An address of another attachment is an *AddrHeldError while that one's device exists, and is taken over
// after that. It also brings uplinks and node addresses up to date. On error nothing of it is left; the error wraps ErrFull when a
// map has no room.
func (d *Datapath) Enable(ctx context.Context, ep Endpoint, f Feature) (err error) {
	if f == FeatureMACCheck {
		return d.enableMACCheck(ctx, ep)
	}
	if err := errors.Join(ep.validate(), ep.has(f)); err != nil {
		return err
	}
	unlock, err := d.tree.Writer(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	eps, err := d.tree.EndpointMaps()
	if err != nil {
		return err
	}
	a := attach.NewAttacher(d.tree, "")
	defer a.Close() // after the rollback, which detaches
	if ep.HostIfindex != 0 {
		if err := refuseHeld(a, eps, ep.Ref.Owner(), ep.HostIfindex, ep.Addrs); err != nil {
			return err
		}
	}
	var back rollback.Stack
	defer back.Rollback(ctx, &err)

	if ep.Podns != nil && (ep.HostIfindex == 0 || len(podnsHooks(uint32(f), true)) > 0) {
		if err := d.enablePodns(ctx, a, ep.podns(f), &back); err != nil {
			return fmt.Errorf("endpoint %s: %w", ep.Ref, err)
		}
		if ep.HostIfindex == 0 {
			return d.syncPod(ctx, a, 0)
		}
	}
	return d.enableOnHost(ctx, a, eps, ep, f, &back)
}

// enableOnHost turns on f on the host veth of ep.
func (d *Datapath) enableOnHost(ctx context.Context, a *attach.Attacher, eps pintree.EndpointMaps, ep Endpoint, f Feature, back *rollback.Stack) error {
	if ep.RouteIfindex != 0 && ep.RouteIfindex != ep.HostIfindex {
		if err := d.markPodSide(ep.RouteIfindex); err != nil {
			return err
		}
	}
	var id uint16
	if f&FeatureAdmit != 0 {
		var err error
		if id, err = d.applyPolicy(uint32(ep.HostIfindex), ep.Ref, ep.group(), ep.Policy, ep.NetworkPolicy, back); err != nil {
			return err
		}
	}
	gw, err := gatewaysOf(a, ep)
	if err != nil {
		return err
	}
	fresh, err := d.putAddrs(eps, ep, f, gw, id, back)
	if err != nil {
		return err
	}
	if err := createCounters(eps, ep, back); err != nil {
		return err
	}
	if fresh {
		back.Push("detach programs", func(context.Context) error { return a.Detach(ep.HostIfindex, hook.OfPod()) })
	}
	if err := a.Ensure(ep.HostIfindex, ep.hooks(hook.OfPod()), fresh); err != nil {
		return fmt.Errorf("endpoint %s: %w", ep.Ref, err)
	}
	if known, err := d.nodeKnows(a, []int{ep.HostIfindex, ep.RouteIfindex}, gw, fresh); known || err != nil {
		return err
	}
	made := 0
	if fresh {
		made = ep.HostIfindex
	}
	return d.syncPod(ctx, a, made, ep.HostIfindex, ep.RouteIfindex)
}

// createCounters makes the counters of ep's device, where it has none. It comes after the addresses, by which DEL finds the device if this process
// is killed, and before the programs, which count. An Enable that fails takes them back.
func createCounters(eps pintree.EndpointMaps, ep Endpoint, back *rollback.Stack) error {
	index := uint32(ep.HostIfindex)
	had, err := eps.Stats.Has(index)
	if err == nil {
		err = eps.Stats.Create(index, ep.Ref.Pod(), ep.Ref.Owner())
	}
	if err != nil {
		return pintree.WrapFull("sl_ep_stats", err)
	}
	if !had {
		back.Push("counters", func(context.Context) error { return eps.Stats.Delete(index) })
	}
	return nil
}

// putAddrs writes the entries of ep's addresses with f added to the features they have. It reports whether the device is new:
// no address of ep had been on it.
func (d *Datapath) putAddrs(eps pintree.EndpointMaps, ep Endpoint, f Feature, gw gateways, policy uint16, back *rollback.Stack) (fresh bool, err error) {
	owner := ep.Ref.Owner()
	fresh = true
	tracked, err := track(eps, uint32(ep.HostIfindex), back)
	if err != nil {
		return false, err
	}
	for _, p := range ep.Addrs {
		addr := p.Addr().Unmap()
		old, had, err := eps.Addrs.Get(addr)
		if err != nil {
			return false, fmt.Errorf("endpoint %s: %w", addr, err)
		}
		mine := had && old.Owner == owner // else the leftover of a pod that is gone
		flags := uint32(f)
		if mine {
			flags |= old.Flags
			fresh = fresh && old.Ifindex != uint32(ep.HostIfindex)
		}
		v := ep.value(netip.PrefixFrom(addr, p.Bits()), flags, gw)
		v.Tracked = tracked
		if v.Policy = policy; f&FeatureAdmit == 0 && mine {
			v.Policy = old.Policy
		}
		if had && old == *v {
			continue
		}
		back.Push("endpoint "+addr.String(), func(context.Context) error {
			if had {
				return eps.Addrs.Put(addr, &old)
			}
			return eps.Addrs.Delete(addr)
		})
		if err := eps.Addrs.Put(addr, v); err != nil {
			return false, pintree.WrapFull("sl_endpoints", err)
		}
	}
	return fresh, nil
}

// Disable turns off a feature of owner. With the last one its entries, counters and programs go. Missing is success.
//
// held is what the attachment record says of the entries: the cost is O(held) then. The zero Held makes Disable read the whole map.
// An address of owner that held leaves out stays until GC, or until another pod has it.
func (d *Datapath) Disable(ctx context.Context, owner uint64, f Feature, held Held) error {
	if f == FeatureMACCheck {
		return d.disableMACCheck(ctx, owner, held)
	}
	return pintree.WithMapIfLoaded(ctx, d.tree, d.tree.EndpointMaps, func(eps pintree.EndpointMaps) error {
		mine, err := entriesOf(eps, owner, held)
		if err != nil {
			return err
		}
		a := attach.NewAttacher(d.tree, "")
		defer a.Close()
		return errors.Join(d.disablePodns(a, owner, uint32(f)), d.clearEndpoints(a, eps, mine, f))
	})
}

// clearEndpoints takes the features f from entries, which are all of their owners. Those left without any are removed, and their devices with
// the last. It goes on after errors.
func (d *Datapath) clearEndpoints(a *attach.Attacher, eps pintree.EndpointMaps, entries []endpointEntry, f Feature) error {
	var errs []error
	left := make(map[hostVeth]int) // addresses
	for _, e := range entries {
		left[e.hostVeth()]++
	}
	for _, e := range entries {
		v := e.v
		v.Flags &^= uint32(f)
		switch {
		case v.Flags&endpoint.FlagAdmit != 0 || e.v.Flags&endpoint.FlagAdmit == 0:
		case v.Policy != 0:
			errs = append(errs, d.releasePolicy(v.Ifindex, v.Owner))
			v.Policy = 0
		default: // NetworkPolicy may restrict nothing of it
			errs = append(errs, d.releaseNoted(v.Ifindex, v.Owner))
		}
		if v.Flags != 0 {
			if v.Flags != e.v.Flags {
				errs = append(errs, eps.Addrs.Put(e.addr, &v))
			}
			continue
		}
		if err := eps.Addrs.Delete(e.addr); err != nil {
			errs = append(errs, fmt.Errorf("endpoint %s: %w", e.addr, err))
			continue
		}
		if left[e.hostVeth()]--; left[e.hostVeth()] == 0 {
			errs = append(errs, clearDevice(a, eps, e.hostVeth()))
		}
	}
	return errors.Join(errs...)
}

// clearDevice removes what there is of a device without addresses. Its counters name the owner who came last: another one that has
// come since keeps the device.
func clearDevice(a *attach.Attacher, eps pintree.EndpointMaps, d hostVeth) error {
	counted, ok, err := eps.Stats.Get(d.index)
	if err != nil {
		return fmt.Errorf("counters of device %d: %w", d.index, err)
	}
	if ok && counted.Owner != 0 && counted.Owner != d.owner {
		return nil
	}
	return errors.Join(a.Detach(int(d.index), hook.OfPod()), eps.Stats.Retire(d.index), eps.Devices.Delete(d.index))
}

// SetMAC tells the datapath that the pod's device has another hardware address. held is as for Disable. An owner without endpoint is
// success.
func (d *Datapath) SetMAC(ctx context.Context, owner uint64, mac net.HardwareAddr, held Held) error {
	if len(mac) != 6 {
		return fmt.Errorf("MAC %q is not an Ethernet address", mac)
	}
	return errors.Join(d.setCheckedMAC(ctx, owner, mac, held), d.setEndpointMAC(ctx, owner, mac, held), d.setParentMAC(ctx, owner, mac))
}

func (d *Datapath) setEndpointMAC(ctx context.Context, owner uint64, mac net.HardwareAddr, held Held) error {
	return pintree.WithMapIfLoaded(ctx, d.tree, d.tree.EndpointMaps, func(eps pintree.EndpointMaps) error {
		entries, err := entriesOf(eps, owner, held)
		if err != nil {
			return err
		}
		for _, e := range entries {
			copy(e.v.Mac[:], mac)
			if err := eps.Addrs.Put(e.addr, &e.v); err != nil {
				return fmt.Errorf("endpoint %s: %w", e.addr, err)
			}
		}
		return nil
	})
}
