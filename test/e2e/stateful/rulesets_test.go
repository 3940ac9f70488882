// SPDX-License-Identifier: Apache-2.0

package stateful

import (
	"fmt"
	"slices"
)

// rulesets are all, those that take longest first.
func rulesets() []ruleset {
	return slices.Concat(experiments(), onlyEstablished())
}

// nft is a script that loads rules.
func nft(rules string) string { return "nft -f - <<'RULES'\n" + rules + "RULES\n" }

// countOver refuses a client's connections to web beyond n.
func countOver(n int) string {
	return nft(fmt.Sprintf(`
table inet admin {
	chain forward {
		type filter hook forward priority 10; policy accept;
		tcp dport 80 ct state new ct count over %d counter reject with tcp reset
	}
}
`, n))
}

// onlyEstablished are ways to admit new connections by port, and else only what conntrack knows.
func onlyEstablished() []ruleset {
	return []ruleset{
		{name: "nft established", before: established, atOnce: standing(), paths: []string{byHostPort, byPodIP, masqueraded, onBridge, betweenPTP}},
	}
}
