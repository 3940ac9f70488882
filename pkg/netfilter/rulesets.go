// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"net/netip"

	"github.com/sluice-cni/sluice/pkg/attachments"
)

// Kind is what a RuleSet does.
type Kind string

// Kinds of rule sets.
const (
	KindPorts      Kind = "hostPorts"
	KindMasquerade Kind = "masquerade"
	KindAdmission  Kind = "admission" // by the firewall
	KindIsolation  Kind = "isolation" // of a bridge
	KindGuard      Kind = "guard"     // of 127.0.0.0/8 against a device
)

// RuleSet is something that an attachment, of Sluice or of upstream's plugins, has
// in the tables: a chain of its own with what leads to it, or rules in a shared
// chain. It says as much of its owner as the tables do.
type RuleSet struct {
	Backend string // as records call it
	Kind    Kind
	What    string // for people
	// Network, ContainerID and IfName are what a comment says, empty where none
	// does or it was cut.
	Network, ContainerID, IfName string
	Addrs                        []netip.Addr // pods' addresses in it
	Device                       string       // a device of the node that it is about, instead of an attachment
	// Seen is what the tool saw. Only the tool itself looks into it.
	Seen SeenRules
}

// SeenRules are the rules of a RuleSet, as their tool found them.
type SeenRules interface {
	// Hashed reports that the rules carry a hash of the attachment's key.
	Hashed() bool
	// HashOf reports that this hash is the attachment's.
	HashOf(ref attachments.ID) bool
}

// Named reports whether the set says whose it is, rather than only which
// addresses or devices it is about.
func (t RuleSet) Named() bool { return t.Seen.Hashed() || t.ContainerID != "" }

// Of reports whether the set bears the attachment's name. Some names leave the
// interface out, and some the network.
func (t RuleSet) Of(ref attachments.ID) bool {
	if t.Seen.Hashed() {
		return t.Seen.HashOf(ref)
	}
	return t.ContainerID != "" && t.ContainerID == ref.ContainerID
}

// ByContainer reports that the name is the container's alone, so that the sets of
// its attachments to several networks can be told by their addresses only.
func (t RuleSet) ByContainer() bool { return !t.Seen.Hashed() && t.ContainerID != "" }
