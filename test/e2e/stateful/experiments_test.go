// SPDX-License-Identifier: Apache-2.0

package stateful

import "time"

// established admits new connections to the open ports, and else only what conntrack calls established.
var established = nft(`
table inet admin {
	chain forward {
		type filter hook forward priority 10; policy drop;
		ct state established,related accept
		tcp dport { 80, 9000 } tcp flags & (syn|ack) == syn ct state new accept
		udp dport { 80, 9000 } ct state new accept
		meta l4proto ipv6-icmp accept
	}
}
`)

// experiments are the four that showed what the fast path hid from netfilter, with the sysctls of a node as it is shipped.
func experiments() []ruleset {
	return []ruleset{
		{
			name: "experiment: 70 s idle", before: established, asShipped: true, conf: `{}`, idle: 70 * time.Second,
			atOnce: []scenario{refused(), many(20, time.Second)}, paths: []string{byHostPort},
		},
		{
			name: "experiment: idle after relearning", before: established, asShipped: true, conf: `{}`, idle: 12 * time.Second,
			sysctls: map[string]string{"nf_conntrack_tcp_timeout_unacknowledged": "8", "nf_conntrack_tcp_timeout_max_retrans": "8"},
			atOnce:  []scenario{refused(), many(20, 12*time.Second)}, paths: []string{byHostPort},
		},
		{
			name: "experiment: ct count over 20", before: countOver(20), asShipped: true, conf: `{}`,
			then: []scenario{short(100), parallel(24)}, paths: []string{byHostPort}, bites: "20 of 24",
		},
		{
			name: "experiment: closed connections", before: established, asShipped: true, conf: `{}`, idle: time.Second,
			atOnce: []scenario{refused(), ended("closed", young, (*talk).close), ended("closed after relearning", 12*time.Second, (*talk).close)},
		},
	}
}
