// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"fmt"
	"regexp"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// sourceRoutes is the way of a packet from the address of an interface that sbr follows, by where the gateway of the
// route is. The pod has no other interface: a route that enters no table leaves no way at all.
func sourceRoutes() parityCase {
	const mtu = 1400
	inside := routed("10.1.0.1", "fd00:10:1::1",
		e2etest.Attributes{"dst": "0.0.0.0/0", "mtu": mtu}, e2etest.Attributes{"dst": "::/0", "mtu": mtu},
		via("198.51.100.0/24", "10.1.0.9"), via("2001:db8:9::/48", "fd00:10:1::9"))
	outside := routed("", "", e2etest.Attributes{"dst": "169.254.1.1/32", "scope": 253}, e2etest.Attributes{"dst": "fd77::1/128"},
		via("0.0.0.0/0", "169.254.1.1"), via("::/0", "fe80::1"), via("198.51.100.0/24", "169.254.1.1"), via("2001:db8:9::/48", "fd77::1"))
	other := routed("10.1.0.1", "fd00:10:1::1", via("0.0.0.0/0", "10.1.0.8"), via("::/0", "fd00:10:1::8"))
	return parityCase{
		group: "sbr",
		build: func(*stage) {},
		then: []behaviour{
			leaves("by the address's gateway, with an MTU", inside, "203.0.113.1", "2001:db8:ff::1"),
			leaves("by another gateway of the subnet", inside, "198.51.100.1", "2001:db8:9::1"),
			leaves("by a default route that is not the address's gateway", other, "203.0.113.1", "2001:db8:ff::1"),
			leaves("by a default route whose gateway is outside of the subnet", outside, "203.0.113.1", "2001:db8:ff::1"),
			leaves("by a gateway behind a host route", outside, "198.51.100.1", "2001:db8:9::1"),
		},
	}
}

func via(dst, gw string) e2etest.Attributes { return e2etest.Attributes{"dst": dst, "gw": gw} }

// routed is a network of one pod, which has its addresses, their gateways if there are any, and routes.
func routed(gw4, gw6 string, routes ...e2etest.Attributes) e2etest.Network {
	a4, a6 := e2etest.Attributes{"address": "10.1.0.5/16"}, e2etest.Attributes{"address": "fd00:10:1::5/64"}
	if gw4 != "" {
		a4["gateway"], a6["gateway"] = gw4, gw6
	}
	return e2etest.Network{
		NoMasq: true, Plugins: []string{"sbr"}, Extra: e2etest.Attributes{"isGateway": gw4 != ""},
		IPAM: e2etest.Attributes{"type": "static", "addresses": []any{a4, a6}, "ranges": nil, "routes": routes},
	}
}

var wayOf = regexp.MustCompile(`via \S+|mtu \d+`)

// leaves asks the kernel of a pod for the way to an address from the pod's own.
func leaves(name string, n e2etest.Network, to4, to6 string) behaviour {
	return behaviour{name: name, observe: func(s *stage, fam e2etest.Family) string {
		p := s.AddPod(s.runtime(n), fmt.Sprintf("sbr-%d", s.tries.Add(1)))
		defer p.MustDel()
		to := to4
		if fam.Suffix == "6" {
			to = to6
		}
		var out string
		if err := p.Do(func() (err error) {
			out, err = netlab.Run("ip", "route", "get", to, "from", fam.Pod(p).String())
			return err
		}); err != nil {
			return "no route"
		}
		return fmt.Sprint(wayOf.FindAllString(out, -1))
	}}
}
