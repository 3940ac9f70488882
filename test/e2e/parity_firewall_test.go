// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// admission is a node whose FORWARD policy is DROP, with an administrator's
// chain.
func admission() scene {
	return scene{
		group: "firewall: FORWARD policy DROP",
		build: func(s *stage) {
			for _, ip := range s.iptables() {
				sh(s.t, s.Node, ip+" -P FORWARD DROP")
			}
			n := hairpins()
			n.firewall = attributes{"iptablesAdminChainName": "MINE"}
			rt := s.runtime(n)
			s.pod(rt, "web", onBoth(8080, anyIP)...)
			s.pod(rt, "sibling")
			outside := net1()
			outside.plugins = []string{"portmap"}
			s.pod(s.runtime(outside), "strange")
			serve(s.t, s.Client(), "client", ":9000")
		},
		then: []behaviour{
			shut("from the pod to the outside", "web", onClient(9000)),
			shut("from a pod without the plugin to the outside", "strange", onClient(9000)),
			shut("from outside to a hostPort", "client", onNode(8080)),
			probe("from the node to the pod", "node", onPod("web", 80)),
			ruled("from the pod to the outside, the node's mark accepted", "-A FORWARD -m mark --mark 0x1000/0x1000 -j ACCEPT", "web", onClient(9000)),
			shut("from a pod without the plugin to the outside, the node's mark accepted", "strange", onClient(9000)),
			ruled("from the pod to the outside, iptablesAdminChainName rejects", "-A MINE -j REJECT", "web", onClient(9000)),
			ruled("from the pod to the outside, the chain empty again", "-F MINE", "web", onClient(9000)),
		},
	}
}

// ruled is what is seen after a rule is added.
func ruled(name, rule, from string, to func(*stage, family) string) behaviour {
	return behaviour{name: name, see: func(s *stage, fam family) string {
		program := s.iptables()[0]
		if fam.suffix == "6" {
			program = s.iptables()[1]
		}
		if err := s.Node.Do(func() error { return run(program + " " + rule) }); err != nil {
			return "there is no such chain"
		}
		return s.closed(s.place(from), fam, to(s, fam))
	}}
}

// policies is two networks with an ingressPolicy and one without.
func policies(policy string) scene {
	return scene{
		group: "firewall: ingressPolicy " + policy,
		build: func(s *stage) {
			n0, n1 := hairpins(), net1()
			n0.firewall, n1.firewall = attributes{"ingressPolicy": policy}, attributes{"ingressPolicy": policy}
			free := network{name: "net2", bridge: "cni2", subnets: []string{"10.3.0.0/16", "fd00:10:3::/64"}}
			rt := s.runtime(n0)
			s.pod(rt, "a", onBoth(8080, anyIP)...)
			s.pod(rt, "b")
			s.pod(s.runtime(n1), "other", onBoth(8081, anyIP)...)
			s.pod(s.runtime(free), "free", onBoth(8082, anyIP)...)
			serve(s.t, s.Client(), "client", ":9000")
			serve(s.t, s.Node, "node", ":9001")
		},
		atOnce: []behaviour{
			shut("to a pod of the same bridge", "a", onPod("b", 80)),
			shut("to a pod of another bridge with the policy", "a", onPod("other", 80)),
			shut("to a pod of another bridge without", "a", onPod("free", 80)),
			shut("from a pod of another bridge without", "free", onPod("a", 80)),
			shut("to the outside", "a", onClient(9000)),
			shut("from the outside", "client", onPod("a", 80)),
			shut("from the outside by a hostPort", "client", onNode(8080)),
			shut("from the node", "node", onPod("a", 80)),
			shut("from the node by a hostPort", "node", onNode(8080)),
			shut("to the node", "a", onNode(9001)),
			shut("to the hostPort of another bridge's pod", "a", onNode(8081)),
			shut("to the hostPort of a bridge without", "a", onNode(8082)),
			shut("to the hostPort of a pod of the same bridge", "b", onNode(8080)),
			{name: "ping to a pod of another bridge with the policy", see: func(s *stage, fam family) string {
				return pinged(s.pods["a"], fam, fam.pod(s.pods["other"]))
			}},
		},
	}
}

// zones is a node with firewalld.
func zones() scene {
	return scene{
		group: "firewalld",
		build: func(s *stage) {
			s.firewalld()
			zone := func(keys attributes) *netlab.Runtime {
				return s.runtime(network{plugins: []string{"firewall"}, firewall: merged(attributes{"backend": "firewalld"}, keys)})
			}
			s.pod(zone(attributes{"firewalldZone": "home"}), "home")
			s.pod(zone(nil), "trusted")
		},
		then: []behaviour{
			once("addresses in the zone of firewalldZone", func(s *stage) string { return s.inZone("home") }),
			once("addresses in the default zone", func(s *stage) string { return s.inZone("trusted") }),
			once("CHECK", func(s *stage) string { return said("CHECK", s.pods["home"].check()) }),
			once("CHECK after an address was taken out", func(s *stage) string {
				sh(s.t, s.Node, "firewall-cmd --zone=home --remove-source="+s.pods["home"].IP4.String()+"/32")
				return said("CHECK", s.pods["home"].check())
			}),
			once("addresses in the zone after DEL", func(s *stage) string {
				out := said("DEL", s.pods["trusted"].tryDel())
				return out + ", " + s.inZone("trusted")
			}),
			once("the zone after DEL without prevResult", func(s *stage) string {
				p := s.pods["home"]
				_ = p.rt.ForgetCache(p.att)
				out := said("DEL", p.tryDel())
				return out + ", " + s.inZone("home")
			}),
			once("a zone that does not exist", func(s *stage) string {
				p := s.newPod(s.runtime(network{plugins: []string{"firewall"}, firewall: attributes{"backend": "firewalld", "firewalldZone": "nowhere"}}), "lost")
				out := said("ADD", p.tryAdd())
				_ = p.tryDel()
				return out
			}),
		},
	}
}

// inZone counts a pod's addresses in the zone of its name.
func (s *stage) inZone(zone string) string {
	sources := strings.Fields(sh(s.t, s.Node, "firewall-cmd --zone="+zone+" --list-sources"))
	n := 0
	for _, want := range []string{s.pods[zone].IP4.String() + "/32", s.pods[zone].IP6.String() + "/128"} {
		if slices.Contains(sources, want) {
			n++
		}
	}
	return fmt.Sprintf("%d of 2", n)
}
