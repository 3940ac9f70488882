// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/netfilter/internal/tool"
	"github.com/sluice-cni/sluice/pkg/netfilter/iptables"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// What nftables admits passes the FORWARD chain of either iptables, by one rule
// behind the administrator's chain however many pods there are; CHECK misses it.
func TestPrivilegedAdmittedPassForward(t *testing.T) {
	for _, variant := range []string{iptables.VariantNFT, iptables.VariantLegacy} {
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
				tables := New(tool.NewEnv("", 0x1000, nil))
				f := netfilter.Firewall{Ref: attachments.ID{Network: "n", ContainerID: "c", IfName: "eth0"}, AdminChain: "MINE", Addrs: []netip.Prefix{netip.MustParsePrefix("10.1.0.2/16"), netip.MustParsePrefix("fd00::2/64")}}
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
				if err := tables.CheckFirewall(t.Context(), f); !errors.Is(err, netfilter.ErrDiffers) {
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
