// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func masquerading() scene {
	return scene{
		group:   "masquerade",
		options: twoUplinks(),
		build: func(s *stage) {
			rt := s.runtime(net0())
			s.pod(rt, "app")
			s.pod(rt, "sibling")
			plain := net1()
			plain.noMasq = true
			s.pod(s.runtime(plain), "plain")
			s.pod(s.runtime(network{name: "net2", main: "ptp", subnets: []string{"10.3.0.0/16", "fd00:10:3::/64"}}), "ptp")
			for i, c := range s.Clients {
				serve(s.t, c, []string{"client", "client2"}[i], ":9000")
			}
			serve(s.t, s.Node, "node", ":9001")
			for _, fam := range families() {
				translate(s.t, s.Node, fam, virtualIP(fam), fam.client(s.Clients[0]), 9000)
			}
		},
		atOnce: []behaviour{
			probe("to the outside", "app", onClient(9000)),
			probe("to the outside by the other uplink", "app", onClient2(9000)),
			probe("to a sibling", "app", onPod("sibling", 80)),
			probe("to a pod of another network", "app", onPod("plain", 80)),
			probe("to the node", "app", onNode(9001)),
			probe("to the gateway", "app", onGateway(9001)),
			probe("to a Service with an outside backend", "app", func(_ *stage, fam family) string { return at(virtualIP(fam), 80) }),
			probe("without ipMasq, to the outside", "plain", onClient(9000)),
			probe("without ipMasq, to a pod of another network", "plain", onPod("app", 80)),
			probe("ptp, to the outside", "ptp", onClient(9000)),
			probe("ptp, to a pod of a bridge", "ptp", onPod("app", 80)),
			probe("from the outside to the pod", "client", onPod("app", 80)),
			{name: "two pods with one source port", see: samePort},
			{name: "ping to the outside", see: func(s *stage, fam family) string { return pinged(s.pods["app"], fam, fam.client(s.Client())) }},
			{name: "ping to a sibling", see: func(s *stage, fam family) string {
				return pinged(s.pods["app"], fam, fam.pod(s.pods["sibling"]))
			}},
			{name: "an unreachable port of the outside", see: func(s *stage, fam family) string {
				return s.closed(s.pods["app"], fam, at(fam.client(s.Client()), 9999))
			}},
			{name: "a datagram of several fragments", see: func(s *stage, fam family) string {
				return s.fragments(s.pods["app"], fam, at(fam.client(s.Client()), 9000))
			}},
		},
		then: []behaviour{
			{name: "after DEL, with the address still in use", see: afterMasqueradeDel},
		},
	}
}

func samePort(s *stage, fam family) string {
	var out []string
	var open []*talk
	for _, name := range []string{"app", "sibling"} {
		for _, proto := range []string{"tcp", "udp"} {
			c, err := dial(s.pods[name], proto+fam.suffix, net.JoinHostPort(fam.any, "41000"), at(fam.client(s.Client()), 9000))
			if err != nil {
				out = append(out, failure(err))
				continue
			}
			defer c.Close()
			open = append(open, c)
		}
	}
	for _, c := range open {
		if err := c.rounds(longTalk); err != nil {
			out = append(out, failure(err))
		}
	}
	if len(out) == 0 {
		return "both answered"
	}
	return strings.Join(out, ", ")
}

func pinged(from place, fam family, to netip.Addr) string {
	for seq := range uint16(5) {
		if err := ping(from, fam, to, 77, seq); err != nil {
			return failure(err)
		}
	}
	return "answered"
}

// fragments sends datagrams of more than one packet, which come back longer.
func (s *stage) fragments(from place, fam family, addr string) string {
	c, err := dial(from, "udp"+fam.suffix, "", addr)
	if err != nil {
		return failure(err)
	}
	defer c.Close()
	for _, n := range []int{2000, 4000, 9000} {
		if err := c.say(strings.Repeat("x", n)); err != nil {
			return fmt.Sprintf("%d bytes: %s", n, failure(err))
		}
	}
	return "whole"
}

// afterMasqueradeDel gives a pod's address to the pod again: without ipMasq,
// so what is left of the old one would be seen.
func afterMasqueradeDel(s *stage, fam family) string {
	masq := network{name: "net5", bridge: "cni5", subnets: []string{"10.5.0.0/16", "fd00:10:5::/64"}}
	n := masq
	n.noMasq = true
	old := s.add(s.runtime(masq), "old"+fam.suffix)
	addr := fam.pod(old)
	old.mustDel()
	p := s.newPod(s.runtime(n), "bare"+fam.suffix)
	p.att.Capabilities = map[string]any{"ips": []string{addr.String()}}
	if err := p.tryAdd(); err != nil {
		return "ADD: " + err.Error()
	}
	defer p.mustDel()
	s.pods["bare"] = p
	return s.reach(p, fam, at(fam.client(s.Client()), 9000))
}

// transfers are large, fragmented or stubborn conversations.
func transfers() scene {
	return scene{
		group: "transfers",
		build: func(s *stage) {
			rt := s.runtime(net0())
			s.pod(rt, "web", append(onBoth(8080, anyIP), tcp(8081, 90))...)
			s.pod(rt, "app")
			serve(s.t, s.Client(), "client", ":9000")
			bulkServer(s.t, s.pods["web"], ":90")
			bulkServer(s.t, s.Client(), ":9001")
			for _, fam := range families() {
				translate(s.t, s.Node, fam, virtualIP(fam), fam.pod(s.pods["web"]), 80)
			}
		},
		atOnce: []behaviour{
			bulk("a large transfer through a hostPort", "client", onNode(8081)),
			bulk("a large transfer, masqueraded", "app", onClient(9001)),
			bulk("a large transfer to a hostPort, by a sibling", "app", onNode(8081)),
			{name: "fragments through a hostPort", see: func(s *stage, fam family) string {
				return s.fragments(s.Client(), fam, at(fam.node(s.Client()), 8080))
			}},
			reset("a source port that was reset, used 10 times, through a hostPort", "client", onNode(8080)),
			reset("a source port that was reset, used 10 times, masqueraded", "app", onClient(9000)),
			probe("a Service whose backend is a sibling", "app", func(_ *stage, fam family) string { return at(virtualIP(fam), 80) }),
			probe("a Service, from the node", "node", func(_ *stage, fam family) string { return at(virtualIP(fam), 80) }),
			{name: "ping to the pod from outside", see: func(s *stage, fam family) string {
				return pinged(s.Client(), fam, fam.pod(s.pods["web"]))
			}},
		},
		then: []behaviour{
			// The client's end keeps 1500: only the node knows of the bottleneck.
			narrow("through a hostPort, with an uplink of 1400 bytes", "client", onNode(8081)),
			narrow("masqueraded, with an uplink of 1400 bytes", "app", onClient(9001)),
			admin("what the administrator's FORWARD rule rejects, through a hostPort", "client", onNode(8080)),
			admin("what the administrator's FORWARD rule rejects, from a pod", "app", onClient(9000)),
		},
	}
}

func bulk(name, from string, to func(*stage, family) string) behaviour {
	return behaviour{name: name, see: func(s *stage, fam family) string {
		if err := bulkClient(s.place(from), "tcp"+fam.suffix, to(s, fam)); err != nil {
			return err.Error()
		}
		return "intact"
	}}
}

func narrow(name, from string, to func(*stage, family) string) behaviour {
	b := bulk(name, from, to)
	see := b.see
	b.see = func(s *stage, fam family) string {
		sh(s.t, s.Node, "ip link set eth0 mtu 1400")
		return see(s, fam)
	}
	return b
}

func reset(name, from string, to func(*stage, family) string) behaviour {
	return behaviour{name: name, see: func(s *stage, fam family) string {
		for i := range 10 {
			c, err := dial(s.place(from), "tcp"+fam.suffix, ":42000", to(s, fam))
			for range 100 { // a process that another test starts may hold a copy of the last socket for a moment
				if !errors.Is(err, unix.EADDRINUSE) {
					break
				}
				time.Sleep(10 * time.Millisecond)
				c, err = dial(s.place(from), "tcp"+fam.suffix, ":42000", to(s, fam))
			}
			if err != nil {
				return fmt.Sprintf("the %d. %s", i+1, failure(err))
			}
			err = c.rounds(3)
			_ = c.Conn.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
			if err != nil {
				return fmt.Sprintf("the %d. %s", i+1, failure(err))
			}
		}
		return "10 of 10"
	}}
}

// admin is a behaviour under a rule of the administrator's own table.
func admin(name, from string, to func(*stage, family) string) behaviour {
	return behaviour{name: name, see: func(s *stage, fam family) string {
		nft(s.t, s.Node, "table inet admin { chain forward { type filter hook forward priority -10; ct direction original reject; }; }\n")
		defer sh(s.t, s.Node, "nft delete table inet admin")
		return s.closed(s.place(from), fam, to(s, fam))
	}}
}
