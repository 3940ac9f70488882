// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// Somebody who holds the xtables lock makes us wait for seconds, not for ever,
// and only where there is something to change.
func TestPrivilegedXtablesLockIsBounded(t *testing.T) {
	n, err := netlab.NewNode()
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	ref := attachments.ID{Network: "n", ContainerID: "c", IfName: "eth0"}
	addrs := []netip.Prefix{netip.MustParsePrefix("10.1.0.2/16")}
	err = n.Do(func() error {
		f, err := os.OpenFile("/run/xtables.lock", os.O_CREATE|os.O_RDONLY, 0o600)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			return err
		}
		tables, _ := NewNode(Options{}).Named(NameIPTablesLegacy)
		start := time.Now()
		if err := tables.DelMasq(t.Context(), ref, addrs, nil); err != nil || time.Since(start) > time.Second {
			t.Errorf("DEL of nothing: %v after %v", err, time.Since(start))
		}
		err = tables.AddMasq(t.Context(), ref, addrs)
		if took := time.Since(start); !errors.Is(err, ErrBusy) || took < 4*time.Second || took > 15*time.Second {
			t.Errorf("ADD: %v after %v, want %v after 5 s", err, took, ErrBusy)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// SCTP and 20 ports at once are rules that every tool takes, and that are found
// again; a repeated ADD replaces them.
func TestPrivilegedRulesAreTaken(t *testing.T) {
	p := Ports{Ref: attachments.ID{Network: "n", ContainerID: "c", IfName: "eth0"}, SNAT: true, MarkBit: 5}
	for i := range uint16(20) {
		p.Mappings = append(p.Mappings, mapping("0.0.0.0", unix.IPPROTO_TCP, 1000+i, "10.1.0.2", 80), mapping("::", unix.IPPROTO_UDP, 1000+i, "fd00::2", 80))
	}
	p.Mappings = append(p.Mappings, mapping("192.0.2.1", unix.IPPROTO_SCTP, 9, "10.1.0.2", 10), mapping("2001:db8::1", unix.IPPROTO_SCTP, 9, "fd00::2", 10))
	for _, name := range []string{NameIPTablesNFT, NameIPTablesLegacy, NameNFTables} {
		t.Run(name, func(t *testing.T) {
			n, err := netlab.NewNode()
			if err != nil {
				t.Fatal(err)
			}
			defer n.Close()
			if err := n.Do(func() error {
				tables, _ := NewNode(Options{}).Named(name)
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
				if err := tables.CheckPorts(t.Context(), p); !errors.Is(err, ErrDiffers) {
					t.Errorf("CHECK of what is not there: %v", err)
				}
				// Another attachment of the same container, in another network.
				other := Ports{Ref: attachments.ID{Network: "m", ContainerID: "c", IfName: "eth1"}, Mappings: []Mapping{mapping("0.0.0.0", unix.IPPROTO_TCP, 2000, "10.2.0.2", 80)}}
				if err := errors.Join(
					tables.AddPorts(t.Context(), other),
					tables.DelPorts(t.Context(), Held{Ref: p.Ref, Mappings: fewer.Mappings}),
					tables.CheckPorts(t.Context(), other),
					tables.DelPorts(t.Context(), Held{Ref: p.Ref, Spare: []netip.Addr{netip.MustParseAddr("10.2.0.2")}}),
					tables.CheckPorts(t.Context(), other),
				); err != nil {
					t.Errorf("another network's ports: %v", err)
				}
				return tables.DelPorts(t.Context(), Held{Ref: other.Ref})
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

// A condition may be about the destination, also of a port of one address: iptables
// takes one match of it per rule.
func TestPrivilegedConditionOnDestination(t *testing.T) {
	for _, name := range []string{NameIPTablesNFT, NameIPTablesLegacy} {
		for _, condition := range [][]string{{"-d", "192.0.2.0/24"}, {"!", "--destination", "192.0.2.9"}} {
			t.Run(name+" "+strings.Join(condition, " "), func(t *testing.T) {
				n, err := netlab.NewNode()
				if err != nil {
					t.Fatal(err)
				}
				defer n.Close()
				p := Ports{
					Ref: attachments.ID{Network: "n", ContainerID: "c", IfName: "eth0"}, ConditionsV4: condition,
					Mappings: []Mapping{mapping("192.0.2.1", unix.IPPROTO_TCP, 80, "10.1.0.2", 80), mapping("0.0.0.0", unix.IPPROTO_TCP, 81, "10.1.0.2", 81)},
				}
				if err := n.Do(func() error {
					tables, _ := NewNode(Options{}).Named(name)
					return errors.Join(tables.AddPorts(t.Context(), p), tables.CheckPorts(t.Context(), p))
				}); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// What nftables admits passes the FORWARD chain of either iptables, by one rule
// behind the administrator's chain however many pods there are; CHECK misses it.
func TestPrivilegedAdmittedPassForward(t *testing.T) {
	for _, variant := range []string{VariantNFT, VariantLegacy} {
		t.Run(variant, func(t *testing.T) {
			n, err := netlab.NewNode()
			if err != nil {
				t.Fatal(err)
			}
			defer n.Close()
			err = n.Do(func() error {
				sh := func(line string) string {
					t.Helper()
					out, err := netlab.Run("sh", "-ec", line)
					if err != nil {
						t.Fatal(err)
					}
					return out
				}
				tables, _ := NewNode(Options{AdmitMark: 0x1000}).Named(NameNFTables)
				f := Firewall{Ref: attachments.ID{Network: "n", ContainerID: "c", IfName: "eth0"}, AdminChain: "MINE", Addrs: []netip.Prefix{netip.MustParsePrefix("10.1.0.2/16"), netip.MustParsePrefix("fd00::2/64")}}
				if err := tables.AddFirewall(t.Context(), f); err != nil {
					return err
				}
				if out := sh("iptables-" + variant + "-save; ip6tables-" + variant + "-save"); strings.Contains(out, "CNI-FORWARD") {
					t.Errorf("made where nobody uses it:\n%s", out)
				}
				for _, ip := range []string{"iptables-", "ip6tables-"} {
					sh(ip + variant + " -P FORWARD DROP")
					sh(ip + variant + " -A FORWARD -j REJECT")
				}
				if err := tables.CheckFirewall(t.Context(), f); !errors.Is(err, ErrDiffers) {
					t.Errorf("CHECK where FORWARD drops: %v", err)
				}
				for range 2 {
					if err := tables.AddFirewall(t.Context(), f); err != nil {
						return err
					}
				}
				for _, ip := range []string{"iptables-", "ip6tables-"} {
					got := sh(ip + variant + "-save -t filter | grep ^-A")
					want := "-A FORWARD -m comment --comment \"CNI firewall plugin rules\" -j CNI-FORWARD\n" +
						"-A FORWARD -j REJECT --reject-with " + map[bool]string{false: "icmp-port-unreachable", true: "icmp6-port-unreachable"}[ip == "ip6tables-"] + "\n" +
						"-A CNI-FORWARD -m comment --comment \"CNI firewall plugin admin overrides\" -j MINE\n" +
						"-A CNI-FORWARD -m mark --mark 0x1000/0x1000 -m comment --comment \"sluice: what the firewall plugin admits\" -j ACCEPT\n"
					if got != want {
						t.Errorf("%s%s has\n%swant\n%s", ip, variant, got, want)
					}
				}
				return tables.CheckFirewall(t.Context(), f)
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}
