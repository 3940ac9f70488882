// SPDX-License-Identifier: Apache-2.0

package ptp

import "testing"

// The node's end is the recorded one also when another process has given it
// another hardware address, or another name.
func TestPrivilegedDelReaddressed(t *testing.T) {
	t.Parallel()
	for _, change := range []string{"address 02:00:00:00:00:09", "name gw0"} {
		t.Run(change, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			res := s.MustAdd(s.call())
			s.IP(s.Node.NS, "link set "+res.Interfaces[0].Name+" down") // before 6.2 no device that is up gets a name
			s.IP(s.Node.NS, "link set "+res.Interfaces[0].Name+" "+change)
			if err := s.Del(s.call()); err != nil {
				t.Errorf("DEL: %v", err)
			}
			s.MustBeClean(s.pod)
		})
	}
}
