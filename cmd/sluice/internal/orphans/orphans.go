// SPDX-License-Identifier: Apache-2.0

// Package orphans finds what is left of attachments that are no more, whichever
// suite made it, and removes it on request.
//
// Nothing is a leftover because it looks old. A thing is one when what it names
// (an attachment, an address, a device) is known to be gone: the attachment's
// network namespace, by our records and the runtimes' caches, or, when no process
// knows the attachment at all, its addresses, by looking into every network
// namespace of the node. What stays in doubt is said and left alone.
package orphans

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/netfilter"
)

// Kind is where a leftover is.
type Kind string

// The kinds.
const (
	Netfilter   Kind = "netfilter"   // chains, rules, elements
	IFB         Kind = "ifb"         // an intermediate device of a bandwidth limit
	Record      Kind = "record"      // an attachment record
	Datapath    Kind = "datapath"    // entries of the maps
	Reservation Kind = "reservation" // an address of host-local
)

// Item is something whose attachment is gone, or may be.
type Item struct {
	Kind      Kind
	What      string
	Why       string // what was looked at
	Removable bool   // the proof is good enough to remove it

	trace  *netfilter.RuleSet
	link   string
	record *attachments.Record
	owner  uint64
}

// Report is what Find found, in the order in which it is removed.
type Report struct {
	Items []Item
	// Known is what was looked at to tell the living.
	Known string
}

// Removable are the items that may be removed.
func (r Report) Removable() []Item {
	return slices.DeleteFunc(slices.Clone(r.Items), func(i Item) bool { return !i.Removable })
}

// State says whether an attachment's network namespace is there.
type State int

// The states.
const (
	Unknown State = iota // nothing says where it is
	Alive
	Dead
)

// Attachment is one that our records or a runtime's cache name.
type Attachment struct {
	Ref    attachments.ID
	Netns  string
	State  State
	Addrs  []netip.Addr
	Record bool   // else only a runtime knows it
	From   string // which file says so
}

// Reserved is an address that host-local has given away.
type Reserved struct {
	Network, ContainerID, IfName string
	Addr                         netip.Addr
	File                         string
}

// Known is what is known to be alive.
type Known struct {
	Attachments []Attachment
	Reserved    []Reserved
	// Addrs are the addresses inside all network namespaces that were found, and
	// in which.
	Addrs map[netip.Addr]string
	// Namespaces is how many of them were looked into. Without a look an address
	// proves nothing.
	Namespaces int
	Looked     string
}

// verdict is the judgement of a thing.
type verdict struct {
	gone  bool // it may be removed
	doubt bool // it cannot be told
	why   string
}

func alive() verdict { return verdict{} }
func gone(format string, a ...any) verdict {
	return verdict{gone: true, why: fmt.Sprintf(format, a...)}
}
func doubt(format string, a ...any) verdict {
	return verdict{doubt: true, why: fmt.Sprintf(format, a...)}
}

// named judges a thing that bears the name of an attachment.
func (k *Known) named(is func(Attachment) bool, addrs []netip.Addr) verdict {
	var dead *Attachment
	for i, a := range k.Attachments {
		switch {
		case !is(a):
		case a.State == Dead:
			dead = &k.Attachments[i]
		default:
			return alive()
		}
	}
	if used, where := k.addressOfNobody(addrs); used {
		return doubt("its address is in %s, and nothing says whose that is", where)
	}
	if dead != nil {
		return gone("the network namespace %s of %s is gone (%s)", dead.Netns, dead.Ref, dead.From)
	}
	for _, r := range k.Reserved {
		if is(Attachment{Ref: attachments.ID{Network: r.Network, ContainerID: r.ContainerID, IfName: r.IfName}, Addrs: []netip.Addr{r.Addr}}) {
			return doubt("host-local still holds %s for it (%s)", r.Addr, r.File)
		}
	}
	if len(addrs) == 0 {
		return doubt("no record and no runtime's cache names it, and it has no address to look for")
	}
	if k.Namespaces == 0 {
		return doubt("no record and no runtime's cache names it, but no other network namespace could be looked into")
	}
	return gone("no record, no runtime's cache and no reservation names it, and %s in no network namespace", are(addrs))
}

func are(addrs []netip.Addr) string {
	s := make([]string, 0, len(addrs))
	for _, a := range addrs {
		s = append(s, a.String())
	}
	if len(s) == 1 {
		return s[0] + " is"
	}
	return strings.Join(s, ", ") + " are"
}

// addressOfNobody reports an address that lives in a namespace although no
// living attachment that is known has it.
func (k *Known) addressOfNobody(addrs []netip.Addr) (bool, string) {
	for _, a := range addrs {
		where, lives := k.Addrs[a]
		if lives && !slices.ContainsFunc(k.Attachments, func(o Attachment) bool { return o.State == Alive && slices.Contains(o.Addrs, a) }) {
			return true, where
		}
	}
	return false, ""
}

// address judges a thing that names nothing but an address.
func (k *Known) address(addr netip.Addr) verdict {
	var dead *Attachment
	for i, a := range k.Attachments {
		switch {
		case !slices.Contains(a.Addrs, addr):
		case a.State == Dead:
			dead = &k.Attachments[i]
		default:
			return alive()
		}
	}
	if _, lives := k.Addrs[addr]; lives {
		return alive()
	}
	for _, r := range k.Reserved {
		if r.Addr == addr && !k.isDead(r) {
			return doubt("host-local still holds %s for %s (%s)", addr, r.ContainerID, r.File)
		}
	}
	switch {
	case dead != nil:
		return gone("the network namespace %s of %s, which had %s, is gone (%s)", dead.Netns, dead.Ref, addr, dead.From)
	case k.Namespaces == 0:
		return doubt("no other network namespace could be looked into")
	}
	return gone("no record, no runtime's cache and no reservation has %s, and it is in no network namespace", addr)
}

// isDead reports that all that is known of a reservation's container is gone.
func (k *Known) isDead(r Reserved) bool {
	dead := false
	for _, a := range k.Attachments {
		if a.Ref.ContainerID == r.ContainerID && (a.Ref.Network == r.Network || a.Ref.Network == "") {
			if a.State != Dead {
				return false
			}
			dead = true
		}
	}
	return dead
}

// judge judges a trace in the netfilter tables.
func (k *Known) judge(t netfilter.RuleSet) verdict {
	if !t.Named() {
		if len(t.Addrs) == 1 {
			return k.address(t.Addrs[0])
		}
		return alive()
	}
	return k.named(func(a Attachment) bool {
		if !t.Of(a.Ref) {
			return false
		}
		// The container's other networks have the same name on it.
		return !t.ByContainer() || len(a.Addrs) == 0 || slices.ContainsFunc(t.Addrs, func(x netip.Addr) bool { return slices.Contains(a.Addrs, x) })
	}, t.Addrs)
}
