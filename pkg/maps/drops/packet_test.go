// SPDX-License-Identifier: Apache-2.0

package drops

import (
	"encoding/hex"
	"strings"
	"testing"
)

func TestDecodePacket(t *testing.T) {
	t.Parallel()
	const (
		eth4 = "ffffffffffff aabbccddee01 0800 "
		ip4  = "4500 0034 0000 %F 40 %P 0000 0a010002 c6336407 "
		ip6  = "60000000 0010 %P 40 fd000001000000000000000000000002 20010db8000000000000000000000007 "
		tcp  = "9c40 01bb 00000000 00000000 5012 0000 "
	)
	for name, tc := range map[string]struct {
		hex   string
		l2    int
		want  string
		proto uint8
	}{
		"tcp":         {eth4 + with(ip4, "0000", "06") + tcp, 14, "10.1.0.2:40000 198.51.100.7:443 SA", 6},
		"no link":     {with(ip4, "0000", "06") + tcp, 0, "10.1.0.2:40000 198.51.100.7:443 SA", 6},
		"vlan":        {"ffffffffffff aabbccddee01 8100 0005 0800 " + with(ip4, "0000", "06") + tcp, 14, "10.1.0.2:40000 198.51.100.7:443 SA", 6},
		"echo":        {eth4 + with(ip4, "0000", "01") + "0800 0000", 14, "10.1.0.2:0 198.51.100.7:0 type 8 code 0", 1},
		"later":       {eth4 + with(ip4, "00b9", "11") + "9c40 01bb", 14, "10.1.0.2:0 198.51.100.7:0 fragment", 17},
		"cut":         {eth4 + with(ip4, "0000", "11") + "9c", 14, "10.1.0.2:0 198.51.100.7:0 ", 17},
		"arp":         {"ffffffffffff aabbccddee01 0806 0001", 14, "invalid AddrPort invalid AddrPort ", 0},
		"empty":       {"", 14, "invalid AddrPort invalid AddrPort ", 0},
		"udp6":        {eth4 + with(ip6, "", "11") + "9c40 01bb 0010 0000", 14, "[fd00:1::2]:40000 [2001:db8::7]:443 ", 17},
		"options6":    {eth4 + with(ip6, "", "3c") + "11 00 010400000000 9c40 01bb 0010 0000", 14, "[fd00:1::2]:40000 [2001:db8::7]:443 ", 17},
		"later6":      {eth4 + with(ip6, "", "2c") + "11 00 00b9 00000001 9c40 01bb 0010 0000", 14, "[fd00:1::2]:0 [2001:db8::7]:0 fragment", 17},
		"extensions6": {eth4 + with(ip6, "", "3c") + "3c 00 010400000000 3c ff 010400000000", 14, "[fd00:1::2]:0 [2001:db8::7]:0 ", 60},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, err := hex.DecodeString(strings.ReplaceAll(tc.hex, " ", ""))
			if err != nil {
				t.Fatal(err)
			}
			p := DecodePacket(b, tc.l2)
			if got := p.Src.String() + " " + p.Dst.String() + " " + p.Header.String(); got != tc.want || p.Proto != tc.proto {
				t.Errorf("%q of protocol %d, want %q of %d", got, p.Proto, tc.want, tc.proto)
			}
		})
	}
}

func with(header, frag, proto string) string {
	return strings.NewReplacer("%F", frag, "%P", proto).Replace(header)
}

func FuzzDecodePacket(f *testing.F) {
	f.Add([]byte("\x45"), 0)
	f.Fuzz(func(_ *testing.T, b []byte, l2 int) { DecodePacket(b, min(max(l2, 0), 64)) })
}
