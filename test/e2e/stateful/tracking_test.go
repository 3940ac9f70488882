// SPDX-License-Identifier: Apache-2.0

package stateful

import (
	"fmt"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// marks are rules that keep what they know of a connection in its entry, and ask the entry.
func marks() []ruleset {
	// A packet of data is not acknowledged yet, so its connection has this rest of life when the rules see it.
	patient := map[string]string{"nf_conntrack_tcp_timeout_unacknowledged": "300", "nf_conntrack_tcp_timeout_max_retrans": "300"}
	return []ruleset{
		{
			name: "iptables connmark", chain: noFirewall, atOnce: standing(),
			before: tables(`*mangle
-A FORWARD -j CONNMARK --restore-mark --nfmask 0xf --ctmask 0xf
-A FORWARD -p tcp --syn -m multiport --dports 80,9000 -m conntrack --ctstate NEW -j MARK --set-xmark 0x7/0xf
-A FORWARD -p udp -m multiport --dports 80,9000 -m conntrack --ctstate NEW -j MARK --set-xmark 0x7/0xf
-A FORWARD -j CONNMARK --save-mark --nfmask 0xf --ctmask 0xf
COMMIT
*filter
:FORWARD DROP [0:0]
-A FORWARD -m mark --mark 0x7/0xf -j ACCEPT
COMMIT
`),
		},
		{
			// An admitted pod's connections have the bits of firewallMark too (ADR 43), which the next ruleset masks.
			name: "nft ct mark", chain: noFirewall, atOnce: standing(),
			before: forward("drop", `
tcp dport { 80, 9000 } tcp flags & (syn|ack) == syn ct state new ct mark set 7
udp dport { 80, 9000 } ct state new ct mark set 7
ct mark 7 accept
`),
		},
		{
			name: "nft ct mark, some bits", atOnce: core(),
			before: forward("drop", `
tcp dport { 80, 9000 } tcp flags & (syn|ack) == syn ct state new ct mark set ct mark | 7
udp dport { 80, 9000 } ct state new ct mark set ct mark | 7
ct mark & 0xf == 7 accept
`),
		},
		{
			name: "nft ct label", atOnce: core(),
			before: forward("drop", `
tcp dport { 80, 9000 } tcp flags & (syn|ack) == syn ct state new ct label set 1
udp dport { 80, 9000 } ct state new ct label set 1
ct label 1 accept
`),
		},
		{
			name: "iptables connlabel", chain: noFirewall, atOnce: core(),
			before: `mkdir -p /etc/xtables; printf '1 admitted\n' > /etc/xtables/connlabel.conf
` + tables(`*filter
:FORWARD DROP [0:0]
-A FORWARD -p tcp --syn -m multiport --dports 80,9000 -m conntrack --ctstate NEW -m connlabel --label 1 --set
-A FORWARD -p udp -m multiport --dports 80,9000 -m conntrack --ctstate NEW -m connlabel --label 1 --set
-A FORWARD -m connlabel --label 1 -j ACCEPT
COMMIT
`),
		},
		{
			name: "nft ct direction", atOnce: core(),
			before: forward("drop", "ct direction reply ct state established accept\nct direction original ct state established accept\n"+admitSYN),
		},
		{
			name: "iptables ctdir", chain: noFirewall, atOnce: core(),
			before: tables(`*filter
:FORWARD DROP [0:0]
-A FORWARD -m conntrack --ctstate ESTABLISHED --ctdir REPLY -j ACCEPT
-A FORWARD -m conntrack --ctstate ESTABLISHED --ctdir ORIGINAL -j ACCEPT
` + iptablesSYN + `COMMIT
`),
		},
		{
			name: "nft ct status assured", atOnce: standing(),
			before: forward("drop", "tcp flags & psh == psh ct status & assured != assured drop\n"+knownOnly),
		},
		{
			name: "iptables ctstatus", chain: noFirewall, atOnce: core(),
			before: tables(`*filter
:FORWARD DROP [0:0]
-A FORWARD -p tcp --tcp-flags PSH PSH -m conntrack ! --ctstatus ASSURED -j DROP
-A FORWARD -m conntrack --ctstate ESTABLISHED --ctstatus SEEN_REPLY,CONFIRMED -j ACCEPT
` + iptablesSYN + `COMMIT
`),
		},
		{
			name: "nft ct expiration", atOnce: core(), sysctls: patient,
			before: forward("drop", "tcp flags & psh == psh ct expiration < 2m drop\n"+knownOnly),
		},
		{
			name: "iptables ctexpire", chain: noFirewall, atOnce: core(), sysctls: patient,
			before: tables(`*filter
:FORWARD DROP [0:0]
-A FORWARD -p tcp --tcp-flags PSH PSH -m conntrack --ctexpire 0:120 -j DROP
-A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT
` + iptablesSYN + `COMMIT
`),
		},
		{
			name: "nft ct original and reply addresses", atOnce: core(),
			before: forward("drop", `
ct state established ct original ip saddr 192.0.2.2 accept
ct state established ct original ip6 saddr 2001:db8:1::2 accept
ct state established ct original ip saddr 10.1.0.0/16 accept
ct state established ct original ip6 saddr fd00:10:1::/64 accept
`+admitSYN),
		},
		{
			name: "nft ct reply source", atOnce: core(), paths: []string{byHostPort, byPodIP},
			before: forward("drop", `
meta l4proto { tcp, udp } ct state established ct reply ip saddr 10.1.0.0/16 ct reply proto-src 80 accept
meta l4proto { tcp, udp } ct state established ct reply ip6 saddr fd00:10:1::/64 ct reply proto-src 80 accept
`+admitSYN),
		},
		{
			name: "nft ct original port", atOnce: core(), paths: hostPortOnly, slow: true,
			before: forward("drop", "meta l4proto { tcp, udp } ct original proto-dst 8080 accept"),
		},
		{
			name: "nft ct status dnat", atOnce: core(), paths: hostPortOnly, slow: true,
			before: forward("drop", "tcp dport 80 ct status dnat accept\nudp dport 80 ct status dnat accept\nct direction reply ct status dnat accept"),
		},
	}
}

// tracking are rules that say how and what is tracked.
func tracking() []ruleset {
	zones := nft(`table inet zones {
	chain prerouting {
		type filter hook prerouting priority raw; policy accept;
		iifname { "eth0", "cni0" } ct zone set 5
	}
}
`)
	notrack := func(match string) string {
		return nft(`table inet untracked {
	chain prerouting {
		type filter hook prerouting priority raw; policy accept;
		` + match + `
	}
}
`)
	}
	untracked := "ct state untracked accept\n" + knownOnly
	return []ruleset{
		{name: "nft ct zone", before: zones + established, atOnce: core()},
		{
			name: "iptables CT zone", chain: noFirewall, atOnce: core(),
			before: tables(iptablesKnown) + "ipt -t raw -A PREROUTING -i eth0 -j CT --zone 3\nipt -t raw -A PREROUTING -i cni0 -j CT --zone 3\n",
		},
		{
			name: "nft notrack of the port", atOnce: talks(), paths: []string{byPodIP, masqueraded},
			before: notrack("meta l4proto { tcp, udp } th dport 80 notrack\nmeta l4proto { tcp, udp } th sport 80 notrack") + forward("drop", untracked),
		},
		{
			name: "iptables notrack of the port", chain: noFirewall, atOnce: talks(), paths: []string{byPodIP, masqueraded},
			before: tables("*filter\n:FORWARD DROP [0:0]\n-A FORWARD -p tcp -m conntrack --ctstate UNTRACKED -j ACCEPT\n-A FORWARD -p udp -m conntrack --ctstate UNTRACKED -j ACCEPT\n"+
				"-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n"+iptablesSYN+"COMMIT\n") +
				"for p in tcp udp; do ipt -t raw -A PREROUTING -p $p --dport 80 -j CT --notrack; ipt -t raw -A PREROUTING -p $p --sport 80 -j CT --notrack; done\n",
		},
		{
			name: "nft notrack of all", atOnce: talks(), paths: []string{byPodIP},
			before: notrack("meta l4proto { tcp, udp } notrack") + forward("drop", "ct state untracked meta l4proto { tcp, udp } th dport != 81 accept"),
		},
		{
			name: "nft notrack of the hostPort", atOnce: []scenario{refused(), ended("closed", young, (*talk).close)}, paths: hostPortOnly, slow: true,
			before: notrack("meta l4proto { tcp, udp } th dport { 80, 8080, 8081 } notrack\nmeta l4proto { tcp, udp } th sport 80 notrack") + forward("drop", untracked),
		},
		{
			name: "nft ct helper ftp", atOnce: []scenario{ftp(4, ftpDataPort), ftp(20, otherDataPort)}, paths: []string{byPodIP, masqueraded},
			before: ftpHelper + forward("drop", "ct state established,related accept\ntcp dport 21 ct state new accept"),
		},
		{
			name: "iptables CT helper ftp", chain: noFirewall, atOnce: []scenario{ftp(4, ftpDataPort), ftp(20, otherDataPort)}, paths: []string{byPodIP, masqueraded},
			before: tables("*filter\n:FORWARD DROP [0:0]\n-A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT\n-A FORWARD -m conntrack --ctstate RELATED -m helper --helper ftp -j ACCEPT\n-A FORWARD -p tcp --dport 21 -j ACCEPT\nCOMMIT\n") +
				"ipt -t raw -A PREROUTING -p tcp --dport 21 -j CT --helper ftp\n",
		},
	}
}

const ftpHelper = `nft -f - <<'RULES'
table inet helpers {
	ct helper ftp-standard {
		type "ftp" protocol tcp
		l3proto inet
	}
	chain prerouting {
		type filter hook prerouting priority filter; policy accept;
		tcp dport 21 ct helper set "ftp-standard"
	}
}
RULES
`

// ftp is a control connection of FTP that goes on for some words. Then the server announces a port (RFC 2428), which the client
// opens. Before that it is shut. Each scenario has a port of its own: what one announces, all may open.
func ftp(words, dataPort int) scenario {
	return scenario{name: fmt.Sprintf("data connection of FTP after %d words", words), run: func(s *stage, tr trial) outcome {
		var o outcome
		host := s.host(tr)
		t, verdict := s.hub.open(s.from(tr), tr.network(), e2etest.At(host, ftpPort))
		o.see("control", verdict)
		if t == nil {
			return o
		}
		defer t.close()
		data := e2etest.At(host, uint16(dataPort))
		_, verdict = s.hub.open(s.from(tr), tr.network(), data)
		o.see("before", verdict)
		if err := t.exchange(time.Duration(words)*pause, pause); err != nil {
			o.see("words", verdictOf(err))
		}
		t.line(client, "EPSV\r")
		t.line(server, fmt.Sprintf("229 Entering Extended Passive Mode (|||%d|)\r", dataPort))
		d, verdict := s.hub.open(s.from(tr), tr.network(), data)
		o.see("announced", verdict)
		if d != nil {
			o.see("data", d.word(server))
			d.close()
		}
		return o
	}}
}

// timeouts are what says how long an entry lives.
func timeouts() []ruleset {
	policy := `nft -f - <<'RULES'
table inet policies {
	ct timeout brief {
		protocol tcp
		l3proto ip
		policy = { established : 5, close : 2 }
	}
	chain forward {
		type filter hook prerouting priority -150; policy accept;
		meta nfproto ipv4 tcp dport { 80, 8080, 9000 } ct timeout set "brief"
	}
}
RULES
`
	idles := []scenario{
		refused(), idle("young", young, server), idle("young", young, client), idle("relearned", relearned, server), idle("relearned", relearned, client),
	}
	return []ruleset{
		{name: "nft ct timeout of IPv4", before: policy + established, idle: 8 * time.Second, atOnce: idles},
		{
			name: "established lives shortly", before: established, idle: 8 * time.Second, atOnce: idles,
			sysctls: map[string]string{"nf_conntrack_tcp_timeout_established": "5"},
		},
		{
			name: "streams of datagrams live shortly", before: established, sysctls: map[string]string{"nf_conntrack_udp_timeout_stream": "4"},
			atOnce: append(datagrams(), refused(), idle("young datagrams", young, client, udp...)),
		},
		{
			name: "datagrams live 9 s", before: established, idle: 4 * time.Second, sysctls: map[string]string{"nf_conntrack_udp_timeout": "9"},
			atOnce: append(datagrams(), refused(), idle("young datagrams", young, client, udp...), idle("young datagrams", young, server, udp...)),
		},
	}
}

// administration is what an administrator does while connections go on.
func administration() []ruleset {
	removals := []scenario{forgotten("-D", server), forgotten("-D", client)}
	flushes := []scenario{forgotten("-F", server), forgotten("-F", client)}
	strict := map[string]string{"nf_conntrack_tcp_loose": "0"}
	invalid := forward("accept", "ct state invalid drop\nmeta l4proto { tcp, udp } th dport { 81, 9001 } drop")
	known := []scenario{refused()}
	return []ruleset{
		{name: "conntrack -D, known only", before: established, atOnce: append(removals, known...)},
		{name: "conntrack -F, known only", before: established, atOnce: append(flushes, known...)},
		{name: "conntrack -D, open rules", before: invalid, atOnce: append(removals, known...)},
		{name: "conntrack -D, tcp_loose 0", before: invalid, sysctls: strict, atOnce: append(removals, known...)},
		{name: "conntrack -F, tcp_loose 0", before: invalid, sysctls: strict, atOnce: append(flushes, known...)},
		{
			name: "nft later rule", before: established,
			atOnce: []scenario{later("nft insert rule inet admin forward ct state established meta l4proto '{ tcp, udp }' drop")},
		},
		{
			name: "iptables later rule", before: tables(iptablesKnown), chain: noFirewall,
			atOnce: []scenario{later("ipt -I FORWARD -m conntrack --ctstate ESTABLISHED -j DROP")},
		},
	}
}
