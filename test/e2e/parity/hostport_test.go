// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"fmt"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

func hostPorts() parityCase {
	return parityCase{
		group:   "hostPorts",
		options: e2etest.TwoUplinks(),
		build: func(s *stage) {
			rt := s.runtime(hairpins())
			ports := onBoth(8080, anyIP)
			for i := range 20 {
				ports = append(ports, e2etest.TCP(10000+i, 80))
			}
			s.pod(rt, "web", ports...)
			s.pod(rt, "sibling")
			s.pod(s.runtime(e2etest.Net1()), "stranger")
			for i, c := range s.Clients {
				e2etest.Serve(s.T, c, []string{"client", "client2"}[i], ":8080")
			}
			e2etest.Serve(s.T, s.Node, "node", ":8081")
		},
		atOnce: []behaviour{
			probe("from outside", "client", onNode(8080)),
			probe("from outside by the other uplink", "client2", onNode2(8080)),
			probe("by the other uplink's address", "client", onNode2(8080)),
			shut("an unpublished port", "client", onNode(8082)),
			shut("the container's port on the node", "client", onNode(80)),
			probe("the pod's own address from outside", "client", onPod("web", 80)),
			probe("another port, which the node serves", "client", onNode(8081)),
			probe("a client's own port of that number, from a pod", "sibling", onClient(8080)),
			probe("a client's own port of that number, through the node", "client", onClient2(8080)),
			probe("from the pod itself, by the node's address", "web", onNode(8080)),
			probe("from the pod itself, by the gateway's address", "web", onGateway(8080)),
			probe("from a sibling, by the node's address", "sibling", onNode(8080)),
			probe("from a sibling, by the gateway's address", "sibling", onGateway(8080)),
			probe("from a sibling, by the other uplink's address", "sibling", onNode2(8080)),
			probe("from a pod of another network", "stranger", onNode(8080)),
			probe("from a sibling, by the pod's own address", "sibling", onPod("web", 80)),
			probe("from the node, by its address", "node", onNode(8080)),
			probe("from the node, by the gateway's address", "node", onGateway(8080)),
			shut("from the node, by its loopback address", "node", onLoopback(8080)),
			ipv4(shut("from the node, by 127.0.0.2", "node", onAddress("127.0.0.2", 8080))),
			probe("the pod's own address from the node", "node", onPod("web", 80)),
			{name: "20 ports of the node to one of the pod", observe: func(s *stage, fam e2etest.Family) string {
				n := 0
				for i := range uint16(20) {
					if s.converse(e2etest.AnswerTimeout, s.Client(), "tcp"+fam.Suffix, "", e2etest.At(fam.Node(s.Client()), 10000+i)) == "web saw client" {
						n++
					}
				}
				return fmt.Sprintf("%d of 20", n)
			}},
		},
	}
}

func hostIPs() parityCase {
	return parityCase{
		group:   "hostIP",
		options: e2etest.TwoUplinks(),
		build: func(s *stage) {
			rt := s.runtime(hairpins())
			s.pod(rt, "one", onBoth(8081, s.nodeIPs(0)...)...)
			s.pod(rt, "four", onBoth(8082, "0.0.0.0")...)
			s.pod(rt, "six", onBoth(8082, "::")...)
			s.pod(rt, "lo", onBoth(8083, "127.0.0.1")...)
			s.pod(rt, "first", onBoth(8084, s.nodeIPs(0)...)...)
			s.pod(rt, "second", onBoth(8084, s.nodeIPs(1)...)...)
			s.pod(rt, "exact", onBoth(8085, s.nodeIPs(0)...)...)
			s.pod(rt, "all", onBoth(8085, anyIP)...)
			s.pod(rt, "byTCP", e2etest.TCP(8086, 80))
			s.pod(rt, "byUDP", e2etest.UDP(8086, 80))
			v4 := s.runtime(e2etest.Network{Name: "net4", Bridge: "cni4", Subnets: []string{"10.4.0.0/16"}})
			s.pod(v4, "onlyv4", onBoth(8087, "::", "0.0.0.0")...)
		},
		atOnce: []behaviour{
			probe("that address", "client", onNode(8081)),
			probe("that address by the other uplink", "client2", onNode(8081)),
			shut("another address of the node", "client", onNode2(8081)),
			probe("that address, from the node", "node", onNode(8081)),
			shut("another address, from the node", "node", onNode2(8081)),
			shut("another address, from the node's loopback", "node", onLoopback(8081)),
			probe("that address, from a pod", "all", onNode(8081)),
			shut("another address, from a pod", "all", onGateway(8081)),
			probe("0.0.0.0 of one pod and :: of another", "client", onNode(8082)),
			shut("127.0.0.1, from outside by the node's address", "client", onNode(8083)),
			ipv4(probe("127.0.0.1, from the node", "node", onLoopback(8083))),
			probe("one port of two addresses to two pods, the first", "client", onNode(8084)),
			probe("one port of two addresses to two pods, the second", "client", onNode2(8084)),
			probe("one address, added before a pod that has all", "client", onNode(8085)),
			probe("the others, added after a pod that has one", "client", onNode2(8085)),
			probe("one port by TCP and UDP to two pods", "client", onNode(8086)),
			shut(":: and 0.0.0.0 for a pod without IPv6", "client", onNode(8087)),
		},
	}
}

func portmapKeys(group string, keys func(s *stage) e2etest.Attributes, prepare func(s *stage), more ...behaviour) parityCase {
	return parityCase{
		group:   "portmap: " + group,
		options: e2etest.TwoUplinks(),
		build: func(s *stage) {
			if prepare != nil {
				prepare(s)
			}
			n := hairpins()
			n.Portmap = keys(s)
			rt := s.runtime(n)
			s.pod(rt, "web", onBoth(8080, anyIP)...)
			s.pod(rt, "sibling")
			s.pod(s.runtime(e2etest.Net1()), "stranger", onBoth(8090, anyIP)...)
		},
		atOnce: append([]behaviour{
			shut("from outside", "client", onNode(8080)),
			probe("from outside by the other uplink", "client2", onNode2(8080)),
			shut("from a sibling", "sibling", onNode(8080)),
			shut("from the pod itself", "web", onNode(8080)),
			probe("from a pod of another network", "stranger", onNode(8080)),
			ipv4(shut("from the node, by 127.0.0.1", "node", onLoopback(8080))),
			probe("the port of a network without the key", "client", onNode(8090)),
		}, more...),
	}
}

// marks is a node whose networks masquerade by different marks.
func marks() parityCase {
	bits := []int{0, 31}
	port := func(bit int) uint16 { return uint16(8100 + bit) }
	sc := parityCase{
		group:   "portmap: values of markMasqBit",
		options: e2etest.TwoUplinks(),
		build: func(s *stage) {
			for _, bit := range bits {
				n := hairpins()
				n.Portmap = e2etest.Attributes{"markMasqBit": bit}
				s.pod(s.runtime(n), fmt.Sprint("bit", bit), onBoth(int(port(bit)), anyIP)...)
			}
			s.pod(s.runtime(hairpins()), "sibling", onBoth(8080, anyIP)...)
		},
	}
	for _, bit := range bits {
		name := fmt.Sprintf("bit%d", bit)
		sc.atOnce = append(sc.atOnce,
			probe(fmt.Sprintf("%d, from outside", bit), "client", onNode(port(bit))),
			probe(fmt.Sprintf("%d, from a sibling", bit), "sibling", onNode(port(bit))),
			probe(fmt.Sprintf("%d, from the pod itself", bit), name, onNode(port(bit))),
			ipv4(shut(fmt.Sprintf("%d, from the node, by 127.0.0.1", bit), "node", onLoopback(port(bit)))))
	}
	sc.atOnce = append(sc.atOnce, probe("the default beside them, from a pod of another value", "bit0", onNode(8080)))
	return sc
}

// notClient is the condition that the first client is not who asks.
func notClient(s *stage) e2etest.Attributes {
	words := func(v4, v6 []string) e2etest.Attributes {
		return e2etest.Attributes{"conditionsV4": v4, "conditionsV6": v6}
	}
	c := s.Clients[0]
	v4, v6 := e2etest.Families()[0].Client(c).String(), e2etest.Families()[1].Client(c).String()
	if s.column.isNFT() {
		return words([]string{"ip", "saddr", "!=", v4}, []string{"ip6", "saddr", "!=", v6})
	}
	return words([]string{"!", "-s", v4}, []string{"!", "-s", v6})
}

// markChain makes the chain that the administrator marks with, and what masquerades it.
func markChain(s *stage) {
	for _, ip := range s.iptables() {
		e2etest.MustRun(s.T, s.Node, ip+" -t nat -N MARK-IT")
		e2etest.MustRun(s.T, s.Node, ip+" -t nat -A MARK-IT -j MARK --set-xmark 0x8000/0x8000")
		e2etest.MustRun(s.T, s.Node, ip+" -t nat -A POSTROUTING -m mark --mark 0x8000/0x8000 -j MASQUERADE")
	}
}

// iptables are the programs for the tables that a column writes.
func (s *stage) iptables() []string {
	if s.column.name == "iptables-legacy" {
		return []string{"iptables-legacy", "ip6tables-legacy"}
	}
	return []string{"iptables-nft", "ip6tables-nft"}
}
