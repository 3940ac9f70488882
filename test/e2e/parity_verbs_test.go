// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

func run(line string) error {
	args := strings.Fields(line)
	_, err := netlab.Run(args[0], args[1:]...)
	return err
}

// said words how a call went. Codes are those of the CNI specification; the
// reference has one for all, 999.
func said(verb string, err error) string {
	var e *types.Error
	switch {
	case err == nil:
		return verb + " ok"
	case errors.As(err, &e):
		return fmt.Sprintf("%s error %d", verb, e.Code)
	}
	return verb + " failed"
}

// tried is ADD of one configuration, taken back by DEL.
func tried(name string, n func(s *stage) network, ports ...mapping) behaviour {
	return once(name, func(s *stage) string {
		id := fmt.Sprintf("try%d", s.tries.Add(1))
		p := s.newPod(s.runtime(n(s)), id, ports...)
		out := said("ADD", p.tryAdd())
		_ = p.tryDel()
		return out
	})
}

func verbs() scene {
	portmap := func(keys attributes) func(*stage) network {
		return func(*stage) network { return network{plugins: []string{"portmap"}, portmap: keys} }
	}
	firewall := func(keys attributes) func(*stage) network {
		return func(*stage) network { return network{plugins: []string{"firewall"}, firewall: keys} }
	}
	bandwidth := func(keys attributes) func(*stage) network {
		return func(*stage) network { return network{plugins: []string{"bandwidth"}, bandwidth: keys} }
	}
	bridge := func(keys attributes) func(*stage) network {
		return func(*stage) network { return network{plugins: []string{}, extra: keys} }
	}
	plain := portmap(nil)
	port := func(m mapping) mapping { return m }
	return scene{
		group: "configurations",
		build: func(*stage) {},
		then: []behaviour{
			tried("portmap without ports", plain),
			tried("hostPort 0", plain, tcp(0, 80)),
			tried("hostPort 70000", plain, tcp(70000, 80)),
			tried("containerPort 0", plain, tcp(8080, 0)),
			tried("containerPort 70000", plain, tcp(8080, 70000)),
			tried("protocol in capitals", plain, port(mapping{HostPort: 8080, ContainerPort: 80, Protocol: "TCP"})),
			tried("no protocol", plain, port(mapping{HostPort: 8080, ContainerPort: 80})),
			tried("protocol that does not exist", plain, port(mapping{HostPort: 8080, ContainerPort: 80, Protocol: "foo"})),
			tried("protocol sctp", plain, port(mapping{HostPort: 8080, ContainerPort: 8080, Protocol: "sctp"})),
			tried("one port twice in a request", plain, tcp(8080, 80), tcp(8080, 81)),
			tried("one port twice in a request, of different words", plain, tcp(8080, 80), mapping{HostPort: 8080, ContainerPort: 81, Protocol: "tcp", HostIP: "0.0.0.0"}),
			tried("hostIP that is no address", plain, port(mapping{HostPort: 8080, ContainerPort: 80, Protocol: "tcp", HostIP: "nowhere"})),
			tried("portmap backend that does not exist", portmap(attributes{"backend": "magic"}), tcp(8080, 80)),
			tried("portmap backend iptables", portmap(attributes{"backend": "iptables"}), tcp(8080, 80)),
			tried("portmap backend nftables", portmap(attributes{"backend": "nftables"}), tcp(8080, 80)),
			tried("portmap backend auto", portmap(attributes{"backend": "auto"}), tcp(8080, 80)),
			tried("portmap backend ebpf", portmap(attributes{"backend": "ebpf"}), tcp(8080, 80)),
			tried("markMasqBit -1", portmap(attributes{"markMasqBit": -1}), tcp(8080, 80)),
			tried("markMasqBit 0", portmap(attributes{"markMasqBit": 0}), tcp(8080, 80)),
			tried("markMasqBit 31", portmap(attributes{"markMasqBit": 31}), tcp(8080, 80)),
			tried("markMasqBit 32", portmap(attributes{"markMasqBit": 32}), tcp(8080, 80)),
			tried("markMasqBit and externalSetMarkChain", portmap(attributes{"markMasqBit": 5, "externalSetMarkChain": "X"}), tcp(8080, 80)),
			tried("externalSetMarkChain that does not exist", portmap(attributes{"externalSetMarkChain": "X"}), tcp(8080, 80)),
			tried("externalSetMarkChain with nftables", portmap(attributes{"backend": "nftables", "externalSetMarkChain": "X"}), tcp(8080, 80)),
			tried("conditions of iptables with nftables", portmap(attributes{"backend": "nftables", "conditionsV4": []string{"-s", "192.0.2.0/24"}}), tcp(8080, 80)),
			tried("conditions of nftables with iptables", portmap(attributes{"backend": "iptables", "conditionsV4": []string{"ip", "saddr", "192.0.2.0/24"}}), tcp(8080, 80)),
			tried("ipMasqBackend that does not exist", bridge(attributes{"ipMasqBackend": "magic"})),
			tried("ipMasqBackend iptables", bridge(attributes{"ipMasqBackend": "iptables"})),
			tried("ipMasqBackend nftables", bridge(attributes{"ipMasqBackend": "nftables"})),
			tried("ipMasqBackend auto", bridge(attributes{"ipMasqBackend": "auto"})),
			tried("ipMasqBackend ebpf", bridge(attributes{"ipMasqBackend": "ebpf"})),
			tried("firewall backend auto", firewall(attributes{"backend": "auto"})),
			tried("firewall backend ebpf", firewall(attributes{"backend": "ebpf"})),
			tried("firewall backend nftables", firewall(attributes{"backend": "nftables"})),
			tried("firewall backend that does not exist", firewall(attributes{"backend": "magic"})),
			tried("firewall backend iptables", firewall(attributes{"backend": "iptables"})),
			tried("firewall backend firewalld that does not run", firewall(attributes{"backend": "firewalld"})),
			tried("ingressPolicy open", firewall(attributes{"ingressPolicy": "open"})),
			tried("ingressPolicy that does not exist", firewall(attributes{"ingressPolicy": "magic"})),
			tried("bandwidth without limits", bandwidth(nil)),
			tried("bandwidth backend tbf", bandwidth(merged(limits("ingress", 8*megabit, megabit), attributes{"backend": "tbf"}))),
			tried("bandwidth backend that does not exist", bandwidth(merged(limits("ingress", 8*megabit, megabit), attributes{"backend": "magic"}))),
			tried("unshapedSubnets and shapedSubnets", bandwidth(merged(limits("ingress", 8*megabit, megabit), attributes{"unshapedSubnets": []string{"10.0.0.0/8"}, "shapedSubnets": []string{"11.0.0.0/8"}}))),
			tried("unshapedSubnets that are none", bandwidth(merged(limits("ingress", 8*megabit, megabit), attributes{"unshapedSubnets": []string{"10.0.0.0"}}))),
			tried("a rate without burst", bandwidth(attributes{"ingressRate": 8 * megabit})),
			tried("a burst without rate", bandwidth(attributes{"egressBurst": megabit})),
			tried("a burst of 4 GB", bandwidth(limits("ingress", 8*megabit, 1<<35))),
			tried("a rate of 7 bits a second", bandwidth(limits("ingress", 7, megabit))),
		},
	}
}

// lives is what happens to hostPorts as pods come and go.
func lives() scene {
	return scene{
		group: "pod lifecycle",
		build: func(s *stage) {
			rt := s.runtime(net0())
			for _, fam := range families() {
				p := s.add(rt, "settle"+fam.suffix, onBoth(8080, anyIP)...)
				p.mustDel()
			}
			serve(s.t, s.Client(), "client", ":9000")
		},
		then: []behaviour{
			{name: "a hostPort after DEL", see: func(s *stage, fam family) string {
				p := s.life(fam, "gone", onBoth(8080, anyIP)...)
				s.reach(s.Client(), fam, at(fam.node(s.Client()), 8080))
				p.mustDel()
				return s.closed(s.Client(), fam, at(fam.node(s.Client()), 8080))
			}},
			{name: "a hostPort that a second pod asks for", see: func(s *stage, fam family) string {
				defer s.life(fam, "old", onBoth(8080, anyIP)...).mustDel()
				defer s.life(fam, "young", onBoth(8080, anyIP)...).mustDel()
				return s.reach(s.Client(), fam, at(fam.node(s.Client()), 8080))
			}},
			{name: "the same, after DEL of the first", see: func(s *stage, fam family) string {
				old := s.life(fam, "old", onBoth(8080, anyIP)...)
				defer s.life(fam, "young", onBoth(8080, anyIP)...).mustDel()
				old.mustDel()
				return s.reach(s.Client(), fam, at(fam.node(s.Client()), 8080))
			}},
			{name: "a UDP client that never stops, its pod replaced", see: udpMoves},
			once("DEL twice", func(s *stage) string {
				p := s.life(families()[0], "twice", onBoth(8080, anyIP)...)
				_ = p.tryDel()
				return said("DEL", p.tryDel())
			}),
			leftovers("left by DEL", func(*pod) {}),
			leftovers("left by DEL without the namespace", func(p *pod) { p.att.NetNS = "" }),
			leftovers("left by DEL without runtimeConfig", func(p *pod) { p.att.Capabilities = nil }),
			leftovers("left by DEL without prevResult", func(p *pod) { _ = p.rt.ForgetCache(p.att) }),
			once("CHECK", func(s *stage) string {
				p := s.life(families()[0], "check", onBoth(8080, anyIP)...)
				defer p.mustDel()
				return said("CHECK", p.check())
			}),
			once("STATUS", func(s *stage) string {
				ctx, cancel := context.WithTimeout(context.Background(), verbTime)
				defer cancel()
				return said("STATUS", s.runtime(net0()).Status(ctx))
			}),
		},
	}
}

// life attaches a pod for one behaviour.
func (s *stage) life(fam family, name string, ports ...mapping) *pod {
	s.t.Helper()
	p := s.add(s.runtime(net0()), fmt.Sprintf("%s%s-%d", name, fam.suffix, s.tries.Add(1)), ports...)
	serve(s.t, p, name, ":80")
	return p
}

func udpMoves(s *stage, fam family) string {
	old := s.life(fam, "old", udp(8080, 80))
	c, err := dial(s.Client(), "udp"+fam.suffix, "", at(fam.node(s.Client()), 8080))
	if err != nil {
		return failure(err)
	}
	defer c.Close()
	if err := c.rounds(longTalk); err != nil {
		return failure(err)
	}
	old.mustDel()
	defer s.life(fam, "young", udp(8080, 80)).mustDel()
	// What was sent in between may be lost, and its answer be an ICMP error.
	for range 3 {
		c.limit = 500 * time.Millisecond
		if err = c.say("again"); err == nil {
			return s.say(c.answer)
		}
	}
	return failure(err)
}

// leftovers counts what of a pod's rules and devices a DEL of little knowledge leaves.
func leftovers(name string, lose func(*pod)) behaviour {
	return once(name, func(s *stage) string {
		before := s.leavable()
		p := s.life(families()[0], "left", append(onBoth(8080, anyIP), tcp(8443, 443))...)
		known := p.att
		lose(p)
		if p.att.NetNS == "" {
			_ = p.Delete()
		}
		out := said("DEL", p.tryDel())
		n := len(strings.Split(strings.Trim(netlab.Diff(before, s.leavable()), "\n"), "\n"))
		if netlab.Diff(before, s.leavable()) == "" {
			n = 0
		}
		p.att = known
		_ = p.tryDel()
		if n > 0 {
			return out + ", something left"
		}
		return out + ", nothing left"
	})
}

// leavable is what a DEL could leave: rules, links, qdiscs, records.
func (s *stage) leavable() netlab.Snapshot {
	all := s.snapshot()
	return append(rules(all), append(all.Grep("link "), all.Grep("/run/sluice/attachments/").Grep(".json")...)...)
}
