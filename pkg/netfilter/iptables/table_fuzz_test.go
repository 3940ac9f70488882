// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
)

// Tables hold rules of everybody. Of any listing, what is found is in it, and what takes it back names a chain and a
// rule of it, one a line.
func FuzzListing(f *testing.F) {
	f.Add(":CNI-HOSTPORT-DNAT - [0:0]\n:CNI-DN-c189d8b6a7b4d184c9f70 - [0:0]\n" +
		"-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment \"dnat name: \\\"n1\\\" id: \\\"ctr1\\\"\" -m multiport --dports 8080 -j CNI-DN-c189d8b6a7b4d184c9f70\n" +
		"-A CNI-DN-c189d8b6a7b4d184c9f70 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.1.0.2:80\n")
	f.Add(":FORWARD DROP [0:0]\n:CNI-FORWARD - [0:0]\n-A CNI-FORWARD -d 10.1.0.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n" +
		"-A CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT\n-A CNI-ISOLATION-STAGE-1 -i cni0 ! -o cni0 -m comment --comment \"CNI firewall plugin rules (ingressPolicy: same-bridge)\" -j CNI-ISOLATION-STAGE-2\n")
	f.Add("-A PREROUTING " + guardRule("cni0") + "\n-A PREROUTING --comment \n-A\n-A \n:\n: \n-A X \"\n-A X \\\n-A CNI-FORWARD -s\n-A CNI-FORWARD -s fd00::7/128 -j ACCEPT\n")
	f.Fuzz(func(t *testing.T, save string) {
		var have table
		var all []found
		fuzztest.Bounded(t, len(save), func() {
			have = parseTable(save)
			all = slices.Concat(natSets(have), filterSets(have), guardSets(have))
			_ = have.count(true)
			_ = have.acceptsMark(0x4000, (table).isForeign)
		})
		for _, x := range all {
			var s script
			x.seen.remove(&s, have)
			for _, line := range s.lines {
				if strings.Contains(line, "\n") || !strings.Contains(line, x.seen.chain) && !strings.HasPrefix(line, "-D ") {
					t.Errorf("%q takes back %+v", line, x)
				}
			}
			for _, r := range x.seen.rules {
				if !slices.Contains(have.chains[x.seen.chain], r) {
					t.Errorf("%q is in no listing", r)
				}
			}
			if slices.ContainsFunc(s.lines, func(line string) bool { return strings.HasPrefix(line, "-F FORWARD") || line == "-X FORWARD" }) {
				t.Errorf("takes away a chain of the kernel: %q", s.lines)
			}
		}
	})
}

// Whatever a word holds, iptables-restore reads it as one word of the same line.
func FuzzQuote(f *testing.F) {
	for _, w := range []string{"", "x", "a b", `"`, `\`, `a\"b`, "'", "\t", "é"} {
		f.Add(w, "-j")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		if strings.ContainsAny(a+b, "\n\r\x00") {
			return // refused where configurations are read
		}
		if got := words(quoteAll([]string{a, b})); !slices.Equal(got, []string{a, b}) {
			t.Errorf("%q and %q became %q", a, b, got)
		}
	})
}
