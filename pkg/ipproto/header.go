// SPDX-License-Identifier: Apache-2.0

package ipproto

import (
	"fmt"
	"strings"
)

// Header is what the header behind the IP header says of a packet besides its ports, as far as it was read. The zero value says nothing.
type Header struct {
	TCP      TCPFlags `json:"tcp_flags,omitempty"`
	ICMP     *ICMP    `json:"icmp,omitempty"`     // of ICMP and ICMPv6
	Fragment bool     `json:"fragment,omitempty"` // a later one, which has no such header
}

// TCPFlags are the flags of a TCP header (RFC 9293 3.1).
type TCPFlags uint8

// The flags.
const (
	FIN TCPFlags = 1 << iota
	SYN
	RST
	PSH
	ACK
	URG
	ECE
	CWR
)

// Has reports whether all flags of want are set.
func (f TCPFlags) Has(want TCPFlags) bool { return f&want == want }

// String has a letter for each flag, such as "SA".
func (f TCPFlags) String() string {
	var s strings.Builder
	for i, c := range "FSRPAUEC" {
		if f&(1<<i) != 0 {
			s.WriteRune(c)
		}
	}
	return s.String()
}

// ICMP says what an ICMP message is about.
type ICMP struct {
	Type uint8 `json:"type"`
	Code uint8 `json:"code"`
}

// String is for the operator: "SA", "type 8 code 0", "fragment", or empty.
func (h Header) String() string {
	switch {
	case h.Fragment:
		return "fragment"
	case h.ICMP != nil:
		return fmt.Sprintf("type %d code %d", h.ICMP.Type, h.ICMP.Code)
	}
	return h.TCP.String()
}
