// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// NodeID is the owner of addresses that a node has claimed. A container ID of CNI has no slash, so no container is
// taken for a node. whereabouts' reconciler leaves entries without a podref alone, so these stay.
type NodeID struct {
	Node    string // name of the node
	Machine string // hash of its machine-id
	Boot    string // hash of its boot id
	Nonce   string // of this claim; a late answer to an older request never fits a newer claim
}

const nodePrefix = "sluice/"

// String is the ID of an entry.
func (n NodeID) String() string {
	return nodePrefix + n.Node + "/" + n.Machine + "." + n.Boot + "." + n.Nonce
}

// ParseNodeID reads the ID of an entry. It reports false for an entry of a pod.
func ParseNodeID(id string) (NodeID, bool) {
	rest, ok := strings.CutPrefix(id, nodePrefix)
	if !ok {
		return NodeID{}, false
	}
	slash := strings.LastIndexByte(rest, '/')
	if slash < 0 {
		return NodeID{}, false
	}
	parts := strings.Split(rest[slash+1:], ".")
	if len(parts) != 3 {
		return NodeID{}, false
	}
	return NodeID{Node: rest[:slash], Machine: parts[0], Boot: parts[1], Nonce: parts[2]}, true
}

// mirrorMark ends the nonce of a node's entry that is the mirror of a claim in a pool that overlaps.
const mirrorMark = "m"

// IsMirror reports whether it is the owner of a mirror.
func (n NodeID) IsMirror() bool { return strings.HasSuffix(n.Nonce, mirrorMark) }

// MirrorID returns the ID of the mirrors of entries with that ID.
func MirrorID(id string) string {
	if h, ok := ParseHold(id); ok {
		return h.Mirror().String()
	}
	return id + mirrorMark
}

// IsMirror reports whether the entry is a mirror, of a node's claim or of an address that is kept for an owner.
func (e Entry) IsMirror() bool {
	n, _ := ParseNodeID(e.ID)
	h, _ := ParseHold(e.ID)
	return n.IsMirror() || h.IsMirror()
}

// Holder returns the owner of an entry: the node, or the pod of whereabouts.
func (e Entry) Holder() string {
	if n, ok := ParseNodeID(e.ID); ok {
		return "node " + n.Node
	}
	if h, ok := ParseHold(e.ID); ok {
		return h.text()
	}
	if e.PodRef != "" {
		return "pod " + e.PodRef
	}
	return "container " + e.ID
}

// Holders lists who has most of a pool, at most n of them, as "node a 64, pod b/c 1".
func Holders(taken map[uint64]Entry, n int) string {
	count := map[string]int{}
	for _, e := range taken {
		count[e.Holder()]++
	}
	names := slices.SortedFunc(maps.Keys(count), func(a, b string) int {
		if count[a] != count[b] {
			return count[b] - count[a]
		}
		return strings.Compare(a, b)
	})
	var out []string
	for _, name := range names[:min(n, len(names))] {
		out = append(out, fmt.Sprintf("%s %d", name, count[name]))
	}
	return strings.Join(out, ", ")
}

// Nodes returns the nodes that have addresses, by name and machine: without Node objects several can have one name.
func Nodes(taken map[uint64]Entry) map[string]bool {
	out := map[string]bool{}
	for _, e := range taken {
		if n, ok := ParseNodeID(e.ID); ok {
			out[n.Key()] = true
		}
	}
	return out
}

// Key identifies the node, whatever its boot.
func (n NodeID) Key() string { return n.Node + "/" + n.Machine }
