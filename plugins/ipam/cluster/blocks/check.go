// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"cmp"
	"fmt"
	"slices"
)

// maxClaimed is more than a node ever claims of a pool, all claims together.
const maxClaimed = 1 << 20

// check refuses claims that no node has written. A damaged file must not make a plugin count for hours.
func (s *State) check() error {
	total := uint64(0)
	for _, claims := range [][]Claim{s.Claims, s.Trying, s.Giving} {
		for _, c := range claims {
			for _, r := range c.Runs {
				size := r[1] - r[0]
				if r[0] > r[1] || size >= maxClaimed || total+size >= maxClaimed {
					return fmt.Errorf("claim %q: offsets %d to %d: a node claims at most %d", c.ID, r[0], r[1], maxClaimed)
				}
				total += size + 1
			}
		}
	}
	return s.checkFree()
}

// checkFree refuses free addresses that the node has not claimed for any pod.
func (s *State) checkFree() error {
	var runs [][2]uint64
	for _, c := range s.Claims {
		if c.Hold == "" {
			runs = append(runs, c.Runs...)
		}
	}
	slices.SortFunc(runs, func(a, b [2]uint64) int { return cmp.Compare(a[0], b[0]) })
	at, end, before := 0, uint64(0), uint64(0) // the runs up to at begin before the offset, and reach to end
	for i, off := range s.FreeList {
		for ; at < len(runs) && runs[at][0] <= off; at++ {
			end = max(end, runs[at][1]+1)
		}
		if off >= end || i > 0 && off <= before {
			return fmt.Errorf("free offset %d: not one that the node has claimed for any pod, in ascending order", off)
		}
		before = off
	}
	return nil
}
