// SPDX-License-Identifier: Apache-2.0

package stateful

import (
	"fmt"
	"time"
)

// countOver refuses a client's connections to web beyond n.
func countOver(n int) string {
	return forward("accept", fmt.Sprintf("tcp dport 80 ct state new ct count over %d counter reject with tcp reset", n))
}

// hostPortOnly is where a rule counts the client's connections, or those to web.
var hostPortOnly = []string{byHostPort}

// counting are rules that count open connections, one after the other: their trials would disturb each other.
func counting() []ruleset {
	count := []scenario{parallel(12), short(20)}
	return []ruleset{
		{name: "nft ct count over 10", before: countOver(10), then: count, paths: hostPortOnly, bites: "10 of 12"},
		{
			name: "nft ct count over 10, known only", then: count, paths: hostPortOnly, bites: "10 of 12",
			before: forward("drop", "tcp dport 80 ct state new ct count over 10 reject with tcp reset\n"+knownOnly),
		},
		{
			name: "nft ct count by source", then: count, paths: hostPortOnly, bites: "10 of 12",
			before: nft(`table inet admin {
	set four { type ipv4_addr; size 1024; flags dynamic; }
	set six { type ipv6_addr; size 1024; flags dynamic; }
	chain forward {
		type filter hook forward priority 10; policy accept;
		tcp dport 80 ct state new add @four { ip saddr ct count over 10 } reject with tcp reset
		tcp dport 80 ct state new add @six { ip6 saddr ct count over 10 } reject with tcp reset
	}
}
`),
		},
		{
			name: "nft ct count of a pod's connections", then: count, paths: []string{masqueraded}, bites: "10 of 12",
			before: forward("accept", "tcp dport 9000 ct state new ct count over 10 reject with tcp reset"),
		},
		{
			name: "iptables connlimit by source", chain: noFirewall, then: count, paths: hostPortOnly, bites: "10 of 12",
			before: tables("*filter\n-A FORWARD -p tcp --syn --dport 80 -m connlimit --connlimit-above 10 -j REJECT --reject-with tcp-reset\nCOMMIT\n"),
		},
		{
			name: "iptables connlimit of all", chain: noFirewall, then: count, paths: hostPortOnly, bites: "10 of 12",
			before: tables("*filter\n-A FORWARD -p tcp --syn --dport 80 -m connlimit --connlimit-above 10 --connlimit-mask 0 -j REJECT --reject-with tcp-reset\nCOMMIT\n"),
		},
		{
			name: "iptables connlimit of a pod's connections", chain: noFirewall, then: count, paths: []string{masqueraded}, bites: "10 of 12",
			before: tables("*filter\n-A FORWARD -p tcp --syn --dport 9000 -m connlimit --connlimit-upto 10 -j ACCEPT\n-A FORWARD -p tcp --syn --dport 9000 -j REJECT --reject-with tcp-reset\nCOMMIT\n"),
		},
		{
			name: "CSF CONNLIMIT", chain: noFirewall, then: count, paths: hostPortOnly, bites: "10 of 12",
			before: tables(`*filter
:CONNLIMIT - [0:0]
-A FORWARD -p tcp -m tcp --dport 80 --tcp-flags FIN,SYN,RST,ACK SYN -m connlimit --connlimit-above 10 -j CONNLIMIT
-A CONNLIMIT -p tcp -j REJECT --reject-with tcp-reset
COMMIT
`),
		},
	}
}

// limits are rules that count new connections, or what they carry.
func limits() []ruleset {
	acct := map[string]string{"nf_conntrack_acct": "1"}
	return []ruleset{
		{
			name: "iptables hashlimit", chain: noFirewall, then: []scenario{burst(12)}, paths: hostPortOnly, bites: "^[5-8] of 12",
			before: tables("*filter\n-A FORWARD -p tcp --dport 80 -m conntrack --ctstate NEW -m hashlimit --hashlimit-above 1/min --hashlimit-burst 6 --hashlimit-mode srcip --hashlimit-name new -j REJECT --reject-with tcp-reset\nCOMMIT\n"),
		},
		{
			name: "iptables recent", chain: noFirewall, then: []scenario{burst(8)}, paths: hostPortOnly, bites: "^[4-6] of 8",
			before: tables(`*filter
-A FORWARD -p tcp --dport 80 -m conntrack --ctstate NEW -m recent --set --name seen
-A FORWARD -p tcp --dport 80 -m conntrack --ctstate NEW -m recent --update --seconds 60 --hitcount 6 --name seen -j REJECT --reject-with tcp-reset
COMMIT
`),
		},
		{
			name: "CSF PORTFLOOD", chain: noFirewall, then: []scenario{burst(8)}, paths: hostPortOnly, bites: "^[4-6] of 8",
			before: tables(`*filter
:PORTFLOOD - [0:0]
-A FORWARD -p tcp -m tcp --dport 80 -m conntrack --ctstate NEW -m recent --set --name 80 --rsource
-A FORWARD -p tcp -m tcp --dport 80 -m conntrack --ctstate NEW -m recent --update --seconds 60 --hitcount 6 --name 80 --rsource -j PORTFLOOD
-A PORTFLOOD -p tcp -j REJECT --reject-with tcp-reset
COMMIT
`),
		},
		{
			name: "CSF SYNFLOOD", chain: noFirewall, then: []scenario{burst(8)}, paths: hostPortOnly, bites: "^[4-6] of 8",
			before: tables(`*filter
:SYNFLOOD - [0:0]
-A FORWARD -i eth0 -p tcp --syn -j SYNFLOOD
-A SYNFLOOD -m limit --limit 1/min --limit-burst 5 -j RETURN
-A SYNFLOOD -j DROP
COMMIT
`),
		},
		{
			name: "nft limit of new connections", then: []scenario{burst(8)}, paths: hostPortOnly, bites: "^[4-6] of 8",
			before: nft(`table inet admin {
	set four { type ipv4_addr; size 1024; flags dynamic,timeout; timeout 1m; }
	set six { type ipv6_addr; size 1024; flags dynamic,timeout; timeout 1m; }
	chain forward {
		type filter hook forward priority 10; policy accept;
		tcp dport 80 ct state new update @four { ip saddr limit rate over 1/minute burst 4 packets } reject with tcp reset
		tcp dport 80 ct state new update @six { ip6 saddr limit rate over 1/minute burst 4 packets } reject with tcp reset
	}
}
`),
		},
		{
			name: "nft sets of clients", atOnce: []scenario{refused(), ended("closed", young, (*talk).close), idle("young", young, client)}, idle: 2 * time.Second,
			look: `for set in new4 new6 known4 known6 met; do echo "$set: $(nft list set inet admin $set | tr '\n' ' ' | sed -n 's/.*elements = {\([^}]*\)}.*/\1/p' | sed -E 's/ (timeout|expires) [0-9a-z]+//g' | tr ',' '\n' | tr -d ' \t' | sort | tr '\n' ' ')"; done`,
			before: nft(`table inet admin {
	set new4 { type ipv4_addr . inet_service; size 1024; flags dynamic,timeout; timeout 1h; }
	set new6 { type ipv6_addr . inet_service; size 1024; flags dynamic,timeout; timeout 1h; }
	set known4 { type ipv4_addr; size 1024; flags dynamic,timeout; timeout 1h; }
	set known6 { type ipv6_addr; size 1024; flags dynamic,timeout; timeout 1h; }
	set met { type inet_proto; size 16; flags dynamic,timeout; timeout 4s; }
	chain forward {
		type filter hook forward priority 10; policy accept;
		ct state new update @new4 { ip saddr . tcp dport }
		ct state new update @new6 { ip6 saddr . tcp dport }
		ct state established update @known4 { ip saddr }
		ct state established update @known6 { ip6 saddr }
		meta l4proto tcp ct state established update @met { meta l4proto }
		meta l4proto { tcp, udp } th dport { 81, 9001 } drop
	}
}
`),
		},
		{
			name: "iptables known clients by recent, each word", chain: noFirewall, then: []scenario{idle("relearned", relearned, client)}, paths: hostPortOnly, idle: time.Second, bites: "arrives",
			before: tables(`*filter
-A FORWARD -i eth0 -p tcp --dport 80 -m conntrack --ctstate NEW -m recent --set --name live
-A FORWARD -i eth0 -p tcp --dport 80 -m conntrack --ctstate ESTABLISHED -m recent ! --update --seconds 2 --name live -j DROP
COMMIT
`),
		},
		{
			name: "iptables connbytes", chain: noFirewall, sysctls: acct, atOnce: []scenario{bulk(200 << 10)},
			before: tables("*filter\n-A FORWARD -m connbytes --connbytes 100000 --connbytes-dir both --connbytes-mode bytes -j DROP\nCOMMIT\n"),
		},
		{name: "nft ct bytes", sysctls: acct, atOnce: []scenario{bulk(200 << 10)}, before: forward("accept", "ct bytes > 100000 drop")},
		{name: "nft ct packets", sysctls: acct, atOnce: []scenario{bulk(400 << 10)}, before: forward("accept", "ct original packets > 150 drop")},
		{name: "nft ct avgpkt", sysctls: acct, atOnce: []scenario{bulk(400 << 10)}, before: forward("accept", "ct original avgpkt > 400 ct original bytes > 50000 drop")},
		{
			name: "nft quota", then: []scenario{bulk(200 << 10)}, paths: hostPortOnly, bites: "lost|arrives|times out",
			before: forward("accept", "ct state invalid drop\nmeta nfproto ipv4 tcp dport 80 quota over 100 kbytes drop\nmeta nfproto ipv6 tcp dport 80 quota over 100 kbytes drop"),
		},
	}
}
