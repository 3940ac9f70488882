// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// The traces of the table nat are the chains of attachments and nobody else's.
func TestNatTraces(t *testing.T) {
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
	got := natTraces(parseTable(save))
	if len(got) != 2 {
		t.Fatalf("%d traces: %+v", len(got), got)
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

// An administrator's rules in our chains are no traces.
func TestFilterTraces(t *testing.T) {
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
	got := filterTraces(have)
	if len(got) != 2 || got[0].Named() || len(got[0].rules) != 2 || got[1].Device != "cni0" || len(got[1].rules) != 1 {
		t.Errorf("%+v", got)
	}
	if have.policy["FORWARD"] != "DROP" || have.policy["CNI-FORWARD"] != "" {
		t.Errorf("policies: %v", have.policy)
	}
}

// Removing takes away what was seen; what has changed since stays.
func TestRemoveTrace(t *testing.T) {
	const save = ":CNI-DN-0123456789abcdef01234 - [0:0]\n-A CNI-DN-0123456789abcdef01234 -p tcp -m tcp --dport 81 -j DNAT --to-destination 10.1.0.9:80\n"
	tr := natTraces(parseTable(save))[0]
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

func TestForwards(t *testing.T) {
	const mark = 0x1000
	save := "*filter\n:FORWARD DROP [0:0]\n"
	accepting := save + "-A FORWARD -m mark --mark 0x1000/0x1000 -j ACCEPT\n"
	chains := `{"nftables":[{"chain":{"family":"inet","table":"fw","name":"fwd","hook":"forward","policy":"drop"}},
		{"chain":{"family":"ip","table":"filter","name":"FORWARD","hook":"forward","policy":"drop"}},
		{"chain":{"family":"inet","table":"fw","name":"in","hook":"input","policy":"drop"}}]}`
	f := allTools()
	f.answers = map[string]string{"iptables-nft-save": save, "ip6tables-nft-save": accepting, "iptables-legacy-save": "*filter\n:FORWARD ACCEPT [0:0]\n", "nft": chains}
	n := newTestNode(t, f, fakeKernel{
		chains: map[string]bool{"2 filter FORWARD": true, "10 filter FORWARD": true}, legacy: []string{"filter"},
	})
	got, err := n.Forwards(t.Context(), mark)
	if err != nil {
		t.Fatal(err)
	}
	want := []ForwardChain{
		{Tool: NameIPTablesNFT, V4: true, Chain: "FORWARD"},
		{Tool: NameIPTablesNFT, V6: true, Chain: "FORWARD", Accepts: true},
		{Tool: NameNFTables, V4: true, V6: true, Table: "inet fw", Chain: "fwd"},
	}
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%+v, want %+v", got[i], want[i])
		}
	}
	if got, err := newTestNode(t, &fakeTools{}, fakeKernel{}).Forwards(t.Context(), mark); len(got) != 0 || err != nil {
		t.Errorf("a node without tools: %v, %v", got, err)
	}
}

// Whatever the tables, what a pod has is seen with its names and addresses, and
// removing that leaves another pod's untouched.
func TestPrivilegedTraces(t *testing.T) {
	for _, kind := range (&Node{}).All() {
		t.Run(kind.Name(), func(t *testing.T) {
			l := netlab.NewT(t)
			if err := l.Node.Do(func() error {
				n := NewNode(Options{RunDir: t.TempDir(), AdmitMark: 0x1000})
				tables, _ := n.Named(kind.Name())
				add := func(id, ip, ip6 string) error {
					ref := attachments.ID{Network: "n", ContainerID: id, IfName: "eth0"}
					addrs := []netip.Prefix{netip.MustParsePrefix(ip + "/16"), netip.MustParsePrefix(ip6 + "/64")}
					return errors.Join(
						tables.AddPorts(t.Context(), Ports{Ref: ref, SNAT: true, MarkBit: DefaultMarkBit, Pod: addrs, Mappings: []Mapping{
							mapping("0.0.0.0", unix.IPPROTO_TCP, 1000, ip, 80), mapping("::", unix.IPPROTO_UDP, 1000, ip6, 80),
						}}),
						tables.AddMasq(t.Context(), ref, addrs),
						tables.AddFirewall(t.Context(), Firewall{Ref: ref, Addrs: addrs, Policy: PolicyIsolated, Bridge: "br-" + id}),
						tables.EnableLocalnet(t.Context(), "lo"))
				}
				if err := add("keep", "10.1.0.2", "fd00::2"); err != nil {
					return err
				}
				before, err := l.Node.Snapshot()
				if err != nil {
					return err
				}
				if err := add("drop", "10.1.0.3", "fd00::3"); err != nil {
					return err
				}
				traces, err := n.RuleSets(t.Context())
				if err != nil {
					return err
				}
				dropped := about(traces, "drop", "10.1.0.3", "fd00::3", "br-drop")
				if len(dropped) < 6 || len(traces) < 2*len(dropped) {
					t.Errorf("%d traces of one of two pods, of %d: %+v", len(dropped), len(traces), traces)
				}
				if err := n.Remove(t.Context(), dropped); err != nil {
					return err
				}
				after, err := l.Node.Snapshot()
				if d := netlab.Diff(before, after); d != "" {
					t.Errorf("after the removal (- gone, + left behind):\n%s", d)
				}
				return err
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

// about returns the traces that name the container, one of the addresses or the
// bridge.
func about(traces []RuleSet, id, ip, ip6, bridge string) []RuleSet {
	var out []RuleSet
	for _, tr := range traces {
		mine := tr.ContainerID == id || tr.Device == bridge
		for _, a := range tr.Addrs {
			mine = mine || a == netip.MustParseAddr(ip) || a == netip.MustParseAddr(ip6)
		}
		if mine {
			out = append(out, tr)
		}
	}
	return out
}
