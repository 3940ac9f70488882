// SPDX-License-Identifier: Apache-2.0

package sublink_test

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/plugintest"
)

// A default route that leads nowhere has no device to sit on.
func TestPrivilegedUnreachableDefault(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *stage) {
		for _, family := range []string{"-4", "-6"} {
			s.IP(s.Node.NS, family+" route del default")
			s.IP(s.Node.NS, family+" route add unreachable default metric 4096")
		}
		call := s.call().With("master", nil)
		_, err := s.Add(call)
		plugintest.WantCode(t, err, 7, "master", "no default route")
		plugintest.WantCode(t, s.Verb(s.Plug.Status, call), 50, "no default route")
	}, "macvlan", "ipvlan")
}

// An alternative name is the master's too, also where no record tells its own:
// that of a pod of the upstream plugin.
func TestPrivilegedCheckAltName(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, s *stage) {
		s.IP(s.Node.NS, "link property add dev eth0 altname uplink-of-the-rack")
		call := s.call().With("master", "uplink-of-the-rack")
		res := s.MustAdd(call)
		records, err := s.Dir.List("")
		if err != nil || len(records) != 1 {
			t.Fatalf("records %v, %v", records, err)
		}
		if err := s.Dir.Remove(records[0].ID, s.name); err != nil {
			t.Fatal(err)
		}
		if err := s.Check(call, res); err != nil {
			t.Errorf("CHECK: %v", err)
		}
	}, onMaster()...)
}
