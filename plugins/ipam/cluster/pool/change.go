// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Change is a change of one pool, whole or not at all. Every offset of Add must be free, and every offset of Remove
// must have exactly that entry. Replace is Remove and Add of one offset.
type Change struct {
	Add     map[uint64]Entry
	Remove  map[uint64]Entry
	Replace map[uint64][2]Entry // old, new
	Range   string              // that the object must have; empty: any
}

// Empty reports that there is nothing to change.
func (c *Change) Empty() bool { return len(c.Add)+len(c.Remove)+len(c.Replace) == 0 }

// Apply makes the change in memory. It reports false, and changes nothing, if a condition does not hold.
func (c *Change) Apply(allocations map[string]Entry) bool {
	for off := range c.Add {
		if _, ok := allocations[Key(off)]; ok {
			return false
		}
	}
	for off, e := range c.Remove {
		if have, ok := allocations[Key(off)]; !ok || have != e {
			return false
		}
	}
	for off, e := range c.Replace {
		if have, ok := allocations[Key(off)]; !ok || have != e[0] {
			return false
		}
	}
	for off := range c.Remove {
		delete(allocations, Key(off))
	}
	for off, e := range c.Add {
		allocations[Key(off)] = e
	}
	for off, e := range c.Replace {
		allocations[Key(off)] = e[1]
	}
	return true
}

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
