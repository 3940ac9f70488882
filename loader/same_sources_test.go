// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"net/netip"
	"testing"

	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
)

func TestSameSources(t *testing.T) {
	own, lo := netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("203.0.113.7")
	addrs := map[netip.Addr]uint32{own: 2, lo: 1}
	for _, tt := range []struct {
		name     string
		now, had netip.Addr
		want     bool
	}{
		{"own", own, own, true},
		{"none", netip.Addr{}, netip.Addr{}, true},
		{"borrowed", netip.Addr{}, lo, true},
		{"lost", netip.Addr{}, own, false},
		{"new", own, netip.Addr{}, false},
		{"needs no other", own, lo, false},
	} {
		if got := sameSources(endpoint.Sources{V4: tt.now}, endpoint.Sources{V4: tt.had}, addrs, 2); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
}
