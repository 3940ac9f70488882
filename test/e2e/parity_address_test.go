// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/netip"
	"testing"
)

// probe is a behaviour of one conversation by TCP and one by UDP. to may depend
// on the family.
func probe(name, from string, to func(s *stage, fam family) string) behaviour {
	return behaviour{name: name, see: func(s *stage, fam family) string { return s.reach(s.place(from), fam, to(s, fam)) }}
}

// shut is probe where most columns answer nothing.
func shut(name, from string, to func(s *stage, fam family) string) behaviour {
	return behaviour{name: name, see: func(s *stage, fam family) string { return s.closed(s.place(from), fam, to(s, fam)) }}
}

// place finds the node, a client or a pod by its name.
func (s *stage) place(name string) place {
	switch name {
	case "node":
		return s.Node
	case "client":
		return s.Clients[0]
	case "client2":
		return s.Clients[1]
	}
	return s.pods[name]
}

// Places to talk to, each at a port.
func onNode(port uint16) func(*stage, family) string {
	return func(s *stage, fam family) string { return at(fam.node(s.Clients[0]), port) }
}

func onNode2(port uint16) func(*stage, family) string {
	return func(s *stage, fam family) string { return at(fam.node(s.Clients[1]), port) }
}

func onClient(port uint16) func(*stage, family) string {
	return func(s *stage, fam family) string { return at(fam.client(s.Clients[0]), port) }
}

func onClient2(port uint16) func(*stage, family) string {
	return func(s *stage, fam family) string { return at(fam.client(s.Clients[1]), port) }
}

func onLoopback(port uint16) func(*stage, family) string {
	return func(_ *stage, fam family) string { return at(fam.loopback(), port) }
}

func onGateway(port uint16) func(*stage, family) string {
	return func(_ *stage, fam family) string { return at(netip.MustParseAddr(fam.gw), port) }
}

func onAddress(addr string, port uint16) func(*stage, family) string {
	return func(*stage, family) string { return at(netip.MustParseAddr(addr), port) }
}

func onPod(name string, port uint16) func(*stage, family) string {
	return func(s *stage, fam family) string { return at(fam.pod(s.pods[name]), port) }
}

// ipv4 leaves IPv6 out.
func ipv4(b behaviour) behaviour {
	b.only = "4"
	return b
}

func once(name string, see func(s *stage) string) behaviour {
	return behaviour{name: name, only: "-", see: func(s *stage, _ family) string { return see(s) }}
}

// onBoth is mappings of TCP and UDP to port 80, for each hostIP.
func onBoth(port int, hostIPs ...string) (out []mapping) {
	for _, ip := range hostIPs {
		out = append(out, mapping{HostPort: port, ContainerPort: 80, Protocol: "tcp", HostIP: ip},
			mapping{HostPort: port, ContainerPort: 80, Protocol: "udp", HostIP: ip})
	}
	return out
}

const anyIP = ""

// nodeIPs are the node's addresses on an uplink, both families.
func (s *stage) nodeIPs(i int) (out []string) {
	for _, fam := range families() {
		out = append(out, fam.node(s.Clients[i]).String())
	}
	return out
}

func hairpins() network { return network{extra: attributes{"hairpinMode": true}} }

// isNFT says whether a column's portmap speaks nftables.
func (c column) isNFT() bool { return c.name == "nftables" || c.name == referenceNFT }

// TestParityCount keeps the table as large as it is meant to be.
func TestParityCount(t *testing.T) {
	if n := len(rows()); n < 160 {
		t.Errorf("%d behaviours, want 160", n)
	}
}
