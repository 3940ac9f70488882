// SPDX-License-Identifier: Apache-2.0

package networkpolicy_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	. "github.com/sluice-cni/sluice/pkg/networkpolicy"
)

// lab is an engine whose tables are always up to date, for tests of one thing.
type lab struct {
	tb testing.TB
	*Engine
	tables *Tables
}

func newLab(tb testing.TB, podNetworks ...netip.Prefix) *lab {
	l := &lab{tb, New(Config{Node: "here", PodNetworks: podNetworks}), NewTables()}
	for _, ns := range []string{"shop", "bank"} {
		l.UpsertNamespace(Namespace{Name: ns, Labels: map[string]string{"name": ns}})
	}
	return l
}

// commit applies what changed, and returns it.
func (l *lab) commit() []Change {
	b := l.Commit()
	for _, c := range b.Changes {
		l.tables.Apply(c)
	}
	l.Settled(b)
	return b.Changes
}

// pod is a pod of this node; where is "namespace/app".
func pod(uid, where string, created int, addresses string, ports ...NamedPort) Pod {
	ns, app, _ := strings.Cut(where, "/")
	return Pod{UID: uid, Namespace: ns, Labels: map[string]string{"app": app}, Addrs: addrs(addresses), Ports: ports, Node: "here", Created: time.Unix(int64(created), 0)}
}

func http(number uint16) NamedPort { return NamedPort{Name: "http", Protocol: TCP, Number: number} }

// admits checks verdicts: each row is "admit" or "deny", the pod, the direction, the peer, and a port such as tcp/80 or icmp.
func (l *lab) admits(rows ...string) {
	l.tb.Helper()
	l.commit()
	for _, row := range rows {
		f := strings.Fields(row)
		dir := Ingress
		if f[2] == "to" {
			dir = Egress
		}
		proto, port := parsePort(l.tb, f[4])
		got := l.tables.Lookup(f[1], dir, netip.MustParseAddr(f[3]), proto, port)
		if want := f[0] == "admit"; (got == Admitted) != want {
			l.tb.Errorf("%s: %v", row, got)
		}
		if d := l.Explain(f[1], dir, netip.MustParseAddr(f[3]), proto, port); d.Verdict != got {
			l.tb.Errorf("%s: %v, explained by %+v", row, got, d)
		}
	}
}

func parsePort(tb testing.TB, s string) (Protocol, uint16) {
	name, number, _ := strings.Cut(s, "/")
	port := 0
	for _, c := range number {
		port = 10*port + int(c-'0')
	}
	switch name {
	case "tcp":
		return TCP, uint16(port)
	case "udp":
		return UDP, uint16(port)
	case "sctp":
		return SCTP, uint16(port)
	case "icmp":
		return 1, 0
	}
	tb.Fatalf("protocol %q", s)
	return 0, 0
}

// app selects pods of a namespace by their label; an empty namespace is all of them.
func app(namespace, name string) PodSelector {
	s := PodSelector{Namespace: namespace}
	if name != "" {
		s.Pods = Selector{{Key: "app", Operator: In, Values: []string{name}}}
	}
	return s
}

func from(s PodSelector) Peer { return Peer{Pods: &s} }

func block(cidr string, except ...string) Peer {
	b := &Block{CIDR: netip.MustParsePrefix(cidr)}
	for _, e := range except {
		b.Except = append(b.Except, netip.MustParsePrefix(e))
	}
	return Peer{Block: b}
}

func tcp(first, last uint16) Port { return Port{Protocol: TCP, First: first, Last: last} }

// ingress is a NetworkPolicy for the pods of an app in the namespace shop.
func ingress(name, subject string, rules ...Rule) Policy {
	return Policy{Namespace: "shop", Name: name, Tier: NetworkPolicies, Subject: app("shop", subject), Isolates: [2]bool{true, false}, Rules: [2][]Rule{rules, nil}}
}

func egress(name, subject string, rules ...Rule) Policy {
	return Policy{Namespace: "shop", Name: name, Tier: NetworkPolicies, Subject: app("shop", subject), Isolates: [2]bool{false, true}, Rules: [2][]Rule{nil, rules}}
}

func rule(peer Peer, ports ...Port) Rule { return Rule{Peers: []Peer{peer}, Ports: ports} }
