// SPDX-License-Identifier: Apache-2.0

package parity

import "github.com/sluice-cni/sluice/pkg/test/e2etest"

// plainClients are pods of networks without features, whose devices have no programs of ours: neither ipMasq nor firewall, and no port of their own.
// They ask for hostPorts of pods in a network with that ingressPolicy, if any.
func plainClients(of, policy string) parityCase {
	plain := func(n e2etest.Network) e2etest.Network {
		n.NoMasq, n.Plugins = true, []string{"portmap"}
		return n
	}
	return parityCase{
		group:   "hostPorts for clients without features, " + of,
		options: e2etest.TwoUplinks(),
		build: func(s *stage) {
			n := hairpins()
			if policy != "" {
				n.Firewall = e2etest.Attributes{"ingressPolicy": policy}
			}
			neighbours := plain(hairpins())
			neighbours.Name = "neighbours"
			neighbours.IPAM = e2etest.Attributes{"ranges": []any{
				[]e2etest.Attributes{{"subnet": "10.1.0.0/16", "rangeStart": "10.1.7.2"}},
				[]e2etest.Attributes{{"subnet": "fd00:10:1::/64", "rangeStart": "fd00:10:1::7:2"}},
			}}
			s.pod(s.runtime(neighbours), "early")
			s.pod(s.runtime(n), "web", onBoth(8080, anyIP)...)
			s.pod(s.runtime(n), "one", onBoth(8081, s.nodeIPs(0)...)...)
			s.pod(s.runtime(neighbours), "neighbour")
			s.pod(s.runtime(plain(e2etest.Net1())), "stranger")
			s.pod(s.runtime(plain(e2etest.Network{Name: "ptp", Main: "ptp", Subnets: []string{"10.3.0.0/16", "fd00:10:3::/64"}})), "linked")
		},
		atOnce: []behaviour{
			probe("in the pod's subnet, from before it", "early", onNode(8080)),
			probe("in the pod's subnet", "neighbour", onNode(8080)),
			probe("in the pod's subnet, by the gateway's address", "neighbour", onGateway(8080)),
			probe("in the pod's subnet, by the other uplink's address", "neighbour", onNode2(8080)),
			probe("in the pod's subnet, with hostIP", "neighbour", onNode(8081)),
			shut("in the pod's subnet, with another hostIP", "neighbour", onNode2(8081)),
			probe("on another bridge", "stranger", onNode(8080)),
			probe("on another bridge, by the gateway's address", "stranger", onGateway(8080)),
			probe("on a point-to-point link", "linked", onNode(8080)),
			probe("on a point-to-point link, with hostIP", "linked", onNode(8081)),
			shut("an unpublished port", "neighbour", onNode(8082)),
			probe("the pod's own address, in its subnet", "neighbour", onPod("web", 80)),
			probe("the pod's own address, on another bridge", "stranger", onPod("web", 80)),
		},
	}
}
