// SPDX-License-Identifier: Apache-2.0

// Package hostport names hostPorts, for programs with and without BPF. Package maps/hostport has what they are in the datapath.
package hostport

import (
	"net/netip"

	"github.com/sluice-cni/sluice/pkg/ipproto"
)

// Key names a hostPort: what can be published only once on a node. An unspecified HostIP stands for every address of the node in
// its family.
type Key struct {
	HostIP netip.Addr `json:"hostIP"`
	Proto  uint8      `json:"proto"` // IPPROTO_TCP, IPPROTO_UDP, IPPROTO_SCTP
	Port   uint16     `json:"port"`
}

// String returns address:port/protocol.
func (k Key) String() string {
	return netip.AddrPortFrom(k.HostIP, k.Port).String() + "/" + ipproto.Name(k.Proto)
}

// Unmap returns k with an IPv4 address where the host address is an IPv4-mapped one (RFC 4291 2.5.5.2).
func (k Key) Unmap() Key {
	k.HostIP = k.HostIP.Unmap()
	return k
}
