// SPDX-License-Identifier: Apache-2.0

package ptp

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// Both ends of the pair take larger segments of IPv4 where the network asks for it.
func TestPrivilegedBigTCPOfThePair(t *testing.T) {
	t.Parallel()
	require.BigTCP(t)
	for asked, want := range map[bool]int{false: 64 << 10, true: rtnl.BigSegment} {
		s := newStage(t)
		call := s.call().With("bigTCP", asked)
		res := s.MustAdd(call)
		for _, l := range []rtnl.Link{s.Link(s.Node.NS, res.Interfaces[0].Name), s.Link(s.pod.NS, "eth0")} {
			if l.MaxSegmentIPv4 != want {
				t.Errorf("bigTCP %t: %s has %d, want %d", asked, l.Name, l.MaxSegmentIPv4, want)
			}
		}
		if err := s.Check(call, res); err != nil {
			t.Errorf("CHECK: %v", err)
		}
		if err := s.Del(call); err != nil {
			t.Errorf("DEL: %v", err)
		}
		s.MustBeClean(s.pod)
	}
}
