// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import (
	"encoding/binary"
	"slices"
)

// bitset has no zero words at its end, so that equal sets have equal keys.
type bitset []uint64

func (b bitset) has(i int) bool { return i>>6 < len(b) && b[i>>6]>>(i&63)&1 == 1 }

func (b *bitset) set(i int) {
	for len(*b) <= i>>6 {
		*b = append(*b, 0)
	}
	(*b)[i>>6] |= 1 << (i & 63)
}

func (b *bitset) clear(i int) {
	if i>>6 < len(*b) {
		(*b)[i>>6] &^= 1 << (i & 63)
	}
	for len(*b) > 0 && (*b)[len(*b)-1] == 0 {
		*b = (*b)[:len(*b)-1]
	}
}

// with returns a copy that has i too.
func (b bitset) with(i int) bitset {
	c := slices.Clone(b)
	c.set(i)
	return c
}

// without returns a copy that does not have i.
func (b bitset) without(i int) bitset {
	c := slices.Clone(b)
	c.clear(i)
	return c
}

func (b bitset) key() string {
	buf := make([]byte, 0, 8*len(b))
	for _, w := range b {
		buf = binary.LittleEndian.AppendUint64(buf, w)
	}
	return string(buf)
}

// numbers hands out small numbers from next to last, and keeps those that were retired aside until recycle.
type numbers struct {
	next, last int
	free       []int
	retired    []int
	recycled   int // how many retired numbers were recycled so far
}

// take returns a number, false if there is none left.
func (n *numbers) take() (int, bool) {
	if k := len(n.free); k > 0 {
		i := n.free[k-1]
		n.free = n.free[:k-1]
		return i, true
	}
	if n.next > n.last {
		return 0, false
	}
	n.next++
	return n.next - 1, true
}

// left is how many numbers take has.
func (n *numbers) left() int { return len(n.free) + n.last - n.next + 1 }

// give makes a number free at once.
func (n *numbers) give(i int) { n.free = append(n.free, i) }

func (n *numbers) retire(i int) { n.retired = append(n.retired, i) }

// mark is how many numbers were retired so far.
func (n *numbers) mark() int { return n.recycled + len(n.retired) }

// recycle makes the numbers free that were retired before a mark.
func (n *numbers) recycle(mark int) {
	k := max(0, mark-n.recycled)
	n.free = append(n.free, n.retired[:k]...)
	n.retired = slices.Delete(n.retired, 0, k)
	n.recycled += k
}
