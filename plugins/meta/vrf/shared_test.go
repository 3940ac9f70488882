// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// inTable are the configured routes of a device in a table, sorted, without the table.
func (e *env) inTable(dev string, table int) []string {
	e.t.Helper()
	var out []string
	for _, family := range []string{"-4", "-6"} {
		for _, line := range strings.Split(e.ip(fmt.Sprintf("-o %s route show table %d", family, table)), "\n") {
			line = strings.TrimSuffix(strings.Join(strings.Fields(line), " "), " pref medium")
			if line == "" || strings.Contains(line, "proto kernel") || strings.HasPrefix(line, "local ") || strings.HasPrefix(line, "broadcast ") || strings.HasPrefix(line, "multicast ") ||
				!strings.Contains(line+" ", "dev "+dev+" ") {
				continue
			}
			// The next hops of one IPv6 route are in the order in which they came.
			hops := strings.Split(strings.ReplaceAll(line, `\`, ""), " nexthop ")
			slices.Sort(hops[1:])
			out = append(out, strings.Join(strings.Fields(family+" "+strings.Join(hops, " nexthop ")), " "))
		}
	}
	return slices.Sorted(slices.Values(out))
}

// Two interfaces of one VRF, each with routes of every kind to one destination: the VRF's table has what the
// main table had of both, in either order of ADD, and DEL of one leaves those of the other.
func TestPrivilegedSharedDestinations(t *testing.T) {
	kinds := map[string][]string{
		"default by a gateway":       {"-4 route append default via GW4 dev DEV", "-6 route append default via GW6 dev DEV"},
		"default of one metric":      {"-4 route append default via GW4 dev DEV metric 50", "-6 route append default via GW6 dev DEV metric 50"},
		"default on the link":        {"-4 route append default dev DEV", "-6 route append default dev DEV"},
		"with a source":              {"-4 route append 10.5.0.0/16 via GW4 dev DEV src ADDR4", "-6 route append fd05::/64 via GW6 dev DEV src ADDR6"},
		"by several gateways":        {"-4 route append 10.5.0.0/16 nexthop via GW4 dev DEV nexthop via 10.1.0.8 dev DEV"},
		"to the subnet of the other": {"-4 route append 10.1.0.0/24 dev DEV metric 7", "-6 route append fd01::/64 dev DEV metric 7"},
		"MTU":                        {"-4 route append 10.4.0.0/16 via GW4 dev DEV mtu 1300", "-6 route append fd04::/64 via GW6 dev DEV mtu 1300"},
	}
	for name, lines := range kinds {
		for _, order := range [][]string{{"net1", "net2"}, {"net2", "net1"}} {
			t.Run(name+", "+order[0]+" first", func(t *testing.T) {
				e := newEnv(t)
				for _, dev := range []string{"net1", "net2"} {
					for _, line := range lines {
						e.ip(strings.NewReplacer("DEV", dev, "GW4", "10.1.0.9", "GW6", "fd01::9", "ADDR4", "10.1.0.5", "ADDR6", "fd01::5").Replace(line))
					}
				}
				want := map[string][]string{"net1": e.inTable("net1", 254), "net2": e.inTable("net2", 254)}
				got := func(table int, devs ...string) {
					t.Helper()
					for _, dev := range devs {
						if d := cmp.Diff(want[dev], e.inTable(dev, table)); d != "" {
							t.Errorf("routes of %s in table %d (- want, + got):\n%s", dev, table, d)
						}
					}
				}
				for _, dev := range order {
					e.mustAdd(dev, `,"vrfname":"blue","table":500`)
				}
				got(500, order...)
				e.mustDel(order[1], `,"vrfname":"blue"`)
				got(500, order[0])
				got(254, order[1])
				e.mustAdd(order[1], `,"vrfname":"blue"`)
				e.mustDel(order[0], `,"vrfname":"blue"`)
				got(500, order[1])
				got(254, order[0])
				e.mustDel(order[1], `,"vrfname":"blue"`)
				got(254, order...)
			})
		}
	}
}
