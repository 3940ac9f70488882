// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// service is a Service as kube-proxy has it: a virtual address, a port of the node, an external address.
type service struct {
	number    int
	masqAll   bool // what clients send to the virtual address is masqueraded too
	local     bool // externalTrafficPolicy Local: what comes from outside is not
	endpoints []endpoint
}

// endpoint is a place and a port, or an address that no place has.
type endpoint struct {
	place string
	port  uint16
	addrs [2]netip.Addr // where place is empty
}

// servicePort is the port of a Service at its addresses.
const servicePort = 80

// virtual is the ClusterIP, external the external address.
func (s *service) virtual(family int) netip.Addr {
	return netip.MustParseAddr([2]string{fmt.Sprintf("10.96.0.%d", s.number+1), fmt.Sprintf("fd00:96::%d", s.number+1)}[family])
}

func (s *service) external(family int) netip.Addr {
	return netip.MustParseAddr([2]string{fmt.Sprintf("10.98.0.%d", s.number+1), fmt.Sprintf("fd00:98::%d", s.number+1)}[family])
}

func (s *service) nodePort() uint16 { return uint16(30000 + s.number) }

// addr is the endpoint's address.
func (e endpoint) addr(l *lab, family int) netip.Addr {
	if e.place == "" {
		return e.addrs[family]
	}
	return l.places[e.place].addrs[family]
}

func (e endpoint) String() string {
	if e.place == "" {
		return fmt.Sprintf("%s and %s, port %d", e.addrs[0], e.addrs[1], e.port)
	}
	return fmt.Sprintf("%s, port %d", e.place, e.port)
}

// proxyRules are those of all Services, in the shape of kube-proxy's nftables mode, but that a hash chooses the endpoint, so both labs get
// the same. It leaves the ports out, since a masquerade may have drawn them. Another turn makes another choice: what netfilter decides anew
// must be seen.
func (m *model) proxyRules(l *lab) string {
	var b strings.Builder
	for family, ip := range []string{"ip", "ip6"} {
		fmt.Fprintf(&b, "table %s proxy {}\ndelete table %s proxy\ntable %s proxy {\n", ip, ip, ip)
		var match, empty strings.Builder
		node := make([]string, 0, len(l.Clients))
		for _, c := range l.Clients {
			node = append(node, e2etest.Families()[family].Node(c).String())
		}
		for _, s := range m.services {
			for _, proto := range []string{"tcp", "udp"} {
				chain := fmt.Sprintf("service-%d-%s", s.number, proto)
				mark := func(yes bool) string {
					if yes {
						return "meta mark set meta mark or 0x4000 "
					}
					return ""
				}
				for _, to := range []struct {
					addr string
					port uint16
					masq bool
				}{
					{s.virtual(family).String(), servicePort, s.masqAll},
					{s.external(family).String(), servicePort, !s.local},
					{"{ " + strings.Join(node, ", ") + " }", s.nodePort(), !s.local},
				} {
					what := fmt.Sprintf("%s daddr %s %s dport %d ", ip, to.addr, proto, to.port)
					if len(s.endpoints) == 0 {
						fmt.Fprintf(&empty, "%sct state new reject\n", what)
					} else {
						fmt.Fprintf(&match, "%s%sgoto %s\n", what, mark(to.masq), chain)
					}
				}
				if len(s.endpoints) == 0 {
					continue
				}
				var choice []string
				for i, e := range s.endpoints {
					choice = append(choice, fmt.Sprintf("%d : goto %s-%d", i, chain, i))
					addr := e.addr(l, family)
					fmt.Fprintf(&b, "chain %s-%d {\n%s saddr %s %s\nmeta l4proto %s dnat to %s\n}\n", chain, i, ip, addr, mark(true), proto, e2etest.At(addr, e.port))
				}
				fmt.Fprintf(&b, "chain %s {\njhash %s saddr . %s daddr mod %d seed 0x%x vmap { %s }\n}\n",
					chain, ip, ip, len(s.endpoints), m.turn+1, strings.Join(choice, ", "))
			}
		}
		fmt.Fprintf(&b, "chain services {\n%s}\nchain empty {\n%s}\n", match.String(), empty.String())
		for _, hook := range []string{"prerouting", "output"} {
			fmt.Fprintf(&b, "chain nat-%s {\ntype nat hook %s priority -100;\njump services\n}\n", hook, hook)
		}
		for _, hook := range []string{"input", "forward", "output"} {
			fmt.Fprintf(&b, "chain filter-%s {\ntype filter hook %s priority -110;\njump empty\n", hook, hook)
			if m.dropInvalid && hook == "forward" {
				b.WriteString("ct state invalid drop\n")
			}
			b.WriteString("}\n")
		}
		masquerade := "masquerade"
		if m.randomPorts {
			masquerade = "masquerade fully-random"
		}
		fmt.Fprintf(&b, "chain nat-postrouting {\ntype nat hook postrouting priority 100;\nmeta mark & 0x4000 == 0x4000 meta mark set meta mark xor 0x4000 %s\n}\n}\n", masquerade)
	}
	b.WriteString("table inet admin {}\ndelete table inet admin\ntable inet admin {\nchain forward {\ntype filter hook forward priority 0;\n")
	for _, r := range m.rules {
		b.WriteString(r + "\n")
	}
	b.WriteString("}\n}\n")
	return b.String()
}
