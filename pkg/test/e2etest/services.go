// SPDX-License-Identifier: Apache-2.0

package e2etest

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// VirtualIP is a Service address of a family. No route leads to it.
func VirtualIP(fam Family) netip.Addr {
	if fam.Suffix == "4" {
		return netip.MustParseAddr("10.96.0.10")
	}
	return netip.MustParseAddr("fd00:96::10")
}

// LoadNFT loads rules of nft(8) in a namespace. A failure ends the test.
func LoadNFT(t testing.TB, n interface{ Do(func() error) error }, rules string) {
	t.Helper()
	err := n.Do(func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(rules)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TranslateVIP does what kube-proxy does for a Service: connections of pods and of the
// node to vip:80 go to backend:port.
func TranslateVIP(t testing.TB, n *netlab.Node, fam Family, vip, backend netip.Addr, port uint16) {
	t.Helper()
	ip := map[string]string{"4": "ip", "6": "ip6"}[fam.Suffix]
	var rules strings.Builder
	fmt.Fprintf(&rules, "table %s proxy {\n", ip)
	for _, hook := range []string{"prerouting", "output"} {
		fmt.Fprintf(&rules, "chain %s {\ntype nat hook %s priority -100;\n", hook, hook)
		for _, proto := range []string{"tcp", "udp"} {
			fmt.Fprintf(&rules, "%s daddr %s %s dport 80 dnat to %s\n", ip, vip, proto, At(backend, port))
		}
		rules.WriteString("}\n")
	}
	rules.WriteString("}\n")
	LoadNFT(t, n, rules.String())
}
