// SPDX-License-Identifier: Apache-2.0

package flowevent

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/ipproto"
)

// Each protocol of the IP header has a name that leads back to it.
func TestNumber(t *testing.T) {
	t.Parallel()
	for n := range 256 {
		e := Event{Proto: ipproto.Name(uint8(n))}
		if got := e.Number(); got != uint8(n) {
			t.Errorf("%d is %q, which is %d", n, e.Proto, got)
		}
	}
	for _, none := range []string{"", "256", "-1", "TCP"} {
		if got := (&Event{Proto: none}).Number(); got != 0 {
			t.Errorf("%q: %d", none, got)
		}
	}
}
