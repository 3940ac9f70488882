// SPDX-License-Identifier: Apache-2.0

package pool

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
