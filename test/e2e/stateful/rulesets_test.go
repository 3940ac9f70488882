// SPDX-License-Identifier: Apache-2.0

package stateful

import (
	"fmt"
	"slices"
)

// rulesets are all, those that take longest first.
func rulesets() []ruleset {
	return slices.Concat(experiments(), onlyEstablished(), tools(), counting(), limits(), marks(), tracking(), timeouts(), administration())
}

// nft is a script that loads rules.
func nft(rules string) string { return "nft -f - <<'RULES'\n" + rules + "RULES\n" }

// tables is a script that loads rules of iptables in both families, given as iptables-save prints them. ICMPv6 is let through:
// neighbours find each other by it, also on a bridge.
func tables(rules string) string {
	return "restore <<'RULES'\n" + rules + "RULES\nip6tables -w 30 -I FORWARD -p ipv6-icmp -j ACCEPT\n"
}

// forward is a chain of nft that sees what the node forwards.
func forward(policy, rules string) string {
	return nft(fmt.Sprintf("table inet admin {\nchain forward {\ntype filter hook forward priority 10; policy %s;\nmeta l4proto ipv6-icmp accept\n%s\n}\n}\n", policy, rules))
}

// core is standing without what another ruleset shows of the same tool.
func core() []scenario {
	return []scenario{
		refused(),
		idle("young", young, server), idle("relearned", relearned, client), ended("closed", young, (*talk).close),
		idle("datagrams", relearned, server, udp...),
	}
}

// everywhere are all paths.
var everywhere = []string{byHostPort, byPodIP, masqueraded, onBridge, betweenPTP}

// admitSYN are new connections to the open ports, and knownOnly also all that conntrack has established.
const (
	admitSYN = `
tcp dport { 80, 9000 } tcp flags & (syn|ack) == syn ct state new accept
udp dport { 80, 9000 } ct state new accept
`
	knownOnly = `
ct state established,related accept
` + admitSYN

	iptablesSYN = `
-A FORWARD -p tcp --syn -m multiport --dports 80,9000 -m conntrack --ctstate NEW -j ACCEPT
-A FORWARD -p udp -m multiport --dports 80,9000 -m conntrack --ctstate NEW -j ACCEPT
`
	iptablesKnown = `*filter
:FORWARD DROP [0:0]
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
` + iptablesSYN + `COMMIT
`
)

// onlyEstablished are ways to admit new connections by port, and else only what conntrack knows.
func onlyEstablished() []ruleset {
	state := `*filter
:FORWARD DROP [0:0]
-A FORWARD -m state --state RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -p tcp --syn -m multiport --dports 80,9000 -m state --state NEW -j ACCEPT
-A FORWARD -p udp -m multiport --dports 80,9000 -m state --state NEW -j ACCEPT
COMMIT
`
	mangle := func(chain string) string {
		return `restore <<'RULES'
*mangle
-A ` + chain + ` -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ` + chain + ` -p tcp --syn -m multiport --dports 80,8080,9000 -j ACCEPT
-A ` + chain + ` -p udp -m multiport --dports 80,8080,9000 -m conntrack --ctstate NEW -j ACCEPT
-A ` + chain + ` -p tcp -j DROP
-A ` + chain + ` -p udp -j DROP
COMMIT
RULES
`
	}
	hook := func(hook string, priority int) string {
		return nft(fmt.Sprintf(`table inet admin {
	chain only {
		type filter hook %s priority %d; policy accept;
		ct state established,related accept
		tcp dport { 80, 8080, 9000 } tcp flags & (syn|ack) == syn accept
		udp dport { 80, 8080, 9000 } ct state new accept
		meta l4proto { tcp, udp } drop
	}
}
`, hook, priority))
	}
	return []ruleset{
		{name: "nft established", before: established, atOnce: standing(), paths: everywhere},
		{name: "nft established, relearned seldom", before: established, conf: `{"relearnSeconds": 5}`, atOnce: core()},
		{name: "nft vmap", before: forward("drop", "ct state vmap { established : accept, related : accept, invalid : drop }\n"+admitSYN), atOnce: standing()},
		{name: "nft established, reject", before: forward("accept", knownOnly+"meta l4proto tcp reject with tcp reset\nreject"), atOnce: core()},
		{name: "nft established in prerouting", before: hook("prerouting", -150), atOnce: core()},
		{name: "nft established in postrouting", before: hook("postrouting", 0), atOnce: core()},
		{name: "iptables conntrack", before: tables(iptablesKnown), chain: noFirewall, atOnce: standing(), paths: everywhere},
		{name: "iptables conntrack, firewall plugin", before: tables(iptablesKnown), atOnce: standing()},
		{name: "iptables state", before: tables(state), chain: noFirewall, atOnce: core()},
		{
			name: "iptables-legacy conntrack", chain: noFirewall, atOnce: core(),
			before: "iptables-legacy-restore <<'RULES'\n" + iptablesKnown + "RULES\nip6tables-legacy-restore <<'RULES'\n" + iptablesKnown + "RULES\n",
		},
		{name: "iptables established in mangle PREROUTING", before: mangle("PREROUTING"), atOnce: core()},
		{name: "iptables established in mangle FORWARD", before: mangle("FORWARD"), atOnce: core()},
		{name: "iptables established in mangle POSTROUTING", before: mangle("POSTROUTING"), atOnce: core()},
		{
			name: "iptables invalid is reset", chain: noFirewall, sysctls: map[string]string{"nf_conntrack_tcp_loose": "0"}, atOnce: talks(),
			before: tables("*filter\n-A FORWARD -p tcp -m conntrack --ctstate INVALID -j REJECT --reject-with tcp-reset\n" +
				"-A FORWARD -p tcp -m multiport --dports 81,9001 -m conntrack --ctstate NEW -j REJECT --reject-with tcp-reset\nCOMMIT\n"),
		},
		{
			name: "nft invalid is dropped, tcp_loose 0", sysctls: map[string]string{"nf_conntrack_tcp_loose": "0"}, atOnce: talks(),
			before: forward("accept", "ct state invalid drop\ntcp dport { 81, 9001 } ct state new drop"),
		},
		{
			name: "nft invalid is dropped, tcp_be_liberal 1", sysctls: map[string]string{"nf_conntrack_tcp_be_liberal": "1"}, atOnce: talks(),
			before: forward("accept", "ct state invalid drop\ntcp dport { 81, 9001 } ct state new drop"),
		},
		{
			name: "nft invalid is dropped, tcp_be_liberal 0", sysctls: map[string]string{"nf_conntrack_tcp_be_liberal": "0"}, atOnce: talks(),
			before: forward("accept", "ct state invalid drop\ntcp dport { 81, 9001 } ct state new drop"),
		},
		{
			name: "nft established, TCPMSS clamped", atOnce: core(),
			before: forward("drop", "tcp flags & (syn|rst) == syn tcp option maxseg size set rt mtu\n"+knownOnly),
		},
		{
			name: "iptables conntrack, TCPMSS clamped", chain: noFirewall, atOnce: core(),
			before: tables(iptablesKnown) + "ipt -t mangle -A FORWARD -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu\n",
		},
	}
}
