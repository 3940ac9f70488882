// SPDX-License-Identifier: Apache-2.0

package networkpolicy_test

import (
	"net/netip"
	"slices"
	"testing"

	. "github.com/sluice-cni/sluice/pkg/networkpolicy"
)

// Each test is about one way in which engines of NetworkPolicy have gone wrong; docs/dev/design/networkpolicy.md lists them.

func TestTerminalPodIsNoPeer(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	l.UpsertPod(pod("web", "shop/web", 1, "10.0.0.2"))
	l.UpsertPolicy(ingress("p", "db", rule(from(app("shop", "web")))))
	l.admits("admit db from 10.0.0.2 tcp/80")
	done := pod("web", "shop/web", 1, "10.0.0.2")
	done.Terminal = true
	l.UpsertPod(done)
	l.admits("deny db from 10.0.0.2 tcp/80")
	l.UpsertPod(pod("other", "shop/other", 2, "10.0.0.2"))
	l.UpsertPod(done)
	l.admits("deny db from 10.0.0.2 tcp/80")
}

func TestLateDeleteRemovesNothing(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	l.UpsertPod(pod("old", "shop/other", 1, "10.0.0.2"))
	l.UpsertPolicy(ingress("p", "db", rule(from(app("shop", "web")))))
	l.UpsertPod(pod("new", "shop/web", 2, "10.0.0.2"))
	l.admits("admit db from 10.0.0.2 tcp/80")
	l.DeletePod("old")
	l.admits("admit db from 10.0.0.2 tcp/80")
	l.tables.Apply(DeletePeer{Addr: netip.AddrFrom16(netip.MustParseAddr("10.0.0.2").As16()), Owner: 7}) // of somebody else
	l.admits("admit db from 10.0.0.2 tcp/80")
	l.DeletePod("new")
	l.admits("deny db from 10.0.0.2 tcp/80")
}

func TestNewestPodHasTheAddress(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	l.UpsertPolicy(ingress("p", "db", rule(from(app("shop", "web")))))
	l.UpsertPod(pod("new", "shop/web", 3, "10.0.0.2"))
	l.UpsertPod(pod("old", "shop/other", 2, "10.0.0.2")) // comes later, but is older
	l.admits("admit db from 10.0.0.2 tcp/80")
	l.DeletePod("new")
	l.admits("deny db from 10.0.0.2 tcp/80")
	l.UpsertPod(pod("old", "shop/web", 2, "10.0.0.2"))
	l.admits("admit db from 10.0.0.2 tcp/80")
	// Made in the same second: whoever it is, it is the same one after a restart.
	winners := map[Owner]bool{}
	for _, order := range [][]string{{"a", "b"}, {"b", "a"}} {
		l := newLab(t)
		for _, uid := range order {
			l.UpsertPod(pod(uid, "shop/web", 1, "10.0.0.3"))
		}
		for _, c := range l.commit() {
			if w, ok := c.(WritePeer); ok {
				winners[w.Owner] = true
			}
		}
	}
	if len(winners) != 1 {
		t.Errorf("the address goes to %v", winners)
	}
}

func TestPodWithoutAddress(t *testing.T) {
	l := newLab(t)
	l.UpsertPolicy(ingress("p", "db", rule(from(app("shop", "web")))))
	l.UpsertPod(pod("db", "shop/db", 1, "")) // its verdict is there before its address
	l.UpsertPod(pod("web", "shop/web", 1, ""))
	l.admits("deny db from 10.0.0.2 tcp/80")
	l.UpsertPod(pod("web", "shop/web", 1, "10.0.0.2"))
	l.admits("admit db from 10.0.0.2 tcp/80")
	l.UpsertPod(pod("web", "shop/web", 1, "10.0.0.3 fd00::3"))
	l.admits("deny db from 10.0.0.2 tcp/80", "admit db from 10.0.0.3 tcp/80", "admit db from fd00::3 tcp/80")
}

func TestNewPeerReachesExistingPods(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	l.UpsertPolicy(ingress("p", "db", rule(from(app("shop", "web")))))
	l.commit()
	l.UpsertPod(pod("web", "shop/web", 1, "10.0.0.2"))
	l.admits("admit db from 10.0.0.2 tcp/80")
	l.UpsertPod(pod("replica", "shop/web", 1, "10.0.0.3"))
	if changes := l.commit(); len(changes) > 2 { // its peer, and its own set
		t.Errorf("a replica takes %d writes: %+v", len(changes), changes)
	}
}

func TestExceptIsNoDeny(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	l.UpsertPolicy(ingress("p", "db", rule(block("192.0.2.0/24", "192.0.2.64/26"))))
	l.UpsertPolicy(ingress("q", "db", rule(block("192.0.2.64/28"))))
	l.admits("admit db from 192.0.2.1 tcp/80", "admit db from 192.0.2.65 tcp/80", "deny db from 192.0.2.81 tcp/80")
}

func TestSpecificPrefixHidesNothing(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	l.UpsertPolicy(ingress("p", "db", rule(block("192.0.0.0/16"), tcp(80, 80)), rule(block("192.0.2.0/24"), tcp(443, 443))))
	l.admits("admit db from 192.0.2.1 tcp/80", "admit db from 192.0.2.1 tcp/443", "admit db from 192.0.3.1 tcp/80", "deny db from 192.0.3.1 tcp/443")
}

func TestExceptBesideSameBlock(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	l.UpsertPolicy(ingress("p", "db", rule(block("192.0.2.0/24", "192.0.2.7/32"), tcp(80, 80)), rule(block("192.0.2.0/24"), tcp(443, 443))))
	l.admits("deny db from 192.0.2.7 tcp/80", "admit db from 192.0.2.7 tcp/443", "admit db from 192.0.2.8 tcp/80")
}

func TestCatchAllKeepsExcept(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	l.UpsertPolicy(ingress("p", "db", rule(block("0.0.0.0/0", "192.0.2.0/24"))))
	l.admits("admit db from 198.51.100.1 tcp/80", "deny db from 192.0.2.7 tcp/80", "deny db from 2001:db8::1 tcp/80")
}

func TestHostBitsOfBlocks(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	l.UpsertPolicy(ingress("p", "db", rule(block("192.0.2.77/24", "192.0.2.99/28")), rule(block("192.0.2.1/24", "192.0.2.98/28"), tcp(1, 1))))
	l.admits("admit db from 192.0.2.1 tcp/80", "deny db from 192.0.2.96 tcp/80", "deny db from 192.0.2.97 tcp/1")
}

func TestBlockOfPodAddresses(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	l.UpsertPod(pod("web", "bank/web", 1, "10.0.0.2"))
	l.UpsertPod(pod("far", "bank/web", 1, "10.0.1.2"))
	l.UpsertPolicy(ingress("p", "db", rule(block("10.0.0.0/24"))))
	l.admits("admit db from 10.0.0.2 tcp/80", "deny db from 10.0.1.2 tcp/80")
}

func TestBlockOfNodeAddresses(t *testing.T) {
	l := newLab(t, netip.MustParsePrefix("10.0.0.0/16"))
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	l.SetNodeAddrs(addrs("192.0.2.10 10.0.7.0")) // a tunnel's address is in the pods' network
	l.UpsertPolicy(ingress("p", "db", rule(block("192.0.2.0/24")), rule(block("10.0.7.0/32"))))
	l.UpsertPolicy(Policy{Name: "admin", Tier: Admin, Rules: [2][]Rule{{{Action: Deny, Peers: []Peer{from(app("", "bad"))}}}, nil}})
	l.admits("admit db from 192.0.2.10 tcp/80", "admit db from 10.0.7.0 tcp/80", "deny db from 10.0.7.1 tcp/80")
}

func TestFamilies(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	l.UpsertPolicy(ingress("p", "db", rule(block("::/0"), tcp(80, 80)), rule(block("0.0.0.0/0"), tcp(443, 443)), rule(block("::/64"), tcp(1, 1))))
	l.admits("admit db from 2001:db8::1 tcp/80", "deny db from 192.0.2.1 tcp/80", "deny db from 2001:db8::1 tcp/443", "admit db from 192.0.2.1 tcp/443",
		"admit db from ::7 tcp/1", "deny db from 192.0.2.1 tcp/1")
	l.UpsertPolicy(ingress("p", "db", rule(block("::ffff:192.0.2.0/120"))))
	l.admits("deny db from 192.0.2.1 tcp/80")
}

func TestNamedPortOfDestination(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("web", "shop/web", 1, "10.0.0.1", http(1)))
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.2", http(8080)))
	name := Port{Protocol: TCP, Name: "http"}
	l.UpsertPolicy(egress("p", "web", rule(from(app("shop", "db")), name)))
	l.UpsertPolicy(ingress("q", "db", rule(from(app("shop", "web")), name)))
	l.admits("admit web to 10.0.0.2 tcp/8080", "deny web to 10.0.0.2 tcp/1", "admit db from 10.0.0.1 tcp/8080", "deny db from 10.0.0.1 tcp/1")
}

func TestNamedPortDiffersByPod(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("web", "shop/web", 1, "10.0.0.1"))
	l.UpsertPod(pod("a", "shop/db", 1, "10.0.0.2", http(80)))
	l.UpsertPod(pod("b", "shop/db", 1, "10.0.0.3", http(8080)))
	l.UpsertPod(pod("c", "shop/db", 1, "10.0.0.4"))
	l.UpsertPolicy(egress("p", "web", Rule{Ports: []Port{{Protocol: TCP, Name: "http"}}}))
	l.admits("admit web to 10.0.0.2 tcp/80", "deny web to 10.0.0.2 tcp/8080", "deny web to 10.0.0.3 tcp/80", "admit web to 10.0.0.3 tcp/8080",
		"deny web to 10.0.0.4 tcp/80", "deny web to 192.0.2.1 tcp/80")
	l.UpsertPod(pod("a", "shop/db", 1, "10.0.0.2", http(9000)))
	l.admits("deny web to 10.0.0.2 tcp/80", "admit web to 10.0.0.2 tcp/9000")
}

// The number is known to one rule of the set, and another rule begins to match the pod that gives it.
func TestNamedPortOfEachRule(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("web", "shop/web", 1, "10.0.0.1"))
	l.UpsertPod(pod("db", "bank/db", 1, "10.0.0.2", http(80)))
	trusted := PodSelector{Namespaces: Selector{{Key: "trusted", Operator: Exists}}}
	l.UpsertPolicy(egress("p", "web", rule(from(trusted), Port{Protocol: TCP, Name: "http"}), rule(block("192.0.2.0/24"), Port{Protocol: TCP, Name: "http"})))
	l.admits("deny web to 10.0.0.2 tcp/80")
	l.UpsertNamespace(Namespace{Name: "bank", Labels: map[string]string{"trusted": ""}})
	l.admits("admit web to 10.0.0.2 tcp/80")
	l.UpsertNamespace(Namespace{Name: "bank"})
	l.admits("deny web to 10.0.0.2 tcp/80")
}

func TestNameTwiceInOnePod(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1", http(80), http(8080), NamedPort{Name: "http", Protocol: UDP, Number: 80}))
	l.UpsertPod(pod("web", "shop/web", 1, "10.0.0.2"))
	name := Port{Protocol: TCP, Name: "http"}
	l.UpsertPolicy(ingress("p", "db", Rule{Ports: []Port{name}}))
	l.UpsertPolicy(egress("q", "web", Rule{Ports: []Port{name}}))
	l.admits("admit db from 10.0.0.2 tcp/80", "admit db from 10.0.0.2 tcp/8080", "deny db from 10.0.0.2 udp/80",
		"admit web to 10.0.0.1 tcp/80", "admit web to 10.0.0.1 tcp/8080", "deny web to 10.0.0.1 udp/80")
}

func TestProtocolsAreApart(t *testing.T) {
	for _, proto := range []Protocol{TCP, UDP, SCTP} {
		l := newLab(t)
		l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
		l.UpsertPolicy(ingress("p", "db", Rule{Ports: []Port{{Protocol: proto, First: 80, Last: 80}}}))
		for _, other := range []string{"tcp", "udp", "sctp", "icmp"} {
			verdict := "deny"
			if other == proto.String() {
				verdict = "admit"
			}
			l.admits(verdict + " db from 192.0.2.1 " + other + "/80")
		}
	}
}

func TestPortRangeEnds(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	l.UpsertPolicy(ingress("p", "db", Rule{Ports: []Port{tcp(80, 90), tcp(65530, 65535), tcp(1, 1)}}))
	l.admits("deny db from 192.0.2.1 tcp/79", "admit db from 192.0.2.1 tcp/80", "admit db from 192.0.2.1 tcp/90", "deny db from 192.0.2.1 tcp/91",
		"deny db from 192.0.2.1 tcp/65529", "admit db from 192.0.2.1 tcp/65530", "admit db from 192.0.2.1 tcp/65535", "admit db from 192.0.2.1 tcp/1", "deny db from 192.0.2.1 tcp/2")
}

func TestProtocolWithoutPort(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	l.UpsertPolicy(ingress("p", "db", Rule{Ports: []Port{{Protocol: UDP, Last: 65535}}}))
	l.admits("admit db from 192.0.2.1 udp/1", "admit db from 192.0.2.1 udp/65535", "deny db from 192.0.2.1 tcp/1", "deny db from 192.0.2.1 icmp")
}

func TestTooManyPortsClose(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	l.UpsertPod(pod("web", "shop/web", 1, "10.0.0.2"))
	var r Rule
	for i := range uint16(MaxSegments) {
		r.Ports = append(r.Ports, tcp(10+2*i, 10+2*i))
	}
	l.UpsertPolicy(ingress("p", "db", r))
	l.admits("deny db from 10.0.0.2 tcp/10", "admit web from 10.0.0.2 tcp/10")
	if got := l.Problems(); len(got) != 1 || got[0].UID != "db" {
		t.Errorf("problems %+v", got)
	}
	r.Ports = r.Ports[:MaxSegments-2]
	l.UpsertPolicy(ingress("p", "db", r))
	l.admits("admit db from 10.0.0.2 tcp/10", "deny db from 10.0.0.2 tcp/11")
	if got := l.Problems(); len(got) != 0 {
		t.Errorf("problems %+v", got)
	}
}

func TestUnsupportedCloses(t *testing.T) {
	unknown := Peer{Unsupported: "domainNames"}
	for name, tt := range map[string]struct {
		action Action
		want   string
	}{"Accept matches nothing": {Accept, "deny"}, "Deny matches everything": {Deny, "deny"}, "Pass denies everything": {Pass, "deny"}} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
			l.UpsertPolicy(Policy{Name: "admin", Tier: Admin, Rules: [2][]Rule{{{Action: tt.action, Peers: []Peer{unknown}}}, nil}})
			l.UpsertPolicy(Policy{Name: "base", Tier: Baseline, Rules: [2][]Rule{{{Action: Deny}}, nil}})
			l.admits(tt.want+" db from 192.0.2.1 tcp/80", tt.want+" db from 192.0.2.1 icmp")
		})
	}
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	l.UpsertPolicy(ingress("p", "db", Rule{Peers: []Peer{unknown, block("192.0.2.0/24")}, Ports: []Port{{Unsupported: "QUIC"}, tcp(80, 80)}}))
	l.admits("admit db from 192.0.2.1 tcp/80", "deny db from 192.0.2.1 tcp/81", "deny db from 198.51.100.1 tcp/80")
}

func TestNamespaceLabelsChange(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	l.UpsertPod(pod("web", "bank/web", 1, "10.0.0.2"))
	trusted := PodSelector{Namespaces: Selector{{Key: "trusted", Operator: Exists}}}
	l.UpsertPolicy(ingress("p", "db", rule(from(trusted))))
	l.UpsertPolicy(Policy{Name: "subject", Tier: Admin, Subject: trusted, Rules: [2][]Rule{nil, {{Action: Deny, Ports: []Port{tcp(25, 25)}}}}})
	l.admits("deny db from 10.0.0.2 tcp/80", "admit web to 192.0.2.1 tcp/25")
	l.UpsertNamespace(Namespace{Name: "bank", Labels: map[string]string{"trusted": ""}})
	l.admits("admit db from 10.0.0.2 tcp/80", "deny web to 192.0.2.1 tcp/25")
	l.UpsertNamespace(Namespace{Name: "bank"})
	l.admits("deny db from 10.0.0.2 tcp/80", "admit web to 192.0.2.1 tcp/25")
}

func TestPodNoLongerSelected(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	l.UpsertPolicy(ingress("p", "db"))
	l.admits("deny db from 192.0.2.1 tcp/80")
	l.UpsertPod(pod("db", "shop/web", 1, "10.0.0.1"))
	l.admits("admit db from 192.0.2.1 tcp/80")
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	l.admits("deny db from 192.0.2.1 tcp/80")
	l.DeletePolicy("shop", "p")
	l.admits("admit db from 192.0.2.1 tcp/80")
}

func TestSelectorOfPolicyChanges(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	l.UpsertPod(pod("web", "shop/web", 1, "10.0.0.2"))
	l.UpsertPolicy(ingress("p", "db"))
	l.admits("deny db from 192.0.2.1 tcp/80", "admit web from 192.0.2.1 tcp/80")
	l.UpsertPolicy(ingress("p", "web"))
	l.admits("admit db from 192.0.2.1 tcp/80", "deny web from 192.0.2.1 tcp/80")
}

func TestBothSelectors(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	for i, where := range []string{"shop/web", "bank/web", "bank/other"} {
		l.UpsertPod(pod(where, where, 1, "10.0.1."+string(rune('1'+i))))
	}
	both := PodSelector{Namespaces: Selector{{Key: "name", Operator: In, Values: []string{"bank"}}}, Pods: app("", "web").Pods}
	l.UpsertPolicy(ingress("p", "db", rule(from(both))))
	l.admits("deny db from 10.0.1.1 tcp/80", "admit db from 10.0.1.2 tcp/80", "deny db from 10.0.1.3 tcp/80")
}

func TestHostNetworkPods(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	host := pod("host", "shop/web", 1, "192.0.2.10")
	host.HostNetwork = true
	l.UpsertPod(host)
	l.UpsertPolicy(ingress("p", "", rule(from(app("shop", "web")))))
	l.admits("deny db from 192.0.2.10 tcp/80")
	if got := l.tables.Lookup("host", Ingress, netip.MustParseAddr("10.0.0.1"), TCP, 80); got != Pending {
		t.Errorf("a pod on the node's network has a set: %v", got)
	}
}

func TestICMP(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	l.UpsertPolicy(ingress("p", "db", rule(block("192.0.2.0/24"), tcp(1, 65535)), rule(block("198.51.100.0/24"))))
	l.admits("deny db from 192.0.2.1 icmp", "admit db from 198.51.100.1 icmp", "admit db to 203.0.113.1 icmp")
}

func TestSelf(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1 fd00::1"))
	l.UpsertPod(pod("twin", "shop/db", 1, "10.0.0.2"))
	l.UpsertPolicy(ingress("p", ""))
	l.UpsertPolicy(egress("q", ""))
	l.admits("admit db to 10.0.0.1 tcp/80", "admit db from fd00::1 tcp/80", "deny db to 10.0.0.2 tcp/80")
}

func TestUnknownPeer(t *testing.T) {
	l := newLab(t, netip.MustParsePrefix("10.0.0.0/16"))
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	l.UpsertPolicy(Policy{Name: "admin", Tier: Admin, Rules: [2][]Rule{{{Action: Deny, Peers: []Peer{from(app("", "bad"))}, Ports: []Port{tcp(80, 80)}}}, nil}})
	l.admits("deny db from 10.0.0.9 tcp/80", "admit db from 10.0.0.9 tcp/81", "admit db from 192.0.2.1 tcp/80")
	if d := l.Explain("db", Ingress, netip.MustParseAddr("10.0.0.9"), TCP, 80); d.Reason != PeerUnknown || len(d.Rules) != 1 {
		t.Errorf("explained by %+v", d)
	}
	l.UpsertPod(pod("good", "shop/good", 1, "10.0.0.9"))
	l.admits("admit db from 10.0.0.9 tcp/80")
	l.UpsertPolicy(Policy{Name: "admin", Tier: Admin, Rules: [2][]Rule{{{Action: Pass, Peers: []Peer{from(app("", "bad"))}}, {Action: Accept}}, nil}})
	l.UpsertPolicy(ingress("p", "db"))
	l.admits("admit db from 10.0.0.9 tcp/80", "deny db from 10.0.0.7 tcp/80", "admit db from 192.0.2.1 tcp/80") // 10.0.0.7 may be a bad one
	l.DeletePolicy("shop", "p")
	l.admits("admit db from 10.0.0.7 tcp/80")
	l.UpsertPod(pod("lost", "nowhere/good", 1, "10.0.0.8")) // its namespace is unknown
	l.UpsertPolicy(Policy{Name: "admin", Tier: Admin, Rules: [2][]Rule{{{Action: Deny, Peers: []Peer{from(app("", "bad"))}, Ports: []Port{tcp(80, 80)}}}, nil}})
	l.admits("deny db from 10.0.0.8 tcp/80", "deny lost from 10.0.0.9 tcp/81")
}

func TestTiers(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	anyone := func(a Action, first, last uint16) Rule { return Rule{Action: a, Ports: []Port{tcp(first, last)}} }
	l.UpsertPolicy(Policy{Name: "late", Tier: Admin, Priority: 2, Rules: [2][]Rule{{anyone(Accept, 1, 9)}, nil}})
	l.UpsertPolicy(Policy{Name: "early", Tier: Admin, Priority: 1, Rules: [2][]Rule{{anyone(Deny, 1, 1), anyone(Pass, 2, 4), anyone(Accept, 1, 2)}, nil}})
	l.UpsertPolicy(Policy{Name: "base", Tier: Baseline, Rules: [2][]Rule{{anyone(Accept, 3, 3), anyone(Pass, 4, 4), anyone(Deny, 1, 20)}, nil}})
	l.admits("deny db from 192.0.2.1 tcp/1", "deny db from 192.0.2.1 tcp/2", "admit db from 192.0.2.1 tcp/3", "admit db from 192.0.2.1 tcp/4",
		"admit db from 192.0.2.1 tcp/5", "deny db from 192.0.2.1 tcp/10", "admit db from 192.0.2.1 tcp/21")
	l.UpsertPolicy(ingress("p", "db", Rule{Ports: []Port{tcp(2, 2), tcp(10, 10)}}))
	l.admits("deny db from 192.0.2.1 tcp/1", "admit db from 192.0.2.1 tcp/2", "deny db from 192.0.2.1 tcp/3", "admit db from 192.0.2.1 tcp/5",
		"admit db from 192.0.2.1 tcp/10", "deny db from 192.0.2.1 tcp/21")
}

func TestExplainNamesRules(t *testing.T) {
	l := newLab(t)
	l.UpsertPod(pod("db", "shop/db", 1, "10.0.0.1"))
	l.UpsertPod(pod("web", "shop/web", 1, "10.0.0.2"))
	l.UpsertPolicy(ingress("a", "db", rule(block("192.0.2.0/24")), rule(from(app("shop", "web")))))
	l.UpsertPolicy(ingress("b", "db", rule(from(app("shop", "")))))
	l.UpsertPolicy(Policy{Name: "c", Tier: Baseline, Rules: [2][]Rule{nil, {{Action: Accept, Ports: []Port{tcp(1, 1)}}, {Action: Deny}}}})
	l.commit()
	for _, tt := range []struct {
		dir    Direction
		peer   string
		reason Reason
		rules  []RuleRef
	}{
		{Ingress, "10.0.0.2", ByRule, []RuleRef{{NetworkPolicies, "shop", "a", 1, Accept}, {NetworkPolicies, "shop", "b", 0, Accept}}},
		{Ingress, "198.51.100.1", NoRule, []RuleRef{{NetworkPolicies, "shop", "a", -1, Deny}, {NetworkPolicies, "shop", "b", -1, Deny}}},
		{Egress, "10.0.0.2", ByRule, []RuleRef{{Baseline, "", "c", 1, Deny}}},
		{Ingress, "10.0.0.1", OwnAddress, nil},
	} {
		d := l.Explain("db", tt.dir, netip.MustParseAddr(tt.peer), TCP, 80)
		if d.Reason != tt.reason || !slices.Equal(d.Rules, tt.rules) {
			t.Errorf("%v %s: %+v", tt.dir, tt.peer, d)
		}
	}
}

func TestSetIDsAfterRestart(t *testing.T) {
	sets := func(order []int) map[string]SetID {
		l := newLab(t)
		steps := []func(){
			func() { l.UpsertPod(pod("a", "shop/db", 1, "10.0.0.1")) },
			func() { l.UpsertPod(pod("b", "shop/web", 1, "10.0.0.2")) },
			func() { l.UpsertPolicy(ingress("p", "db", rule(from(app("", "web")), tcp(80, 80), tcp(443, 443)))) },
			func() { l.UpsertPolicy(egress("q", "web", rule(from(app("", "db"))), rule(block("192.0.2.0/24")))) },
			func() { l.UpsertPolicy(egress("r", "web", rule(block("192.0.2.0/24")), rule(from(app("", "db"))))) },
		}
		out := map[string]SetID{}
		for _, i := range order {
			steps[i]()
			for _, c := range l.commit() {
				if p, ok := c.(WritePod); ok {
					out[p.UID] = p.Set
				}
			}
		}
		return out
	}
	first, second := sets([]int{0, 1, 2, 3, 4}), sets([]int{4, 3, 2, 1, 0})
	if first["a"] != second["a"] || first["b"] != second["b"] || first["a"] == first["b"] || first["a"] == OpenSet {
		t.Errorf("sets are %v, and %v after a restart", first, second)
	}
}
