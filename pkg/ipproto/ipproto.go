// SPDX-License-Identifier: Apache-2.0

// Package ipproto has the names of the protocols of the IP header that Sluice knows by name. Numbers are those of unix.IPPROTO_TCP
// and its like. Everything that reads or prints a protocol uses it. It imports no other package of Sluice.
package ipproto

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// protocols is in the order of messages.
var protocols = [...]struct {
	name   string
	number uint8
}{
	{"tcp", unix.IPPROTO_TCP},
	{"udp", unix.IPPROTO_UDP},
	{"sctp", unix.IPPROTO_SCTP},
	{"icmp", unix.IPPROTO_ICMP},
	{"icmp6", unix.IPPROTO_ICMPV6},
}

// Name returns the name of a protocol. One without a name is called by its number.
func Name(number uint8) string {
	for _, p := range protocols {
		if p.number == number {
			return p.name
		}
	}
	return strconv.Itoa(int(number))
}

// Number returns the number of a protocol that has a name. Otherwise it returns 0.
func Number(name string) uint8 {
	for _, p := range protocols {
		if p.name == name {
			return p.number
		}
	}
	return 0
}

// Names returns the names of all protocols that have one.
func Names() []string {
	var names []string
	for _, p := range protocols {
		names = append(names, p.name)
	}
	return names
}

// HasPorts reports whether the packets of a protocol have ports. So only these protocols can have hostPorts.
func HasPorts(number uint8) bool {
	return number == unix.IPPROTO_TCP || number == unix.IPPROTO_UDP || number == unix.IPPROTO_SCTP
}
