// SPDX-License-Identifier: Apache-2.0

package stateful

// tools are rules as other programs write them, in their own order and with their own names.
func tools() []ruleset {
	return []ruleset{
		{name: "ufw", before: tables(ufw), chain: noFirewall, atOnce: standing()},
		{name: "ufw, firewall plugin", before: tables(ufw), atOnce: core()},
		{name: "firewalld", before: nft(firewalld), atOnce: standing()},
		{name: "Docker", before: tables(docker), atOnce: standing()},
		{name: "Docker, by the original port", before: tables(dockerByPort), atOnce: core(), paths: hostPortOnly, slow: true},
		{name: "ufw-docker", before: tables(ufwDocker), chain: noFirewall, atOnce: core()},
		{name: "kube-proxy iptables", before: tables(kubeIPTables), chain: noFirewall, atOnce: standing()},
		{name: "kube-proxy nftables", before: nft(kubeNFTables), atOnce: standing()},
		{name: "libvirt", before: tables(libvirt), chain: noFirewall, atOnce: core(), paths: []string{masqueraded}},
		{name: "CSF", before: tables(csf), chain: noFirewall, atOnce: core()},
		{name: "OpenWrt", before: nft(openWrt), atOnce: core()},
		{name: "Shorewall", before: tables(shorewall), chain: noFirewall, atOnce: core()},
		{name: "Calico", before: tables(calico), chain: noFirewall, atOnce: core()},
	}
}

const ufw = `*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:ufw-before-input - [0:0]
:ufw-before-forward - [0:0]
:ufw-user-forward - [0:0]
:ufw-logging-deny - [0:0]
:ufw-reject-forward - [0:0]
-A INPUT -j ufw-before-input
-A FORWARD -j ufw-before-forward
-A FORWARD -j ufw-reject-forward
-A ufw-before-input -i lo -j ACCEPT
-A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-input -m conntrack --ctstate INVALID -j ufw-logging-deny
-A ufw-before-input -m conntrack --ctstate INVALID -j DROP
-A ufw-before-input -p icmp -j ACCEPT
-A ufw-before-input -p ipv6-icmp -j ACCEPT
-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-forward -p icmp -j ACCEPT
-A ufw-before-forward -j ufw-user-forward
-A ufw-user-forward -p tcp -m multiport --dports 80,9000 --syn -j ACCEPT
-A ufw-user-forward -p udp -m multiport --dports 80,9000 -j ACCEPT
COMMIT
`

const ufwDocker = `*filter
:FORWARD DROP [0:0]
:DOCKER-USER - [0:0]
:ufw-docker-logging-deny - [0:0]
:ufw-user-forward - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i cni0 -p tcp --syn --dport 9000 -j ACCEPT
-A FORWARD -i cni0 -p udp --dport 9000 -j ACCEPT
-A FORWARD -o cni0 -m multiport -p tcp --dports 80,81 --syn -j ACCEPT
-A FORWARD -o cni0 -m multiport -p udp --dports 80,81 -j ACCEPT
-A DOCKER-USER -j ufw-user-forward
-A DOCKER-USER -i cni0 -j RETURN
-A DOCKER-USER -p tcp --tcp-flags FIN,SYN,RST,ACK SYN -o cni0 -m conntrack --ctstate NEW -j ufw-docker-logging-deny
-A DOCKER-USER -p udp -o cni0 -m conntrack --ctstate NEW -j ufw-docker-logging-deny
-A DOCKER-USER -j RETURN
-A ufw-docker-logging-deny -j DROP
-A ufw-user-forward -p tcp -m tcp --dport 80 -j ACCEPT
-A ufw-user-forward -p udp -m udp --dport 80 -j ACCEPT
COMMIT
`

const docker = `*filter
:FORWARD DROP [0:0]
:DOCKER - [0:0]
:DOCKER-BRIDGE - [0:0]
:DOCKER-CT - [0:0]
:DOCKER-FORWARD - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
:DOCKER-ISOLATION-STAGE-2 - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-FORWARD
-A DOCKER ! -i docker0 -o docker0 -j DROP
-A DOCKER-BRIDGE -o docker0 -j DOCKER
-A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-FORWARD -j DOCKER-CT
-A DOCKER-FORWARD -j DOCKER-ISOLATION-STAGE-1
-A DOCKER-FORWARD -j DOCKER-BRIDGE
-A DOCKER-FORWARD -i docker0 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
-A DOCKER-USER -i eth0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-USER -i eth0 -p tcp --dport 80 -m conntrack --ctstate NEW --syn -j ACCEPT
-A DOCKER-USER -i eth0 -p udp --dport 80 -m conntrack --ctstate NEW -j ACCEPT
-A DOCKER-USER -i eth0 -j DROP
COMMIT
`

const dockerByPort = `*filter
:FORWARD DROP [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A DOCKER-USER -i eth0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-USER -i eth0 -p tcp -m conntrack --ctorigdstport 8080 --ctdir ORIGINAL -j ACCEPT
-A DOCKER-USER -i eth0 -p udp -m conntrack --ctorigdstport 8080 --ctdir ORIGINAL -j ACCEPT
-A DOCKER-USER -i eth0 -j DROP
COMMIT
`

const firewalld = `table inet firewalld {
	chain filter_PREROUTING {
		type filter hook prerouting priority filter + 10; policy accept;
		icmpv6 type { nd-router-advert, nd-neighbor-solicit } accept
	}
	chain filter_INPUT {
		type filter hook input priority filter + 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
		ct state invalid drop
		meta l4proto { icmp, ipv6-icmp } accept
		reject with icmpx admin-prohibited
	}
	chain filter_FORWARD {
		type filter hook forward priority filter + 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
		ct state invalid drop
		jump filter_FORWARD_POLICIES
		reject with icmpx admin-prohibited
	}
	chain filter_FORWARD_POLICIES {
		iifname "eth0" oifname "eth0" jump filter_FWD_public
		iifname "eth0" oifname "cni0" jump filter_FWD_public
		iifname "cni0" jump filter_FWD_trusted
	}
	chain filter_FWD_public {
		meta l4proto { icmp, ipv6-icmp } accept
		oifname "eth0" accept
		tcp dport 80 ct state { new, untracked } tcp flags & (syn|ack) == syn accept
		udp dport 80 ct state { new, untracked } accept
		reject with icmpx admin-prohibited
	}
	chain filter_FWD_trusted {
		meta l4proto ipv6-icmp accept
		tcp dport 9000 tcp flags & (syn|ack) == syn accept
		udp dport 9000 accept
	}
}
`

const kubeIPTables = `*filter
:FORWARD DROP [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
` + iptablesSYN + `COMMIT
`

const kubeNFTables = `table inet kube-proxy {
	chain filter-forward {
		type filter hook forward priority filter; policy accept;
		ct state new jump cluster-ips-check
	}
	chain filter-forward-invalid {
		type filter hook forward priority -101; policy accept;
		ct state invalid drop
	}
	chain cluster-ips-check {
		tcp dport { 81, 9001 } reject
		udp dport { 81, 9001 } reject
	}
	chain nat-postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		meta mark & 0x4000 == 0 return
		meta mark set mark ^ 0x4000
		masquerade fully-random
	}
}
table inet admin {
	chain forward {
		type filter hook forward priority 10; policy drop;
		meta l4proto ipv6-icmp accept
		ct state established,related accept
		ct state new tcp flags & (syn|ack) == syn accept
		meta l4proto udp ct state new accept
	}
}
`

const libvirt = `*filter
:LIBVIRT_FWI - [0:0]
:LIBVIRT_FWO - [0:0]
-A FORWARD -j LIBVIRT_FWI
-A FORWARD -j LIBVIRT_FWO
-A LIBVIRT_FWI -o cni0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A LIBVIRT_FWI -o cni0 -j REJECT
-A LIBVIRT_FWO -i cni0 -p tcp --dport 9001 -j REJECT
-A LIBVIRT_FWO -i cni0 -p udp --dport 9001 -j REJECT
-A LIBVIRT_FWO -i cni0 -j ACCEPT
COMMIT
`

const csf = `*filter
:FORWARD DROP [0:0]
:INVALID - [0:0]
:INVDROP - [0:0]
-A FORWARD -p tcp -j INVALID
-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-A FORWARD -p tcp -m conntrack --ctstate NEW -m multiport --dports 80,9000 -j ACCEPT
-A FORWARD -p udp -m conntrack --ctstate NEW -m multiport --dports 80,9000 -j ACCEPT
-A INVALID -m conntrack --ctstate INVALID -j INVDROP
-A INVALID -p tcp --tcp-flags ALL NONE -j INVDROP
-A INVALID -p tcp --tcp-flags ALL ALL -j INVDROP
-A INVALID -p tcp --tcp-flags SYN,FIN SYN,FIN -j INVDROP
-A INVALID -p tcp --tcp-flags SYN,RST SYN,RST -j INVDROP
-A INVALID -p tcp --tcp-flags FIN,RST FIN,RST -j INVDROP
-A INVALID -p tcp --tcp-flags ACK,FIN FIN -j INVDROP
-A INVALID -p tcp ! --syn -m conntrack --ctstate NEW -j INVDROP
-A INVDROP -j DROP
COMMIT
`

const openWrt = `table inet fw4 {
	chain forward {
		type filter hook forward priority filter; policy drop;
		ct state vmap { established : accept, related : accept }
		iifname "eth0" jump forward_wan
		iifname "cni0" jump forward_lan
		jump handle_reject
	}
	chain forward_wan {
		meta l4proto ipv6-icmp accept
		tcp dport 80 tcp flags & (syn|ack) == syn accept
		udp dport 80 accept
	}
	chain forward_lan {
		meta l4proto ipv6-icmp accept
		tcp dport { 80, 9000 } tcp flags & (syn|ack) == syn accept
		udp dport { 80, 9000 } accept
	}
	chain handle_reject {
		meta l4proto tcp reject with tcp reset
		reject with icmpx port-unreachable
	}
	chain mangle_forward {
		type filter hook forward priority mangle; policy accept;
		ct state invalid drop
		iifname "eth0" tcp flags syn tcp option maxseg size set rt mtu
		oifname "eth0" tcp flags syn tcp option maxseg size set rt mtu
	}
}
`

const shorewall = `*filter
:FORWARD DROP [0:0]
:dynamic - [0:0]
:net-loc - [0:0]
:loc-net - [0:0]
:tcpflags - [0:0]
-A FORWARD -i eth0 -o cni0 -j net-loc
-A FORWARD -i cni0 -o eth0 -j loc-net
-A net-loc -m conntrack --ctstate NEW,INVALID,UNTRACKED -j dynamic
-A net-loc -p tcp -j tcpflags
-A net-loc -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A net-loc -p tcp --dport 80 --syn -j ACCEPT
-A net-loc -p udp --dport 80 -j ACCEPT
-A loc-net -m conntrack --ctstate NEW,INVALID,UNTRACKED -j dynamic
-A loc-net -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A loc-net -p tcp --dport 9000 --syn -j ACCEPT
-A loc-net -p udp --dport 9000 -j ACCEPT
-A tcpflags -p tcp --tcp-flags SYN,FIN SYN,FIN -j DROP
COMMIT
`

const calico = `*filter
:FORWARD DROP [0:0]
:cali-FORWARD - [0:0]
:cali-from-wl - [0:0]
:cali-to-wl - [0:0]
-A FORWARD -j cali-FORWARD
-A cali-FORWARD -j MARK --set-xmark 0x0/0xe0000
-A cali-FORWARD -i cni0 -j cali-from-wl
-A cali-FORWARD -o cni0 -j cali-to-wl
-A cali-FORWARD -m mark --mark 0x10000/0x10000 -j ACCEPT
-A cali-from-wl -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A cali-from-wl -m conntrack --ctstate INVALID -j DROP
-A cali-from-wl -p tcp --dport 9000 --syn -j MARK --set-xmark 0x10000/0x10000
-A cali-from-wl -p udp --dport 9000 -j MARK --set-xmark 0x10000/0x10000
-A cali-to-wl -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A cali-to-wl -m conntrack --ctstate INVALID -j DROP
-A cali-to-wl -p tcp --dport 80 --syn -j MARK --set-xmark 0x10000/0x10000
-A cali-to-wl -p udp --dport 80 -j MARK --set-xmark 0x10000/0x10000
COMMIT
`
