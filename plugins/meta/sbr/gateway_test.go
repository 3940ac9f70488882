// SPDX-License-Identifier: Apache-2.0

package sbr

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/test/plugintest"
)

// gatewayCases are routes of net1 whose gateways lie outside of the subnets of its addresses, or that say more than
// destination and gateway. Each test starts without routes of net1 but the kernel's.
var gatewayCases = []struct {
	name string
	keys string
	ips  []string
	made []string // arguments of ip(8)
	want []string // lines of the tables, besides those to the subnets
}{
	{
		name: "a link-local gateway that prevResult does not name",
		ips:  []string{`{"address":"10.1.0.5/24","gateway":"10.1.0.1"}`, `{"address":"fd01::5/64"}`},
		made: []string{"-6 route add default via fe80::1 dev net1"},
		want: []string{"default via 10.1.0.1 dev net1 table 100", "default via fe80::1 dev net1 table 101 metric 1024"},
	},
	{
		name: "a link-local gateway that prevResult names",
		ips:  []string{`{"address":"fd01::5/64","gateway":"fe80::1"}`},
		made: []string{"-6 route add default via fe80::1 dev net1 mtu 1400", "-6 route add fd09::/64 via fe80::9 dev net1"},
		want: []string{"default via fe80::1 dev net1 table 100 metric 1024 mtu 1400", "fd09::/64 via fe80::9 dev net1 table 100 metric 1024"},
	},
	{
		name: "an onlink gateway",
		ips:  []string{`{"address":"10.1.0.5/24"}`},
		made: []string{"route add default via 169.254.1.1 dev net1 onlink", "route add 10.9.0.0/16 via 169.254.1.2 dev net1 onlink metric 7"},
		want: []string{"default via 169.254.1.1 dev net1 table 100 onlink", "10.9.0.0/16 via 169.254.1.2 dev net1 table 100 metric 7 onlink"},
	},
	{
		name: "an onlink gateway that prevResult names",
		ips:  []string{`{"address":"10.1.0.5/24","gateway":"169.254.1.1"}`, `{"address":"fd01::5/64","gateway":"fd77::1"}`},
		made: []string{"route add default via 169.254.1.1 dev net1 onlink", "-6 route add default via fd77::1 dev net1 onlink"},
		want: []string{"default via 169.254.1.1 dev net1 table 100 onlink", "default via fd77::1 dev net1 table 101 metric 1024 onlink"},
	},
	{
		name: "a gateway behind a host route",
		ips:  []string{`{"address":"10.1.0.5/24"}`, `{"address":"fd01::5/64"}`},
		made: []string{
			"route add 169.254.1.1 dev net1 scope link", "route add default via 169.254.1.1 dev net1 mtu 1400 advmss 1360",
			"-6 route add fd77::1 dev net1", "-6 route add default via fd77::1 dev net1",
		},
		want: []string{
			"169.254.1.1 dev net1 table 100 scope link", "default via 169.254.1.1 dev net1 table 100 mtu 1400 advmss 1360",
			"fd77::1 dev net1 table 101 metric 1024", "default via fd77::1 dev net1 table 101 metric 1024",
		},
	},
	{
		name: "a host route that belongs to another address",
		ips:  []string{`{"address":"10.1.0.5/24"}`, `{"address":"10.2.0.5/24"}`},
		made: []string{"addr add 10.2.0.5/24 dev net1", "route add 192.0.2.1 dev net1 scope link src 10.1.0.5", "route add default via 192.0.2.1 dev net1"},
		want: []string{
			"192.0.2.1 dev net1 table 100 scope link src 10.1.0.5", "default via 192.0.2.1 dev net1 table 100",
			"192.0.2.1 dev net1 table 101 scope link src 10.1.0.5", "default via 192.0.2.1 dev net1 table 101",
		},
	},
	{
		name: "several addresses, one gateway outside of all",
		ips: []string{
			`{"address":"10.1.0.5/24"}`, `{"address":"10.2.0.5/24","gateway":"10.2.0.1"}`,
			`{"address":"fd01::5/64","gateway":"fe80::1"}`, `{"address":"fd02::5/64"}`,
		},
		made: []string{
			"addr add 10.2.0.5/24 dev net1", "-6 addr add fd02::5/64 dev net1 nodad",
			"route add 10.9.0.0/16 via 169.254.1.1 dev net1 onlink", "-6 route add default via fe80::1 dev net1",
		},
		want: []string{
			"10.9.0.0/16 via 169.254.1.1 dev net1 table 100 onlink",
			"10.9.0.0/16 via 169.254.1.1 dev net1 table 101 onlink", "default via 10.2.0.1 dev net1 table 101",
			"default via fe80::1 dev net1 table 102 metric 1024", "default via fe80::1 dev net1 table 103 metric 1024",
		},
	},
	{
		name: "default routes of several metrics",
		ips:  []string{`{"address":"10.1.0.5/24","gateway":"10.1.0.1"}`, `{"address":"fd01::5/64","gateway":"fd01::1"}`},
		made: []string{
			"route add default via 10.1.0.2 dev net1 metric 50", "route add default via 10.1.0.1 dev net1 metric 40 mtu 1400",
			"-6 route add default via fe80::2 dev net1 metric 50", "-6 route add default via fd01::1 dev net1 metric 40",
		},
		want: []string{
			"default via 10.1.0.1 dev net1 table 100 metric 40 mtu 1400", "default via 10.1.0.2 dev net1 table 100 metric 50",
			"default via fd01::1 dev net1 table 101 metric 40", "default via fe80::2 dev net1 table 101 metric 50",
		},
	},
	{
		name: "a default route by another gateway than the address's",
		ips:  []string{`{"address":"10.1.0.5/24","gateway":"10.1.0.1"}`, `{"address":"fd01::5/64","gateway":"fd01::1"}`},
		made: []string{"route add default via 10.1.0.2 dev net1", "-6 route add default via fe80::2 dev net1"},
		want: []string{"default via 10.1.0.2 dev net1 table 100", "default via fe80::2 dev net1 table 101 metric 1024"},
	},
	{
		name: "a gateway of the configuration",
		keys: `,"gateways":["10.1.0.77"]`,
		ips:  []string{`{"address":"10.1.0.5/24","gateway":"10.1.0.1"}`},
		made: []string{"route add default via 169.254.1.1 dev net1 onlink", "route add default via 10.1.0.77 dev net1 metric 9"},
		want: []string{"default via 10.1.0.77 dev net1 table 100 metric 9"},
	},
	{
		name: "a gateway of the other family",
		ips:  []string{`{"address":"10.1.0.5/24"}`},
		made: []string{"-4 route add default via inet6 fe80::1 dev net1", "route add 10.9.0.0/16 nexthop via inet6 fe80::1 dev net1 nexthop via 10.1.0.9 dev net1 weight 3"},
		want: []string{
			"default via inet6 fe80::1 dev net1 table 100",
			"10.9.0.0/16 table 100 nexthop via inet6 fe80::1 dev net1 weight 1 nexthop via 10.1.0.9 dev net1 weight 3",
		},
	},
	{
		name: "next hops onlink",
		ips:  []string{`{"address":"10.1.0.5/24"}`},
		made: []string{"route add default nexthop via 169.254.1.1 dev net1 onlink nexthop via 10.1.0.9 dev net1"},
		want: []string{"default table 100 nexthop via 169.254.1.1 dev net1 weight 1 onlink nexthop via 10.1.0.9 dev net1 weight 1"},
	},
	{
		name: "two routes that differ in nothing but the gateway",
		ips:  []string{`{"address":"10.1.0.5/24"}`, `{"address":"fd01::5/64"}`},
		made: []string{"route add default via 10.1.0.8 dev net1", "route append default via 10.1.0.9 dev net1", "-6 route add default via fd01::8 dev net1", "-6 route append default via fd01::9 dev net1"},
		want: []string{
			"default via 10.1.0.8 dev net1 table 100", "default via 10.1.0.9 dev net1 table 100",
			"default table 101 metric 1024 pref medium nexthop via fd01::8 dev net1 weight 1 nexthop via fd01::9 dev net1 weight 1",
		},
	},
	{
		name: "source hints",
		keys: `,"addSourceHints":true`,
		ips:  []string{`{"address":"10.1.0.5/24"}`},
		made: []string{"route add 169.254.1.1 dev net1 scope link", "route add default via 169.254.1.1 dev net1"},
		want: []string{
			"169.254.1.1 dev net1 table 100 scope link", "default via 169.254.1.1 dev net1 table 100", "169.254.1.1 dev net1 scope link",
			"10.1.0.0/24 dev net1 scope link src 10.1.0.5",
		},
	},
}

// What the interface reaches by a gateway it still reaches, whatever subnet the gateway is in.
func TestPrivilegedGateways(t *testing.T) {
	t.Parallel()
	for _, tt := range gatewayCases {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			e.ip("route flush proto boot")
			e.ip("-6 route flush proto boot")
			for _, args := range tt.made {
				e.ip(args)
			}
			e.prev = prevResult(tt.ips...)
			before := e.routes("")
			e.mustAdd(tt.keys)
			first := e.routes("proto kernel")
			if d := cmp.Diff(sorted(tt.want), sorted(first)); d != "" {
				t.Errorf("after ADD (- want, + got):\n%s", d)
			}
			if err := e.call(e.plugin.Check, tt.keys+e.prev); err != nil {
				t.Errorf("CHECK: %v", err)
			}
			e.mustAdd(tt.keys)
			if d := cmp.Diff(first, e.routes("proto kernel")); d != "" { // with the order of equals
				t.Errorf("after a second ADD (- first, + second):\n%s", d)
			}
			for _, family := range []string{"-4", "-6"} {
				for table := 100; table < 104; table++ { // an error where there is no such table
					if strings.Contains(e.ip(family+" route show table all"), fmt.Sprintf("table %d ", table)) {
						e.ip(fmt.Sprintf("%s route flush table %d", family, table))
					}
				}
			}
			plugintest.WantCode(t, e.call(e.plugin.Check, tt.keys+e.prev), 102, "table 10", "default route")
			for range 2 {
				if err := e.call(e.plugin.Del, tt.keys); err != nil {
					t.Fatalf("DEL: %v", err)
				}
				if d := cmp.Diff(before, e.routes("")); d != "" {
					t.Errorf("after DEL (- before, + after):\n%s", d)
				}
			}
		})
	}
}

// routes are net1's, one a line whatever its next hops are, but those with a word.
func (e *env) routes(but string) (out []string) {
	e.t.Helper()
	for _, family := range []string{"-4", "-6"} {
		for _, l := range strings.Split(strings.ReplaceAll(e.ip(family+" route show table all"), "\n\t", " "), "\n") {
			l = strings.TrimSuffix(strings.Join(strings.Fields(l), " "), " pref medium")
			if strings.Contains(l, "net1") && !strings.Contains(l, "table local") && !strings.Contains(l, "ff00::") && (but == "" || !strings.Contains(l, but)) {
				out = append(out, l)
			}
		}
	}
	return out
}
