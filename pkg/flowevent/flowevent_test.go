// SPDX-License-Identifier: Apache-2.0

package flowevent

import "testing"

// Each protocol of the IP header has a name that leads back to it.
func TestProtocol(t *testing.T) {
	t.Parallel()
	for n := range 256 {
		e := Event{Proto: Protocol(uint8(n))}
		if got := e.Number(); got != uint8(n) {
			t.Errorf("%d is %q, which is %d", n, e.Proto, got)
		}
	}
	for number, name := range map[uint8]string{1: "icmp", 6: "tcp", 17: "udp", 58: "icmp6", 132: "sctp", 89: "89"} {
		if got := Protocol(number); got != name {
			t.Errorf("%d: %q, want %q", number, got, name)
		}
	}
	for _, none := range []string{"", "256", "-1", "TCP"} {
		if got := (&Event{Proto: none}).Number(); got != 0 {
			t.Errorf("%q: %d", none, got)
		}
	}
}
