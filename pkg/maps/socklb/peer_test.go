// SPDX-License-Identifier: Apache-2.0

package socklb

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	for _, want := range []Value{
		{Asked: netip.MustParseAddrPort("127.0.0.1:8080"), Pod: netip.MustParseAddrPort("10.1.0.2:80"), Proto: 6, Gen: 7},
		{Asked: netip.MustParseAddrPort("[::1]:8080"), Pod: netip.MustParseAddrPort("[fd00::2]:53"), Proto: 17, Gen: 1 << 60},
	} {
		raw := encode(want)
		if diff := cmp.Diff(want, decode(raw), cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
			t.Error(diff)
		}
		if raw.Frontend[15] != want.Asked.Addr().As16()[15] {
			t.Errorf("asked address %v", raw.Frontend)
		}
	}
}
