// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/sluice-cni/sluice/pkg/test/kubetest"
)

// The Ethernet of a cluster. It is a bridge in the control machine, so clusters beside each other have the same addresses.
var (
	lan4 = netip.MustParsePrefix("172.30.0.0/24")
	lan6 = netip.MustParsePrefix("fd30::/64")
)

// Pods and Services are the networks of the cluster, an IPv4 one and an IPv6 one.
var (
	Pods     = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd24::/56")}
	Services = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd96::/108")}
)

// An address on the Ethernet is a number in both networks.
const (
	controlHost = 1
	firstNode   = 11
	outsideHost = 100
)

// DNS is the address of the cluster's DNS server.
var DNS = netip.MustParseAddr("10.96.0.10")

// host returns the addresses with a number, IPv4 first.
func host(n int) []netip.Addr {
	a4, a6 := lan4.Addr().As4(), lan6.Addr().As16()
	a4[3], a6[15] = byte(n), byte(n)
	return []netip.Addr{netip.AddrFrom4(a4), netip.AddrFrom16(a6)}
}

// ControlAddrs, NodeAddrs and OutsideAddrs are the addresses of machines, IPv4 first. The first node is 0.
func ControlAddrs() []netip.Addr   { return host(controlHost) }
func NodeAddrs(i int) []netip.Addr { return host(firstNode + i) }
func OutsideAddrs() []netip.Addr   { return host(outsideHost) }

func nodeName(i int) string { return fmt.Sprintf("node%d", i+1) }

// onLAN writes an address with the length of its network.
func onLAN(a netip.Addr) string {
	if a.Is4() {
		return fmt.Sprintf("%s/%d", a, lan4.Bits())
	}
	return fmt.Sprintf("%s/%d", a, lan6.Bits())
}

func serverAddrs() []netip.Addr {
	addrs := append([]netip.Addr{netip.MustParseAddr("127.0.0.1")}, ControlAddrs()...)
	for _, s := range Services {
		addrs = append(addrs, s.Addr().Next())
	}
	return addrs
}

func serverURL() string { return "https://" + ControlAddrs()[0].String() + ":" + kubetest.Port }

// quoted lists them for YAML, where a colon means something.
func quoted(prefixes []netip.Prefix) string {
	return `"` + strings.ReplaceAll(list(prefixes), ",", `", "`) + `"`
}

func list(prefixes []netip.Prefix) string {
	var all []string
	for _, p := range prefixes {
		all = append(all, p.String())
	}
	return strings.Join(all, ",")
}
