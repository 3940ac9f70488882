// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// defaultVLAN is the VLAN of untagged frames on a trunk without vlan.
const defaultVLAN = 1

func vlanGatewayName(bridge string, vlan int) string { return fmt.Sprintf("%s.%d", bridge, vlan) }

// parseTrunk turns vlanTrunk into ascending ranges without overlap.
func (r *request) parseTrunk() error {
	var wanted [maxVLAN + 1]bool // a list of ids would be as long as the product of items and their ranges
	for i, item := range r.VLANTrunk {
		if err := item.mark(fmt.Sprintf("vlanTrunk[%d]", i), &wanted); err != nil {
			return err
		}
	}
	for id, yes := range wanted {
		if !yes {
			continue
		}
		if n := len(r.trunk); n > 0 && int(r.trunk[n-1].To) == id-1 {
			r.trunk[n-1].To = uint16(id)
			continue
		}
		r.trunk = append(r.trunk, rtnl.VLAN{From: uint16(id), To: uint16(id)})
	}
	return nil
}

// mark marks the ids of one item, whose key is for errors.
func (t trunkItem) mark(key string, wanted *[maxVLAN + 1]bool) error {
	bad := func(name string, v int) error {
		return cnierr.Config(key+"."+name, v, "must be 1 to 4094")
	}
	switch {
	case t.MinID != nil && t.MaxID == nil:
		return cnierr.Config(key+".minID", *t.MinID, "minID and maxID only work together")
	case t.MinID == nil && t.MaxID != nil:
		return cnierr.Config(key+".maxID", *t.MaxID, "minID and maxID only work together")
	case t.MinID != nil && !validVLAN(*t.MinID):
		return bad("minID", *t.MinID)
	case t.MaxID != nil && !validVLAN(*t.MaxID):
		return bad("maxID", *t.MaxID)
	case t.MinID != nil && *t.MinID > *t.MaxID:
		return cnierr.Config(key+".minID", *t.MinID, fmt.Sprintf("is greater than maxID %d", *t.MaxID))
	case t.ID != nil && !validVLAN(*t.ID):
		return bad("id", *t.ID)
	}
	if t.MinID != nil {
		for id := *t.MinID; id <= *t.MaxID; id++ {
			wanted[id] = true
		}
	}
	if t.ID != nil {
		wanted[*t.ID] = true
	}
	return nil
}

func validVLAN(id int) bool { return id >= 1 && id <= maxVLAN }

// portVLANs returns what a port gets besides what the bridge gave it.
func portVLANs(vlan int, trunk []rtnl.VLAN) []rtnl.VLAN {
	var want []rtnl.VLAN
	switch {
	case vlan != 0:
		want = append(want, rtnl.VLAN{From: uint16(vlan), To: uint16(vlan), PVID: true, Untagged: true})
	case len(trunk) > 0:
		want = append(want, rtnl.VLAN{From: defaultVLAN, To: defaultVLAN, PVID: true, Untagged: true})
	}
	for _, t := range trunk {
		want = append(want, without(t, want)...)
	}
	return want
}

// without cuts the untagged VLAN out of a trunk range: naming an id twice would
// take its untagged flag away.
func without(t rtnl.VLAN, untagged []rtnl.VLAN) []rtnl.VLAN {
	for _, u := range untagged {
		if !u.PVID || u.From < t.From || u.From > t.To {
			continue
		}
		var parts []rtnl.VLAN
		if t.From < u.From {
			parts = append(parts, rtnl.VLAN{From: t.From, To: u.From - 1})
		}
		if u.From < t.To {
			parts = append(parts, rtnl.VLAN{From: u.From + 1, To: t.To})
		}
		return parts
	}
	return []rtnl.VLAN{t}
}

// setVLANs puts the port with that index into its VLANs.
func (r *request) setVLANs(host *rtnl.Handle, index, vlan int, trunk []rtnl.VLAN) error {
	want := portVLANs(vlan, trunk)
	if len(want) == 0 {
		return nil
	}
	if !r.PreserveVLAN {
		have, err := host.VLANs(index)
		if err == nil {
			err = host.DelVLANs(index, have...)
		}
		if err != nil {
			return vlanError(err)
		}
	}
	return vlanError(host.AddVLANs(index, want...))
}

func vlanError(err error) error {
	if errors.Is(err, rtnl.ErrNotSupported) {
		return cnierr.Wrap(cnierr.CodeUnsupported, err, "vlan, vlanTrunk: this kernel has no VLAN filtering on bridges (CONFIG_BRIDGE_VLAN_FILTERING)")
	}
	return cnierr.Wrap(cnierr.CodeKernel, err, "set the VLANs of a bridge port")
}

// vlanGateway makes sure that the host has a leg in the VLAN: a veth whose one
// end, named bridge.vlan, carries the gateway address and whose other end is a
// port of the bridge. It is made once and stays with the bridge.
func (t *attach) vlanGateway() (rtnl.Link, error) {
	name := t.vlanGatewayName()
	leg, err := t.Host.LinkByName(name)
	switch {
	case err == nil:
		return leg, t.mendLeg(leg)
	case !errors.Is(err, rtnl.ErrNotFound):
		return leg, cnierr.Wrap(cnierr.CodeKernel, err, "look up the VLAN gateway")
	}
	br, err := t.Host.LinkByIndex(t.bridge.Index) // its MTU fits the pod's port by now, and all others
	if err != nil {
		return leg, cnierr.Wrap(cnierr.CodeKernel, err, "look up the bridge")
	}
	port := "veth" + randomHex(4)
	err = t.Host.AddVeth(rtnl.VethSpec{HostName: port, Master: br.Index, HostUp: true, PeerName: name, MTU: br.MTU})
	if errors.Is(err, rtnl.ErrExist) { // another ADD was faster
		leg, err = t.Host.LinkByName(name)
		return leg, cnierr.Wrap(cnierr.CodeKernel, err, "look up the VLAN gateway")
	}
	if err != nil {
		return leg, cnierr.Wrap(cnierr.CodeKernel, err, "make the VLAN gateway %s", name)
	}
	t.rb.Push("VLAN gateway "+name, func(context.Context) error { return t.removeIfUnused(name) })
	if leg, err = t.Host.LinkByName(name); err != nil {
		return leg, cnierr.Wrap(cnierr.CodeKernel, err, "look up the VLAN gateway")
	}
	return leg, t.mendLeg(leg)
}

// mendLeg gives the VLAN gateway what it may lack: all of it when it is new, or
// the ADD that made it was killed.
func (t *attach) mendLeg(leg rtnl.Link) error {
	in, err := t.legInVLAN(t.Host, t.bridge, leg)
	if err != nil {
		return err
	}
	if !in {
		if err := t.setVLANs(t.Host, leg.PeerIndex, t.VLAN, nil); err != nil {
			return err
		}
	}
	if leg.Up {
		return nil
	}
	return cnierr.Wrap(cnierr.CodeKernel, t.Host.SetUp(leg.Index), "set %s up", leg.Name)
}

// legInVLAN reports that the other end of the VLAN gateway is untagged in the
// VLAN. A device that is no such pair is the operator's, and taken for it.
func (r *request) legInVLAN(host *rtnl.Handle, bridge, leg rtnl.Link) (bool, error) {
	if leg.Kind != "veth" || leg.PeerIndex == 0 {
		return true, nil
	}
	port, err := host.LinkByIndex(leg.PeerIndex)
	if errors.Is(err, rtnl.ErrNotFound) || err == nil && port.MasterIndex != bridge.Index {
		return true, nil
	}
	if err != nil {
		return false, cnierr.Wrap(cnierr.CodeKernel, err, "look up the other end of %s", leg.Name)
	}
	have, err := host.VLANs(port.Index)
	if err != nil {
		return false, cnierr.Wrap(cnierr.CodeKernel, err, "list the VLANs of %s", port.Name)
	}
	return covered(portVLANs(r.VLAN, nil)[0], have), nil
}

// removeIfUnused deletes the VLAN gateway unless the bridge has got other ports
// since, which may be using it.
func (t *attach) removeIfUnused(name string) error {
	leg, err := t.Host.LinkByName(name)
	if errors.Is(err, rtnl.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	ports, err := t.Host.LinksOf(t.bridge.Index)
	if err != nil {
		return err
	}
	for _, p := range ports {
		if p.Index != leg.PeerIndex && p.Index != t.hostEnd.Index {
			return nil
		}
	}
	return gone(t.Host.DelLink(leg.Index))
}
