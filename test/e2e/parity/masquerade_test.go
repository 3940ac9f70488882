// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

func masquerading() parityCase {
	return parityCase{
		group:   "masquerade",
		options: e2etest.TwoUplinks(),
		build: func(s *stage) {
			rt := s.runtime(e2etest.Net0())
			s.pod(rt, "app")
			s.pod(rt, "sibling")
			plain := e2etest.Net1()
			plain.NoMasq = true
			s.pod(s.runtime(plain), "plain")
			s.pod(s.runtime(e2etest.Network{Name: "net2", Main: "ptp", Subnets: []string{"10.3.0.0/16", "fd00:10:3::/64"}}), "ptp")
			for i, c := range s.Clients {
				e2etest.Serve(s.T, c, []string{"client", "client2"}[i], ":9000")
			}
			e2etest.Serve(s.T, s.Node, "node", ":9001")
			for _, fam := range e2etest.Families() {
				e2etest.TranslateVIP(s.T, s.Node, fam, e2etest.VirtualIP(fam), fam.Client(s.Clients[0]), 9000)
			}
		},
		atOnce: []behaviour{
			probe("to the outside", "app", onClient(9000)),
			probe("to the outside by the other uplink", "app", onClient2(9000)),
			probe("to a sibling", "app", onPod("sibling", 80)),
			probe("to a pod of another network", "app", onPod("plain", 80)),
			probe("to the node", "app", onNode(9001)),
			probe("to the gateway", "app", onGateway(9001)),
			probe("to a Service with an outside backend", "app", func(_ *stage, fam e2etest.Family) string { return e2etest.At(e2etest.VirtualIP(fam), 80) }),
			probe("without ipMasq, to the outside", "plain", onClient(9000)),
			probe("without ipMasq, to a pod of another network", "plain", onPod("app", 80)),
			probe("ptp, to the outside", "ptp", onClient(9000)),
			probe("ptp, to a pod of a bridge", "ptp", onPod("app", 80)),
			probe("from the outside to the pod", "client", onPod("app", 80)),
			{name: "two pods with one source port", observe: samePort},
			{name: "the source port, and that of a sibling with the same", observe: portsSeen},
			{name: "a pod, then the node with the same source port", observe: samePortAsNode},
			{name: "ping to the outside", observe: func(s *stage, fam e2etest.Family) string { return pinged(s.pods["app"], fam, fam.Client(s.Client())) }},
			{name: "ping to a sibling", observe: func(s *stage, fam e2etest.Family) string {
				return pinged(s.pods["app"], fam, fam.Pod(s.pods["sibling"]))
			}},
			{name: "an unreachable port of the outside", observe: func(s *stage, fam e2etest.Family) string {
				return s.closed(s.pods["app"], fam, e2etest.At(fam.Client(s.Client()), 9999))
			}},
			{name: "a datagram of several fragments", observe: func(s *stage, fam e2etest.Family) string {
				return s.fragments(s.pods["app"], fam, e2etest.At(fam.Client(s.Client()), 9000))
			}},
		},
		then: []behaviour{
			{name: "after DEL, with the address still in use", observe: afterMasqueradeDel},
		},
	}
}

// The ports of samePort and samePortAsNode are none that the kernel gives to a client.
func samePort(s *stage, fam e2etest.Family) string {
	var out []string
	var open []*e2etest.Talk
	for _, name := range []string{"app", "sibling"} {
		for _, proto := range []string{"tcp", "udp"} {
			c, err := e2etest.Dial(s.pods[name], proto+fam.Suffix, net.JoinHostPort(fam.Any, "29100"), e2etest.At(fam.Client(s.Client()), 9000))
			if err != nil {
				out = append(out, failure(err))
				continue
			}
			defer c.Close()
			open = append(open, c)
		}
	}
	for _, c := range open {
		if err := c.SendRounds(e2etest.LongTalk); err != nil {
			out = append(out, failure(err))
		}
	}
	if len(out) == 0 {
		return "both answered"
	}
	return strings.Join(out, ", ")
}

// portsSeen is which source ports the outside sees: of a pod that is the first to use them, and of one that is not.
func portsSeen(s *stage, fam e2etest.Family) string {
	var out []string
	for _, name := range []string{"app", "sibling"} {
		var seen []string
		for _, port := range []uint16{53, 123, 500, 700, 8080, 40000, 61000} {
			got := map[string]bool{}
			for _, proto := range []string{"tcp", "udp"} {
				c, err := e2etest.Dial(s.pods[name], proto+fam.Suffix, net.JoinHostPort(fam.Any, fmt.Sprint(port)), e2etest.At(fam.Client(s.Client()), 9000))
				if err != nil {
					got[failure(err)] = true
					continue
				}
				defer c.Close()
				switch p := c.Answer.Peer.Port(); {
				case p == port:
					got["kept"] = true
				case p < 512:
					got["another below 512"] = true
				case p < 1024:
					got["another below 1024"] = true
				default:
					got["another"] = true
				}
			}
			seen = append(seen, fmt.Sprintf("%d %s", port, strings.Join(slices.Sorted(maps.Keys(got)), " or ")))
		}
		out = append(out, strings.Join(seen, ", "))
	}
	return strings.Join(out, "; ")
}

// samePortAsNode has the node open a connection whose tuple a pod's connection has outside.
func samePortAsNode(s *stage, fam e2etest.Family) string {
	var open []*e2etest.Talk
	for _, proto := range []string{"tcp", "udp"} {
		for _, from := range []string{"app", "node"} {
			c, err := e2etest.Dial(s.place(from), proto+fam.Suffix, net.JoinHostPort(fam.Any, "29300"), e2etest.At(fam.Client(s.Client()), 9000))
			if err != nil {
				return from + ": " + failure(err)
			}
			defer c.Close()
			open = append(open, c)
		}
		a, b := open[len(open)-2].Answer.Peer, open[len(open)-1].Answer.Peer
		if a == b || a.Port() != 29300 {
			return fmt.Sprintf("%s: seen as %s and %s", proto, a, b)
		}
	}
	for range e2etest.LongTalk {
		for _, c := range open {
			if err := c.Send("round"); err != nil {
				return failure(err)
			}
		}
	}
	return "the pod's is kept, both answered"
}

func pinged(from e2etest.Place, fam e2etest.Family, to netip.Addr) string {
	for seq := range uint16(5) {
		if err := e2etest.Ping(from, fam, to, 77, seq); err != nil {
			return failure(err)
		}
	}
	return "answered"
}

// fragments sends datagrams of more than one packet, which come back longer.
func (s *stage) fragments(from e2etest.Place, fam e2etest.Family, addr string) string {
	c, err := e2etest.Dial(from, "udp"+fam.Suffix, "", addr)
	if err != nil {
		return failure(err)
	}
	defer c.Close()
	for _, n := range []int{2000, 4000, 9000} {
		if err := c.Send(strings.Repeat("x", n)); err != nil {
			return fmt.Sprintf("%d bytes: %s", n, failure(err))
		}
	}
	return "whole"
}

// afterMasqueradeDel gives a pod's address to the pod again: without ipMasq,
// so what is left of the old one would be seen.
func afterMasqueradeDel(s *stage, fam e2etest.Family) string {
	masq := e2etest.Network{Name: "net5", Bridge: "cni5", Subnets: []string{"10.5.0.0/16", "fd00:10:5::/64"}}
	n := masq
	n.NoMasq = true
	old := s.AddPod(s.runtime(masq), "old"+fam.Suffix)
	addr := fam.Pod(old)
	old.MustDel()
	p := s.NewPod(s.runtime(n), "bare"+fam.Suffix)
	p.Attachment.Capabilities = map[string]any{"ips": []string{addr.String()}}
	if err := p.TryAdd(); err != nil {
		return "ADD: " + err.Error()
	}
	defer p.MustDel()
	s.pods["bare"] = p
	return s.reach(p, fam, e2etest.At(fam.Client(s.Client()), 9000))
}

// transfers are large, fragmented or stubborn conversations.
func transfers() parityCase {
	return parityCase{
		group: "transfers",
		build: func(s *stage) {
			rt := s.runtime(e2etest.Net0())
			s.pod(rt, "web", append(onBoth(8080, anyIP), e2etest.TCP(8081, 90))...)
			s.pod(rt, "app")
			e2etest.Serve(s.T, s.Client(), "client", ":9000")
			e2etest.BulkServer(s.T, s.pods["web"], ":90")
			e2etest.BulkServer(s.T, s.Client(), ":9001")
			for _, fam := range e2etest.Families() {
				e2etest.TranslateVIP(s.T, s.Node, fam, e2etest.VirtualIP(fam), fam.Pod(s.pods["web"]), 80)
			}
		},
		atOnce: []behaviour{
			bulk("a large transfer through a hostPort", "client", onNode(8081)),
			bulk("a large transfer, masqueraded", "app", onClient(9001)),
			bulk("a large transfer to a hostPort, by a sibling", "app", onNode(8081)),
			{name: "fragments through a hostPort", observe: func(s *stage, fam e2etest.Family) string {
				return s.fragments(s.Client(), fam, e2etest.At(fam.Node(s.Client()), 8080))
			}},
			reset("a source port that was reset, used 10 times, through a hostPort", "client", onNode(8080)),
			reset("a source port that was reset, used 10 times, masqueraded", "app", onClient(9000)),
			probe("a Service whose backend is a sibling", "app", func(_ *stage, fam e2etest.Family) string { return e2etest.At(e2etest.VirtualIP(fam), 80) }),
			probe("a Service, from the node", "node", func(_ *stage, fam e2etest.Family) string { return e2etest.At(e2etest.VirtualIP(fam), 80) }),
			{name: "ping to the pod from outside", observe: func(s *stage, fam e2etest.Family) string {
				return pinged(s.Client(), fam, fam.Pod(s.pods["web"]))
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

func bulk(name, from string, to func(*stage, e2etest.Family) string) behaviour {
	return behaviour{name: name, observe: func(s *stage, fam e2etest.Family) string {
		if err := e2etest.BulkClient(s.place(from), "tcp"+fam.Suffix, to(s, fam)); err != nil {
			return err.Error()
		}
		return "intact"
	}}
}

func narrow(name, from string, to func(*stage, e2etest.Family) string) behaviour {
	b := bulk(name, from, to)
	see := b.observe
	b.observe = func(s *stage, fam e2etest.Family) string {
		e2etest.MustRun(s.T, s.Node, "ip link set eth0 mtu 1400")
		return see(s, fam)
	}
	return b
}

func reset(name, from string, to func(*stage, e2etest.Family) string) behaviour {
	return behaviour{name: name, observe: func(s *stage, fam e2etest.Family) string {
		for i := range 10 {
			c, err := e2etest.Dial(s.place(from), "tcp"+fam.Suffix, ":42000", to(s, fam))
			for range 100 { // a process that another test starts may hold a copy of the last socket for a moment
				if !errors.Is(err, unix.EADDRINUSE) {
					break
				}
				time.Sleep(10 * time.Millisecond)
				c, err = e2etest.Dial(s.place(from), "tcp"+fam.Suffix, ":42000", to(s, fam))
			}
			if err != nil {
				return fmt.Sprintf("the %d. %s", i+1, failure(err))
			}
			err = c.SendRounds(3)
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
func admin(name, from string, to func(*stage, e2etest.Family) string) behaviour {
	return behaviour{name: name, observe: func(s *stage, fam e2etest.Family) string {
		e2etest.LoadNFT(s.T, s.Node, "table inet admin { chain forward { type filter hook forward priority -10; ct direction original reject; }; }\n")
		defer e2etest.MustRun(s.T, s.Node, "nft delete table inet admin")
		return s.closed(s.place(from), fam, to(s, fam))
	}}
}
