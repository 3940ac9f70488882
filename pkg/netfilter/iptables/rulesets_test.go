// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/attachments"
)

// The rule sets of the table nat are the chains of attachments alone.
func TestNatSets(t *testing.T) {
	ref := attachments.ID{Network: "n1", ContainerID: "ctr1", IfName: "eth0"}
	save := `*nat
:POSTROUTING ACCEPT [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
:CNI-DN-c189d8b6a7b4d184c9f70 - [0:0]
:CNI-DN-0123456789abcdef01234 - [0:0]
:CNI-DN-mine - [0:0]
:CNI-aaaaaaaaaaaaaaaaaaaaaaaa - [0:0]
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"n1\" id: \"ctr1\"" -m multiport --dports 8080 -j CNI-DN-c189d8b6a7b4d184c9f70
-A CNI-DN-c189d8b6a7b4d184c9f70 -s 10.1.0.0/16 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-c189d8b6a7b4d184c9f70 -s 127.0.0.1/32 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-c189d8b6a7b4d184c9f70 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.1.0.2:80
-A CNI-DN-0123456789abcdef01234 -p tcp -m tcp --dport 81 -j DNAT --to-destination 10.1.0.9:80
-A POSTROUTING -s 10.1.0.7/32 -m comment --comment "name: \"other\" id: \"x\"" -j CNI-aaaaaaaaaaaaaaaaaaaaaaaa
COMMIT
`
	got := natSets(parseTable(save))
	if len(got) != 2 {
		t.Fatalf("%d sets: %+v", len(got), got)
	}
	for i := range got {
		got[i].Seen = got[i].seen
	}
	orphan, named := got[0], got[1]
	if named.Network != "n1" || named.ContainerID != "ctr1" || !named.Of(ref) || named.Of(attachments.ID{Network: "n2", ContainerID: "ctr1"}) || named.ByContainer() ||
		len(named.Addrs) != 1 || named.Addrs[0] != netip.MustParseAddr("10.1.0.2") {
		t.Errorf("%+v", named)
	}
	if orphan.ContainerID != "" || !orphan.Named() || len(orphan.Addrs) != 1 {
		t.Errorf("a chain that nothing leads to: %+v", orphan)
	}
}

// An administrator's rules in a plugin's chains are no rule sets.
func TestFilterSets(t *testing.T) {
	have := parseTable(`*filter
:FORWARD DROP [0:0]
:CNI-FORWARD - [0:0]
:CNI-ISOLATION-STAGE-1 - [0:0]
-A CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN
-A CNI-FORWARD -d 10.1.0.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT
-A CNI-FORWARD -s 10.1.0.3/32 -p tcp -j ACCEPT
-A CNI-FORWARD -s 10.2.0.0/16 -j ACCEPT
-A CNI-ISOLATION-STAGE-1 -i cni0 ! -o cni0 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge)" -j CNI-ISOLATION-STAGE-2
-A CNI-ISOLATION-STAGE-1 -m comment --comment "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)" -j RETURN
COMMIT
`)
	got := filterSets(have)
	if len(got) != 2 || got[0].seen.Hashed() || len(got[0].seen.rules) != 2 || got[1].Device != "cni0" || len(got[1].seen.rules) != 1 {
		t.Errorf("%+v", got)
	}
	if have.policy["FORWARD"] != "DROP" || have.policy["CNI-FORWARD"] != "" {
		t.Errorf("policies: %v", have.policy)
	}
}

// Removing takes away what was seen; what has changed since stays.
func TestRemoveSet(t *testing.T) {
	const save = ":CNI-DN-0123456789abcdef01234 - [0:0]\n-A CNI-DN-0123456789abcdef01234 -p tcp -m tcp --dport 81 -j DNAT --to-destination 10.1.0.9:80\n"
	tr := natSets(parseTable(save))[0].seen
	var s script
	tr.remove(&s, parseTable(save))
	if len(s.lines) != 2 {
		t.Errorf("%q", s.lines)
	}
	s = script{}
	tr.remove(&s, parseTable(strings.Replace(save, "10.1.0.9", "10.1.0.10", 1)))
	if len(s.lines) != 0 {
		t.Errorf("the chain is another's by now: %q", s.lines)
	}
}
