// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
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
func tried(name string, n func(s *stage) e2etest.Network, ports ...e2etest.PortMapping) behaviour {
	return once(name, func(s *stage) string {
		id := fmt.Sprintf("try%d", s.tries.Add(1))
		p := s.NewPod(s.runtime(n(s)), id, ports...)
		out := said("ADD", p.TryAdd())
		_ = p.TryDel()
		return out
	})
}

func verbs() parityCase {
	portmap := func(keys e2etest.Attributes) func(*stage) e2etest.Network {
		return func(*stage) e2etest.Network { return e2etest.Network{Plugins: []string{"portmap"}, Portmap: keys} }
	}
	firewall := func(keys e2etest.Attributes) func(*stage) e2etest.Network {
		return func(*stage) e2etest.Network { return e2etest.Network{Plugins: []string{"firewall"}, Firewall: keys} }
	}
	bandwidth := func(keys e2etest.Attributes) func(*stage) e2etest.Network {
		return func(*stage) e2etest.Network { return e2etest.Network{Plugins: []string{"bandwidth"}, Bandwidth: keys} }
	}
	bridge := func(keys e2etest.Attributes) func(*stage) e2etest.Network {
		return func(*stage) e2etest.Network { return e2etest.Network{Plugins: []string{}, Extra: keys} }
	}
	plain := portmap(nil)
	port := func(m e2etest.PortMapping) e2etest.PortMapping { return m }
	return parityCase{
		group: "configurations",
		build: func(*stage) {},
		then: []behaviour{
			tried("portmap without ports", plain),
			tried("hostPort 0", plain, e2etest.TCP(0, 80)),
			tried("hostPort 70000", plain, e2etest.TCP(70000, 80)),
			tried("containerPort 0", plain, e2etest.TCP(8080, 0)),
			tried("containerPort 70000", plain, e2etest.TCP(8080, 70000)),
			tried("protocol in capitals", plain, port(e2etest.PortMapping{HostPort: 8080, ContainerPort: 80, Protocol: "TCP"})),
			tried("no protocol", plain, port(e2etest.PortMapping{HostPort: 8080, ContainerPort: 80})),
			tried("protocol that does not exist", plain, port(e2etest.PortMapping{HostPort: 8080, ContainerPort: 80, Protocol: "foo"})),
			tried("protocol sctp", plain, port(e2etest.PortMapping{HostPort: 8080, ContainerPort: 8080, Protocol: "sctp"})),
			tried("one port twice in a request", plain, e2etest.TCP(8080, 80), e2etest.TCP(8080, 81)),
			tried("one port twice in a request, of different words", plain, e2etest.TCP(8080, 80), e2etest.PortMapping{HostPort: 8080, ContainerPort: 81, Protocol: "tcp", HostIP: "0.0.0.0"}),
			tried("hostIP that is no address", plain, port(e2etest.PortMapping{HostPort: 8080, ContainerPort: 80, Protocol: "tcp", HostIP: "nowhere"})),
			tried("portmap backend that does not exist", portmap(e2etest.Attributes{"backend": "magic"}), e2etest.TCP(8080, 80)),
			tried("portmap backend iptables", portmap(e2etest.Attributes{"backend": "iptables"}), e2etest.TCP(8080, 80)),
			tried("portmap backend nftables", portmap(e2etest.Attributes{"backend": "nftables"}), e2etest.TCP(8080, 80)),
			tried("portmap backend auto", portmap(e2etest.Attributes{"backend": "auto"}), e2etest.TCP(8080, 80)),
			tried("portmap backend ebpf", portmap(e2etest.Attributes{"backend": "ebpf"}), e2etest.TCP(8080, 80)),
			tried("markMasqBit -1", portmap(e2etest.Attributes{"markMasqBit": -1}), e2etest.TCP(8080, 80)),
			tried("markMasqBit 0", portmap(e2etest.Attributes{"markMasqBit": 0}), e2etest.TCP(8080, 80)),
			tried("markMasqBit 31", portmap(e2etest.Attributes{"markMasqBit": 31}), e2etest.TCP(8080, 80)),
			tried("markMasqBit 32", portmap(e2etest.Attributes{"markMasqBit": 32}), e2etest.TCP(8080, 80)),
			tried("markMasqBit and externalSetMarkChain", portmap(e2etest.Attributes{"markMasqBit": 5, "externalSetMarkChain": "X"}), e2etest.TCP(8080, 80)),
			tried("externalSetMarkChain that does not exist", portmap(e2etest.Attributes{"externalSetMarkChain": "X"}), e2etest.TCP(8080, 80)),
			tried("externalSetMarkChain with nftables", portmap(e2etest.Attributes{"backend": "nftables", "externalSetMarkChain": "X"}), e2etest.TCP(8080, 80)),
			tried("conditions of iptables with nftables", portmap(e2etest.Attributes{"backend": "nftables", "conditionsV4": []string{"-s", "192.0.2.0/24"}}), e2etest.TCP(8080, 80)),
			tried("conditions of nftables with iptables", portmap(e2etest.Attributes{"backend": "iptables", "conditionsV4": []string{"ip", "saddr", "192.0.2.0/24"}}), e2etest.TCP(8080, 80)),
			tried("ipMasqBackend that does not exist", bridge(e2etest.Attributes{"ipMasqBackend": "magic"})),
			tried("ipMasqBackend iptables", bridge(e2etest.Attributes{"ipMasqBackend": "iptables"})),
			tried("ipMasqBackend nftables", bridge(e2etest.Attributes{"ipMasqBackend": "nftables"})),
			tried("ipMasqBackend auto", bridge(e2etest.Attributes{"ipMasqBackend": "auto"})),
			tried("ipMasqBackend ebpf", bridge(e2etest.Attributes{"ipMasqBackend": "ebpf"})),
			tried("firewall backend auto", firewall(e2etest.Attributes{"backend": "auto"})),
			tried("firewall backend ebpf", firewall(e2etest.Attributes{"backend": "ebpf"})),
			tried("firewall backend nftables", firewall(e2etest.Attributes{"backend": "nftables"})),
			tried("firewall backend that does not exist", firewall(e2etest.Attributes{"backend": "magic"})),
			tried("firewall backend iptables", firewall(e2etest.Attributes{"backend": "iptables"})),
			tried("firewall backend firewalld that does not run", firewall(e2etest.Attributes{"backend": "firewalld"})),
			tried("ingressPolicy open", firewall(e2etest.Attributes{"ingressPolicy": "open"})),
			tried("ingressPolicy that does not exist", firewall(e2etest.Attributes{"ingressPolicy": "magic"})),
			tried("bandwidth without limits", bandwidth(nil)),
			tried("bandwidth backend tbf", bandwidth(e2etest.Merge(e2etest.BandwidthLimits("ingress", 8*e2etest.Megabit, e2etest.Megabit), e2etest.Attributes{"backend": "tbf"}))),
			tried("bandwidth backend that does not exist", bandwidth(e2etest.Merge(e2etest.BandwidthLimits("ingress", 8*e2etest.Megabit, e2etest.Megabit), e2etest.Attributes{"backend": "magic"}))),
			tried("unshapedSubnets and shapedSubnets", bandwidth(e2etest.Merge(e2etest.BandwidthLimits("ingress", 8*e2etest.Megabit, e2etest.Megabit), e2etest.Attributes{"unshapedSubnets": []string{"10.0.0.0/8"}, "shapedSubnets": []string{"11.0.0.0/8"}}))),
			tried("unshapedSubnets that are none", bandwidth(e2etest.Merge(e2etest.BandwidthLimits("ingress", 8*e2etest.Megabit, e2etest.Megabit), e2etest.Attributes{"unshapedSubnets": []string{"10.0.0.0"}}))),
			tried("a rate without burst", bandwidth(e2etest.Attributes{"ingressRate": 8 * e2etest.Megabit})),
			tried("a burst without rate", bandwidth(e2etest.Attributes{"egressBurst": e2etest.Megabit})),
			tried("a burst of 4 GB", bandwidth(e2etest.BandwidthLimits("ingress", 8*e2etest.Megabit, 1<<35))),
			tried("a rate of 7 bits a second", bandwidth(e2etest.BandwidthLimits("ingress", 7, e2etest.Megabit))),
		},
	}
}

// lives is what happens to hostPorts as pods come and go.
func lives() parityCase {
	return parityCase{
		group: "pod lifecycle",
		build: func(s *stage) {
			rt := s.runtime(e2etest.Net0())
			for _, fam := range e2etest.Families() {
				p := s.AddPod(rt, "settle"+fam.Suffix, onBoth(8080, anyIP)...)
				p.MustDel()
			}
			s.AddPod(s.runtime(e2etest.Net1()), "settle").MustDel()
			e2etest.Serve(s.T, s.Client(), "client", ":9000")
		},
		then: []behaviour{
			{name: "a hostPort after DEL", observe: func(s *stage, fam e2etest.Family) string {
				p := s.life(fam, "gone", onBoth(8080, anyIP)...)
				s.reach(s.Client(), fam, e2etest.At(fam.Node(s.Client()), 8080))
				p.MustDel()
				return s.closed(s.Client(), fam, e2etest.At(fam.Node(s.Client()), 8080))
			}},
			{name: "a hostPort that a second pod asks for", observe: func(s *stage, fam e2etest.Family) string {
				defer s.life(fam, "old", onBoth(8080, anyIP)...).MustDel()
				defer s.life(fam, "young", onBoth(8080, anyIP)...).MustDel()
				return s.reach(s.Client(), fam, e2etest.At(fam.Node(s.Client()), 8080))
			}},
			{name: "the same, after DEL of the first", observe: func(s *stage, fam e2etest.Family) string {
				old := s.life(fam, "old", onBoth(8080, anyIP)...)
				defer s.life(fam, "young", onBoth(8080, anyIP)...).MustDel()
				old.MustDel()
				return s.reach(s.Client(), fam, e2etest.At(fam.Node(s.Client()), 8080))
			}},
			{name: "a hostPort that two networks of one container ask for", observe: func(s *stage, fam e2etest.Family) string {
				first, second := s.joined(fam)
				defer first.MustDel()
				defer second.MustDel()
				return s.reach(s.Client(), fam, e2etest.At(fam.Node(s.Client()), 8080))
			}},
			{name: "the same, after DEL of the first network", observe: func(s *stage, fam e2etest.Family) string {
				first, second := s.joined(fam)
				defer second.MustDel()
				first.MustDel()
				return s.reach(s.Client(), fam, e2etest.At(fam.Node(s.Client()), 8080))
			}},
			once("the same, CHECK of the two", func(s *stage) string {
				first, second := s.joined(e2etest.Families()[0])
				defer first.MustDel()
				defer second.MustDel()
				return said("CHECK", first.Check()) + ", " + said("CHECK", second.Check())
			}),
			{name: "a UDP client that never stops, its pod replaced", observe: udpMoves},
			once("DEL twice", func(s *stage) string {
				p := s.life(e2etest.Families()[0], "twice", onBoth(8080, anyIP)...)
				_ = p.TryDel()
				return said("DEL", p.TryDel())
			}),
			leftovers("left by DEL", func(*e2etest.Pod) {}),
			leftovers("left by DEL without the namespace", func(p *e2etest.Pod) { p.Attachment.NetNS = "" }),
			leftovers("left by DEL without runtimeConfig", func(p *e2etest.Pod) { p.Attachment.Capabilities = nil }),
			leftovers("left by DEL without prevResult", func(p *e2etest.Pod) { _ = p.Runtime.ForgetCache(p.Attachment) }),
			once("CHECK", func(s *stage) string {
				p := s.life(e2etest.Families()[0], "check", onBoth(8080, anyIP)...)
				defer p.MustDel()
				return said("CHECK", p.Check())
			}),
			once("STATUS", func(s *stage) string {
				ctx, cancel := context.WithTimeout(context.Background(), e2etest.VerbTimeout)
				defer cancel()
				return said("STATUS", s.runtime(e2etest.Net0()).Status(ctx))
			}),
		},
	}
}

// life attaches a pod for one behaviour.
func (s *stage) life(fam e2etest.Family, name string, ports ...e2etest.PortMapping) *e2etest.Pod {
	s.T.Helper()
	p := s.AddPod(s.runtime(e2etest.Net0()), fmt.Sprintf("%s%s-%d", name, fam.Suffix, s.tries.Add(1)), ports...)
	e2etest.Serve(s.T, p, name, ":80")
	return p
}

// joined attaches a pod to two networks as Multus does: both get the pod's ports.
func (s *stage) joined(fam e2etest.Family) (first, second *e2etest.Pod) {
	s.T.Helper()
	ports := onBoth(8080, anyIP)
	first = s.AddPod(s.runtime(e2etest.Net0()), fmt.Sprintf("two%s-%d", fam.Suffix, s.tries.Add(1)), ports...)
	e2etest.ServeOwn(s.T, first, "first")
	n := e2etest.Net1()
	n.IPAM = e2etest.Attributes{"routes": []any{}}
	second = s.Join(first, s.runtime(n), "net1", ports...)
	e2etest.ServeOwn(s.T, second, "second")
	return first, second
}

func udpMoves(s *stage, fam e2etest.Family) string {
	old := s.life(fam, "old", e2etest.UDP(8080, 80))
	c, err := e2etest.Dial(s.Client(), "udp"+fam.Suffix, "", e2etest.At(fam.Node(s.Client()), 8080))
	if err != nil {
		return failure(err)
	}
	defer c.Close()
	if err := c.SendRounds(e2etest.LongTalk); err != nil {
		return failure(err)
	}
	old.MustDel()
	defer s.life(fam, "young", e2etest.UDP(8080, 80)).MustDel()
	// What was sent in between may be lost, and its answer be an ICMP error.
	for range 3 {
		c.Timeout = 500 * time.Millisecond
		if err = c.Send("again"); err == nil {
			return s.describe(c.Answer)
		}
	}
	return failure(err)
}

// leftovers counts what of a pod's rules and devices a DEL of little knowledge leaves.
func leftovers(name string, lose func(*e2etest.Pod)) behaviour {
	return once(name, func(s *stage) string {
		before := s.leavable()
		p := s.life(e2etest.Families()[0], "left", append(onBoth(8080, anyIP), e2etest.TCP(8443, 443))...)
		known := p.Attachment
		lose(p)
		if p.Attachment.NetNS == "" {
			_ = p.Delete()
		}
		out := said("DEL", p.TryDel())
		n := len(strings.Split(strings.Trim(netlab.Diff(before, s.leavable()), "\n"), "\n"))
		if netlab.Diff(before, s.leavable()) == "" {
			n = 0
		}
		p.Attachment = known
		_ = p.TryDel()
		if n > 0 {
			return out + ", something left"
		}
		return out + ", nothing left"
	})
}

// leavable is what a DEL could leave: rules, links, qdiscs, records.
func (s *stage) leavable() netlab.Snapshot {
	all := s.Snapshot()
	return append(e2etest.NetfilterRules(all), append(all.Grep("link "), all.Grep("/run/sluice/attachments/").Grep(".json")...)...)
}
