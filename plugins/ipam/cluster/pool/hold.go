// SPDX-License-Identifier: Apache-2.0

package pool

import "strings"

// Hold is the ID of an address that is kept for an owner which outlives its pods. Its entry has no PodRef, as a node's.
// A container ID of CNI has no slash, so no container is taken for one.
type Hold struct {
	Owner string // of HoldFor
	Nonce string // another one after each change: a late request fits no newer entry
	Node  NodeID // the boot whose pod has the address, without a nonce; the zero value: none
}

// Kinds of owners.
const (
	HeldPod   = "pod"   // NAMESPACE/NAME/INTERFACE of a StatefulSet's pod; one node has it at a time
	HeldClaim = "claim" // NAMESPACE/NAME of an IPAMClaim; one node has it at a time
	HeldVM    = "vm"    // NAMESPACE/NAME/VM of an IPAMClaim of a virtual machine: during a migration two nodes have it
)

const (
	holdPrefix = "sluice-held/"
	// holdMirror begins the nonce of the mirror of a hold in a pool that overlaps.
	holdMirror = "m"
)

// HoldFor returns the owner of a kind with these names.
func HoldFor(kind string, names ...string) string { return kind + "/" + strings.Join(names, "/") }

// Kind returns the kind of the owner, and its names.
func (h Hold) Kind() (string, []string) {
	kind, names, _ := strings.Cut(h.Owner, "/")
	return kind, strings.Split(names, "/")
}

// Shared reports whether several nodes may have the address at a time: another program decides which of them uses it.
func (h Hold) Shared() bool { return strings.HasPrefix(h.Owner, HeldVM+"/") }

// Mirror returns the mirror of this hold in a pool that overlaps. Each change of the hold has another one, so a late
// request to remove the mirror of an earlier change does not fit.
func (h Hold) Mirror() Hold { return Hold{Owner: h.Owner, Nonce: holdMirror + h.Nonce} }

// IsMirror reports whether the hold is one of Mirror.
func (h Hold) IsMirror() bool { return strings.HasPrefix(h.Nonce, holdMirror) }

// Taken reports whether a node has the address for a pod.
func (h Hold) Taken() bool { return h.Node != NodeID{} }

// String is the ID of an entry.
func (h Hold) String() string {
	s := holdPrefix + h.Nonce + "/" + h.Owner
	if h.Taken() {
		s += "@" + h.Node.Node + "/" + h.Node.Machine + "." + h.Node.Boot
	}
	return s
}

// ParseHold reads the ID of an entry. It reports false for an entry of a node or a container.
func ParseHold(id string) (Hold, bool) {
	rest, ok := strings.CutPrefix(id, holdPrefix)
	if !ok {
		return Hold{}, false
	}
	nonce, owner, ok := strings.Cut(rest, "/")
	if !ok || nonce == "" {
		return Hold{}, false
	}
	h := Hold{Owner: owner, Nonce: nonce}
	if at := strings.LastIndexByte(owner, '@'); at >= 0 {
		// The name of an interface may have an @, but no slash.
		if node, boot, ok := strings.Cut(owner[at+1:], "/"); ok {
			machine, boot, ok := strings.Cut(boot, ".")
			if !ok || node == "" || machine == "" || boot == "" {
				return Hold{}, false
			}
			h.Owner, h.Node = owner[:at], NodeID{Node: node, Machine: machine, Boot: boot}
		}
	}
	return h, h.known()
}

// known reports whether the owner has the names of its kind.
func (h Hold) known() bool {
	kind, names := h.Kind()
	for _, n := range names {
		if n == "" {
			return false
		}
	}
	switch kind {
	case HeldPod, HeldVM:
		return len(names) == 3
	case HeldClaim:
		return len(names) == 2
	}
	return false
}

// text names the owner for people.
func (h Hold) text() string {
	kind, names := h.Kind()
	s := "IPAMClaim " + names[0] + "/" + names[1]
	if kind == HeldPod {
		s = "pod " + names[0] + "/" + names[1] + ", kept"
	}
	if h.Taken() {
		s += " on node " + h.Node.Node
	}
	return s
}
