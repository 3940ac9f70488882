// SPDX-License-Identifier: Apache-2.0

package orphans

import (
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// Inventory is the node as the search sees it.
type Inventory struct {
	Known      Known
	Traces     []netfilter.RuleSet
	Links      []rtnl.Link
	Redirected map[int]bool // devices that a filter sends packets to
	Records    []*attachments.Record
	Endpoints  []loader.EndpointStatus
	Ports      []hostport.Entry
	RateLimits []loader.RateLimitStatus
}

// Search scans the node, and says what is left. If something is, it scans again, and reports what it finds both times: a DEL that ends
// between the looks at the maps and at the records seems to have left its device. The inventory is that of the last scan.
// The error names what could not be looked at.
func Search(scan func() (*Inventory, error)) (*Inventory, Report, error) {
	inventory, err := scan()
	first := Find(inventory)
	if len(first.Items) == 0 {
		return inventory, first, err
	}
	again, scanErr := scan()
	report := Find(again)
	report.Items = slices.DeleteFunc(report.Items, func(i Item) bool {
		return !slices.ContainsFunc(first.Items, func(f Item) bool { return f.Kind == i.Kind && f.What == i.What })
	})
	return again, report, errors.Join(err, scanErr)
}

// Find looks for leftovers in an inventory. The order is that of removal: a record
// goes last, since it is what DEL and GC work from.
func Find(s *Inventory) Report {
	r := Report{Items: []Item{}, Known: s.Known.Looked}
	for _, part := range []func(*Inventory) []Item{findTraces, findIFBs, findEntries, findRecords, findReservations} {
		r.Items = append(r.Items, part(s)...)
	}
	return r
}

func (s *Inventory) hasLink(name string) bool {
	return slices.ContainsFunc(s.Links, func(l rtnl.Link) bool { return l.Name == name })
}

func findTraces(s *Inventory) []Item {
	var out []Item
	for _, t := range s.Traces {
		v := alive()
		switch {
		case t.Device == "":
			v = s.Known.judge(t)
		case !s.hasLink(t.Device):
			v = gone("the device %s does not exist", t.Device)
		}
		if v.gone || v.doubt {
			out = append(out, Item{Kind: Netfilter, What: ownerText(t) + t.What, Why: v.why, Removable: v.gone, trace: &t})
		}
	}
	return out
}

func ownerText(t netfilter.RuleSet) string {
	name := t.ContainerID
	if t.Network != "" {
		name = t.Network + "/" + name
	}
	if name == "" {
		return ""
	}
	return name + ": "
}

// Names of the intermediate devices, as the bandwidth plugins make them.
const (
	ifbPrefix = "bwp"
	ifbLength = 15
)

// IsIFB reports whether a device is called as the bandwidth plugins call their intermediate ones.
func IsIFB(name string) bool {
	rest, ok := strings.CutPrefix(name, ifbPrefix)
	return ok && len(name) == ifbLength && strings.Trim(rest, "0123456789abcdef") == ""
}

// ifbOf reports that a device has one of the attachment's names: the
// reference's, or the one of ours for a second interface of a container.
func ifbOf(name string, ref attachments.ID) bool {
	for _, of := range []string{ref.Network + ref.ContainerID, ref.Network + "\x00" + ref.ContainerID + "\x00" + ref.IfName} {
		sum := sha512.Sum512([]byte(of))
		if (ifbPrefix + hex.EncodeToString(sum[:]))[:ifbLength] == name {
			return true
		}
	}
	return false
}

// findIFBs finds intermediate devices that no filter sends anything to: the
// filter went with the pod's device.
func findIFBs(s *Inventory) []Item {
	var out []Item
	for _, l := range s.Links {
		if l.Kind != "ifb" || !IsIFB(l.Name) || s.Redirected[l.Index] {
			continue
		}
		why, sweep := "no filter sends packets to it, and no attachment that is known has this name", true
		for _, a := range s.Known.Attachments {
			if !ifbOf(l.Name, a.Ref) {
				continue
			}
			why = fmt.Sprintf("no filter sends packets to it, and the network namespace %s of %s is gone (%s)", a.Netns, a.Ref, a.From)
			if a.State != Dead {
				why, sweep = fmt.Sprintf("no filter sends packets to it, but %s may be alive (%s)", a.Ref, a.From), false
				break
			}
		}
		out = append(out, Item{Kind: IFB, What: "device " + l.Name, Why: why, Removable: sweep, link: l.Name})
	}
	return out
}

// owned is what the maps hold for one owner.
type owned struct {
	owner                uint64
	devices, gone, ports int // gone: devices that do not exist
	shapes               int // limits of rates
	addrs                []netip.Addr
}

// ownedBy sums up the maps by owner, in the order in which owners appear.
func ownedBy(s *Inventory) []*owned {
	var all []*owned
	of := func(owner uint64) *owned {
		for _, o := range all {
			if o.owner == owner {
				return o
			}
		}
		o := &owned{owner: owner}
		all = append(all, o)
		return o
	}
	for _, e := range s.Endpoints {
		o := of(e.Owner)
		o.devices++
		for _, p := range e.Addrs {
			o.addrs = append(o.addrs, p.Addr())
		}
		if e.Netns == "" && e.HostIfName == "" {
			o.gone++
		}
	}
	for _, p := range s.Ports {
		o := of(p.Owner)
		o.ports++
		if !p.IsClaim() && !slices.Contains(o.addrs, p.PodIP) {
			o.addrs = append(o.addrs, p.PodIP)
		}
	}
	for _, l := range s.RateLimits {
		of(l.Owner).shapes++
	}
	return all
}

// text says what the maps hold.
func (o *owned) text() string {
	text := fmt.Sprintf("%d devices and %d published ports", o.devices, o.ports)
	if o.shapes > 0 {
		text = fmt.Sprintf("%d devices, %d published ports and %d limits", o.devices, o.ports, o.shapes)
	}
	return text + " in the maps"
}

// findEntries finds owners in the maps that no record explains.
func findEntries(s *Inventory) []Item {
	known := make(map[uint64]Attachment)
	for _, a := range s.Known.Attachments {
		if old, ok := known[a.Ref.Owner()]; !ok || old.State == Dead || a.Record && a.State != Dead {
			known[a.Ref.Owner()] = a
		}
	}
	var out []Item
	for _, o := range ownedBy(s) {
		a, ok := known[o.owner]
		if ok && a.Record && a.State != Dead {
			continue
		}
		name := fmt.Sprintf("owner %016x", o.owner)
		if ok {
			name = a.Ref.String()
		}
		i := Item{Kind: Datapath, What: name + ": " + o.text(), owner: o.owner}
		switch {
		case ok && a.State == Dead:
			i.Removable, i.Why = true, fmt.Sprintf("the network namespace %s is gone (%s)", a.Netns, a.From)
		case ok:
			i.Why = "there is no record of it under " + attachments.DefaultDir + ", but a runtime knows it (" + a.From + ")"
		case o.devices > o.gone:
			i.Why = "no record and no runtime's cache names it, but its device exists"
		default:
			v := s.Known.named(func(Attachment) bool { return false }, o.addrs)
			i.Removable, i.Why = v.gone, v.why
		}
		out = append(out, i)
	}
	return out
}

// pluginsWithoutOutsideState are the plugins whose work is gone with the namespace, or found by
// the other searches. What else made something may be needed to take it back.
var pluginsWithoutOutsideState = []string{"bridge", "ptp", "macvlan", "ipvlan", "vlan", "dummy", "tap", "loopback", "portmap", "firewall", "bandwidth", "tuning", "sbr", "vrf"}

func findRecords(s *Inventory) []Item {
	var out []Item
	for _, r := range s.Records {
		i := Item{Kind: Record, What: "record of " + r.ID.String(), record: r}
		at := slices.IndexFunc(s.Known.Attachments, func(a Attachment) bool { return a.Record && a.Ref == r.ID })
		switch {
		case r.Corrupt:
			i.Why = "it cannot be read"
		case at < 0 || s.Known.Attachments[at].State != Dead:
			continue
		default:
			i.Why = fmt.Sprintf("the network namespace %s is gone, and no DEL came", r.NetNS)
			i.Removable = true
			for _, name := range slices.Sorted(maps.Keys(r.Plugins)) {
				if !slices.Contains(pluginsWithoutOutsideState, name) || strings.Contains(string(r.Plugins[name].Data), `"firewalld"`) {
					i.Removable = false
					i.Why += "; " + name + " may have more to take back: let the runtime delete the container"
				}
			}
		}
		out = append(out, i)
	}
	return out
}

// findReservations only says: a runtime that keeps no cache may have the
// container.
func findReservations(s *Inventory) []Item {
	var out []Item
	for _, r := range s.Known.Reserved {
		if _, lives := s.Known.Addrs[r.Addr]; lives {
			continue
		}
		known := slices.ContainsFunc(s.Known.Attachments, func(a Attachment) bool { return a.Ref.ContainerID == r.ContainerID && a.State != Dead })
		if known {
			continue
		}
		why := "no record and no runtime's cache names the container, and the address is in no network namespace"
		if s.Known.isDead(r) {
			why = "the container's network namespace is gone, and the address is in no other"
		}
		out = append(out, Item{Kind: Reservation, What: fmt.Sprintf("%s of network %s, held for %s", r.Addr, r.Network, r.ContainerID), Why: why})
	}
	return out
}
