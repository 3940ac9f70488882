// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// admission is a node whose FORWARD policy is DROP, with an administrator's
// chain.
func admission() parityCase {
	return parityCase{
		group: "firewall: FORWARD policy DROP",
		build: func(s *stage) {
			for _, ip := range s.iptables() {
				e2etest.MustRun(s.T, s.Node, ip+" -P FORWARD DROP")
			}
			n := hairpins()
			n.Firewall = e2etest.Attributes{"iptablesAdminChainName": "MINE"}
			rt := s.runtime(n)
			s.pod(rt, "web", onBoth(8080, anyIP)...)
			s.pod(rt, "sibling")
			outside := e2etest.Net1()
			outside.Plugins = []string{"portmap"}
			s.pod(s.runtime(outside), "strange")
			e2etest.Serve(s.T, s.Client(), "client", ":9000")
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
func ruled(name, rule, from string, to func(*stage, e2etest.Family) string) behaviour {
	return behaviour{name: name, observe: func(s *stage, fam e2etest.Family) string {
		program := s.iptables()[0]
		if fam.Suffix == "6" {
			program = s.iptables()[1]
		}
		if err := s.Node.Do(func() error { return run(program + " " + rule) }); err != nil {
			return "there is no such chain"
		}
		return s.closed(s.place(from), fam, to(s, fam))
	}}
}

// policies is two networks with an ingressPolicy and one without.
func policies(policy string) parityCase {
	return parityCase{
		group: "firewall: ingressPolicy " + policy,
		build: func(s *stage) {
			n0, n1 := hairpins(), e2etest.Net1()
			n0.Firewall, n1.Firewall = e2etest.Attributes{"ingressPolicy": policy}, e2etest.Attributes{"ingressPolicy": policy}
			free := e2etest.Network{Name: "net2", Bridge: "cni2", Subnets: []string{"10.3.0.0/16", "fd00:10:3::/64"}}
			rt := s.runtime(n0)
			s.pod(rt, "a", onBoth(8080, anyIP)...)
			s.pod(rt, "b")
			s.pod(s.runtime(n1), "other", onBoth(8081, anyIP)...)
			s.pod(s.runtime(free), "free", onBoth(8082, anyIP)...)
			e2etest.Serve(s.T, s.Client(), "client", ":9000")
			e2etest.Serve(s.T, s.Node, "node", ":9001")
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
			{name: "ping to a pod of another bridge with the policy", observe: func(s *stage, fam e2etest.Family) string {
				return pinged(s.pods["a"], fam, fam.Pod(s.pods["other"]))
			}},
		},
	}
}

// zones is a node with firewalld.
func zones() parityCase {
	return parityCase{
		group: "firewalld",
		build: func(s *stage) {
			s.Firewalld()
			zone := func(keys e2etest.Attributes) *netlab.Runtime {
				return s.runtime(e2etest.Network{Plugins: []string{"firewall"}, Firewall: e2etest.Merge(e2etest.Attributes{"backend": "firewalld"}, keys)})
			}
			s.pod(zone(e2etest.Attributes{"firewalldZone": "home"}), "home")
			s.pod(zone(nil), "trusted")
			s.pod(s.runtime(e2etest.Network{Plugins: []string{"portmap"}}), "web", onBoth(8080, anyIP)...)
		},
		atOnce: []behaviour{probe("a hostPort that no zone opens, from outside", "client", onNode(8080))},
		then: []behaviour{
			once("addresses in the zone of firewalldZone", func(s *stage) string { return s.inZone("home") }),
			once("addresses in the default zone", func(s *stage) string { return s.inZone("trusted") }),
			once("CHECK", func(s *stage) string { return said("CHECK", s.pods["home"].Check()) }),
			once("CHECK after an address was taken out", func(s *stage) string {
				e2etest.MustRun(s.T, s.Node, "firewall-cmd --zone=home --remove-source="+s.pods["home"].IP4.String()+"/32")
				return said("CHECK", s.pods["home"].Check())
			}),
			once("addresses in the zone after DEL", func(s *stage) string {
				out := said("DEL", s.pods["trusted"].TryDel())
				return out + ", " + s.inZone("trusted")
			}),
			once("the zone after DEL without prevResult", func(s *stage) string {
				p := s.pods["home"]
				_ = p.Runtime.ForgetCache(p.Attachment)
				out := said("DEL", p.TryDel())
				return out + ", " + s.inZone("home")
			}),
			once("a zone that does not exist", func(s *stage) string {
				p := s.NewPod(s.runtime(e2etest.Network{Plugins: []string{"firewall"}, Firewall: e2etest.Attributes{"backend": "firewalld", "firewalldZone": "nowhere"}}), "lost")
				out := said("ADD", p.TryAdd())
				_ = p.TryDel()
				return out
			}),
		},
	}
}

// inZone counts a pod's addresses in the zone of its name.
func (s *stage) inZone(zone string) string {
	sources := strings.Fields(e2etest.MustRun(s.T, s.Node, "firewall-cmd --zone="+zone+" --list-sources"))
	n := 0
	for _, want := range []string{s.pods[zone].IP4.String() + "/32", s.pods[zone].IP6.String() + "/128"} {
		if slices.Contains(sources, want) {
			n++
		}
	}
	return fmt.Sprintf("%d of 2", n)
}
