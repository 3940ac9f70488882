// SPDX-License-Identifier: Apache-2.0

package choice

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/netfilter/internal/tooltest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// SCTP and 20 ports at once are rules that every tool takes, and that are found
// again; a repeated ADD replaces them.
func TestPrivilegedRulesAreTaken(t *testing.T) {
	p := netfilter.Ports{Ref: attachments.ID{Network: "n", ContainerID: "c", IfName: "eth0"}, SNAT: true, MarkBit: 5}
	for i := range uint16(20) {
		p.Mappings = append(p.Mappings, tooltest.Mapping("0.0.0.0", unix.IPPROTO_TCP, 1000+i, "10.1.0.2", 80), tooltest.Mapping("::", unix.IPPROTO_UDP, 1000+i, "fd00::2", 80))
	}
	p.Mappings = append(p.Mappings, tooltest.Mapping("192.0.2.1", unix.IPPROTO_SCTP, 9, "10.1.0.2", 10), tooltest.Mapping("2001:db8::1", unix.IPPROTO_SCTP, 9, "fd00::2", 10))
	for _, name := range []string{netfilter.NameIPTablesNFT, netfilter.NameIPTablesLegacy, netfilter.NameNFTables} {
		t.Run(name, func(t *testing.T) {
			n, err := netlab.NewNode()
			if err != nil {
				t.Fatal(err)
			}
			defer n.Close()
			if err := n.Do(func() error {
				tables, _ := New(Options{}).Named(name)
				for range 2 {
					if err := errors.Join(tables.AddPorts(t.Context(), p), tables.CheckPorts(t.Context(), p)); err != nil {
						return err
					}
				}
				fewer := p
				fewer.Mappings, fewer.MasqAll = p.Mappings[:1], true
				if err := errors.Join(tables.AddPorts(t.Context(), fewer), tables.CheckPorts(t.Context(), fewer)); err != nil {
					return err
				}
				if err := tables.CheckPorts(t.Context(), p); !errors.Is(err, netfilter.ErrDiffers) {
					t.Errorf("CHECK of what is not there: %v", err)
				}
				// Another attachment of the same container, in another network.
				other := netfilter.Ports{Ref: attachments.ID{Network: "m", ContainerID: "c", IfName: "eth1"}, Mappings: []netfilter.Mapping{tooltest.Mapping("0.0.0.0", unix.IPPROTO_TCP, 2000, "10.2.0.2", 80)}}
				if err := errors.Join(
					tables.AddPorts(t.Context(), other),
					tables.DelPorts(t.Context(), netfilter.Held{Ref: p.Ref, Mappings: fewer.Mappings}),
					tables.CheckPorts(t.Context(), other),
					tables.DelPorts(t.Context(), netfilter.Held{Ref: p.Ref, Spare: []netfilter.Held{{Ref: other.Ref, Mappings: other.Mappings}}}),
					tables.CheckPorts(t.Context(), other),
				); err != nil {
					t.Errorf("another network's ports: %v", err)
				}
				return tables.DelPorts(t.Context(), netfilter.Held{Ref: other.Ref})
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

// The rules of Admit accept in every chain of iptables that drops, come once, and
// follow another mark. A chain of nftables gets none.
func TestPrivilegedAdmit(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			l := netlab.NewT(t)
			if err := l.Node.Do(func() error {
				shell := func(do string) string {
					out, err := netlab.Run("sh", "-ec", do)
					if err != nil {
						t.Fatal(err)
					}
					return out
				}
				save := "iptables-" + variant + "-save | grep -v '^[#:]'; ip6tables-" + variant + "-save | grep -v '^[#:]'"
				shell("iptables-" + variant + " -P FORWARD DROP; ip6tables-" + variant + " -P FORWARD DROP; nft 'add table inet mine; add chain inet mine gate { type filter hook forward priority 0; policy drop; }'")
				run := t.TempDir()
				admit := func(from string, mark uint32) []string {
					shell("rm -f " + run + "/forward-*:-*.json " + run + "/forward-advice*")
					return New(Options{RunDir: run, AdmitMark: mark}).Admit(t.Context(), from)
				}
				if said := admit("cni0", 0); said != nil || strings.Contains(shell(save+"; nft list ruleset"), "sluice") {
					t.Errorf("without a mark: %q, %s", said, shell(save))
				}
				if said := admit("cni0", 0x1000); len(said) != 1 || !strings.Contains(said[0], "nft insert rule inet mine gate meta mark") || strings.Contains(said[0], "established") {
					t.Errorf("said %q, want the rule of the mark in nftables", said)
				}
				first := shell(save)
				if n := strings.Count(first, "sluice: "); n != 10 || strings.Count(first, "-i cni0 ") != 2 || strings.Count(first, "-i cni0.+ ") != 2 {
					t.Errorf("%d rules, want 5 in each family:\n%s", n, first)
				}
				admit("veth+", 0x1000)
				admit("a-name.with-15c", 0x1000)
				second := shell(save)
				if n := strings.Count(second, "sluice: "); n != 14 || strings.Count(second, "-i veth+ ") != 2 || strings.Count(second, "-i a-name.with-15c ") != 2 {
					t.Errorf("%d rules, want 7 in each family:\n%s", n, second)
				}
				// STATUS knows the devices that there were.
				shell("iptables-" + variant + " -F FORWARD; ip6tables-" + variant + " -t mangle -F FORWARD; nft delete table inet sluice_answers")
				admit("", 0x1000)
				if again := sorted(shell(save)); again != sorted(second) {
					t.Errorf("after a flush:\n%s\nbefore:\n%s", again, sorted(second))
				}
				admit("", 0x20)
				if now := sorted(shell(save)); now != sorted(strings.ReplaceAll(second, "0x1000/0x1000", "0x20/0x20")) {
					t.Errorf("with another mark:\n%s\nbefore:\n%s", now, second)
				}
				// A rule of the administrator's is enough.
				shell("iptables-" + variant + " -F FORWARD; iptables-" + variant + " -A FORWARD -m mark --mark 0x20/0x20 -j ACCEPT")
				admit("", 0x20)
				if out := shell("iptables-" + variant + " -S FORWARD"); strings.Contains(out, "sluice") {
					t.Errorf("although the administrator accepts the mark: %s", out)
				}
				if out := shell("nft list table inet mine"); strings.Contains(out, "mark") {
					t.Errorf("a third party's table: %s", out)
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

func sorted(lines string) string {
	all := strings.Split(lines, "\n")
	slices.Sort(all)
	return strings.Join(all, "\n")
}
