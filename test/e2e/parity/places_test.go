// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"net/netip"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// probe is a behaviour of one conversation by TCP and one by UDP. to may depend
// on the family.
func probe(name, from string, to func(s *stage, fam e2etest.Family) string) behaviour {
	return behaviour{name: name, observe: func(s *stage, fam e2etest.Family) string { return s.reach(s.place(from), fam, to(s, fam)) }}
}

// shut is probe where most columns answer nothing.
func shut(name, from string, to func(s *stage, fam e2etest.Family) string) behaviour {
	return behaviour{name: name, observe: func(s *stage, fam e2etest.Family) string { return s.closed(s.place(from), fam, to(s, fam)) }}
}

// place finds the node, a client or a pod by its name.
func (s *stage) place(name string) e2etest.Place {
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
func onNode(port uint16) func(*stage, e2etest.Family) string {
	return func(s *stage, fam e2etest.Family) string { return e2etest.At(fam.Node(s.Clients[0]), port) }
}

func onNode2(port uint16) func(*stage, e2etest.Family) string {
	return func(s *stage, fam e2etest.Family) string { return e2etest.At(fam.Node(s.Clients[1]), port) }
}

func onClient(port uint16) func(*stage, e2etest.Family) string {
	return func(s *stage, fam e2etest.Family) string { return e2etest.At(fam.Client(s.Clients[0]), port) }
}

func onClient2(port uint16) func(*stage, e2etest.Family) string {
	return func(s *stage, fam e2etest.Family) string { return e2etest.At(fam.Client(s.Clients[1]), port) }
}

func onLoopback(port uint16) func(*stage, e2etest.Family) string {
	return func(_ *stage, fam e2etest.Family) string { return e2etest.At(fam.Loopback(), port) }
}

func onGateway(port uint16) func(*stage, e2etest.Family) string {
	return func(_ *stage, fam e2etest.Family) string { return e2etest.At(netip.MustParseAddr(fam.Gateway), port) }
}

func onAddress(addr string, port uint16) func(*stage, e2etest.Family) string {
	return func(*stage, e2etest.Family) string { return e2etest.At(netip.MustParseAddr(addr), port) }
}

func onPod(name string, port uint16) func(*stage, e2etest.Family) string {
	return func(s *stage, fam e2etest.Family) string { return e2etest.At(fam.Pod(s.pods[name]), port) }
}

// ipv4 leaves IPv6 out.
func ipv4(b behaviour) behaviour {
	b.only = "4"
	return b
}

func once(name string, see func(s *stage) string) behaviour {
	return behaviour{name: name, only: "-", observe: func(s *stage, _ e2etest.Family) string { return see(s) }}
}

// onBoth is mappings of TCP and UDP to port 80, for each hostIP.
func onBoth(port int, hostIPs ...string) (out []e2etest.PortMapping) {
	for _, ip := range hostIPs {
		out = append(out, e2etest.PortMapping{HostPort: port, ContainerPort: 80, Protocol: "tcp", HostIP: ip},
			e2etest.PortMapping{HostPort: port, ContainerPort: 80, Protocol: "udp", HostIP: ip})
	}
	return out
}

const anyIP = ""

// nodeIPs are the node's addresses on an uplink, both families.
func (s *stage) nodeIPs(i int) (out []string) {
	for _, fam := range e2etest.Families() {
		out = append(out, fam.Node(s.Clients[i]).String())
	}
	return out
}

func hairpins() e2etest.Network {
	return e2etest.Network{Extra: e2etest.Attributes{"hairpinMode": true}}
}

// isNFT says whether a column's portmap speaks nftables.
func (c column) isNFT() bool { return c.name == "nftables" || c.name == referenceNFT }

// TestParityCount keeps the table as large as it is meant to be.
func TestParityCount(t *testing.T) {
	if n := len(rows()); n < 160 {
		t.Errorf("%d behaviours, want 160", n)
	}
}
