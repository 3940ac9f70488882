// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// Pods of mixed plugins come at once and go at once, round after round: no
// error, no address twice, nothing left.
func TestPrivilegedMixedAtOnce(t *testing.T) {
	require.Link(t, "macvlan")
	pods, rounds := netlab.Fewer(60, 12), netlab.Fewer(3, 2)
	w := e2etest.NewWorld(t) // not parallel: it keeps the machine busy
	ptp := e2etest.Network{Name: "net2", Main: "ptp", Subnets: []string{"10.3.0.0/16", "fd00:10:3::/64"}}
	macvlan := e2etest.LANNetwork("macvlan", nil)
	macvlan.Name, macvlan.Subnets, macvlan.IPAM = "net3", []string{"10.4.0.0/16", "fd00:10:4::/64"}, nil
	nets := []*netlab.Runtime{w.Runtime(e2etest.Net0()), w.Runtime(ptp), w.Runtime(macvlan)}
	for round := range rounds {
		all := make([]*e2etest.Pod, pods)
		for i := range all {
			var ports []e2etest.PortMapping
			if i%3 < 2 { // macvlan has no portmap in its chain
				ports = append(ports, e2etest.TCP(20000+i, 80))
			}
			all[i] = w.NewPod(nets[i%3], fmt.Sprintf("p%d-%d", round, i), ports...)
		}
		if err := atOnce(pods, func(i int) error { return all[i].TryAdd() }); err != nil {
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
		if err := atOnce(pods, func(i int) error { return all[i].Check() }); err != nil {
			t.Errorf("round %d: CHECK: %v", round, err)
		}
		if err := atOnce(pods, func(i int) error { return all[i].TryDel() }); err != nil {
			t.Fatalf("round %d: DEL: %v", round, err)
		}
		for _, p := range all {
			if got := e2etest.MustRun(t, p, "ip -o link show"); strings.Count(got, "\n") != 1 { // lo
				t.Errorf("%s keeps devices: %s", p.Name, got)
			}
			if err := p.Delete(); err != nil {
				t.Error(err)
			}
		}
		assertNoAttachments(w)
	}
}
