// SPDX-License-Identifier: Apache-2.0

package blocks

import "fmt"

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
	return nil
}
