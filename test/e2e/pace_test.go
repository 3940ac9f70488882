// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// Pods of mixed plugins come at once and go at once, round after round: no
// error, no address twice, nothing left.
func TestPrivilegedMixedAtOnce(t *testing.T) {
	require.Link(t, "macvlan")
	pods, rounds := netlab.Fewer(60, 12), netlab.Fewer(3, 2)
	w := newWorld(t) // not parallel: it keeps the machine busy
	ptp := network{name: "net2", main: "ptp", subnets: []string{"10.3.0.0/16", "fd00:10:3::/64"}}
	macvlan := onLAN("macvlan", nil)
	macvlan.name, macvlan.subnets, macvlan.ipam = "net3", []string{"10.4.0.0/16", "fd00:10:4::/64"}, nil
	nets := []*netlab.Runtime{w.runtime(net0()), w.runtime(ptp), w.runtime(macvlan)}
	for round := range rounds {
		all := make([]*pod, pods)
		for i := range all {
			var ports []mapping
			if i%3 < 2 { // macvlan has no portmap in its chain
				ports = append(ports, tcp(20000+i, 80))
			}
			all[i] = w.newPod(nets[i%3], fmt.Sprintf("p%d-%d", round, i), ports...)
		}
		if err := atOnce(pods, func(i int) error { return all[i].tryAdd() }); err != nil {
			t.Fatalf("round %d: ADD: %v", round, err)
		}
		seen := map[netip.Addr]string{}
		for _, p := range all {
			for _, a := range []netip.Addr{p.IP4, p.IP6} {
				if seen[a] != "" {
					t.Errorf("%s and %s both got %s", seen[a], p.Name, a)
				}
				seen[a] = p.Name
			}
		}
		if err := atOnce(pods, func(i int) error { return all[i].check() }); err != nil {
			t.Errorf("round %d: CHECK: %v", round, err)
		}
		if err := atOnce(pods, func(i int) error { return all[i].tryDel() }); err != nil {
			t.Fatalf("round %d: DEL: %v", round, err)
		}
		for _, p := range all {
			if got := sh(t, p, "ip -o link show"); strings.Count(got, "\n") != 1 { // lo
				t.Errorf("%s keeps devices: %s", p.Name, got)
			}
			if err := p.Delete(); err != nil {
				t.Error(err)
			}
		}
		w.assertNoAttachments()
	}
}
