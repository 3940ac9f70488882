// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// What the doctor says to do is a command that does it: after it the finding is
// gone.
func TestPrivilegedAdvice(t *testing.T) {
	set := mustBuild(t)
	l := netlab.NewT(t, netlab.Options{
		ForwardIPv4: true, ForwardIPv6: true, Uplinks: []netlab.Uplink{netlab.DefaultUplink(0), netlab.DefaultUplink(1)},
	})
	rt := runtimeOf(t, l.Node, set.Dir, chain(t, "net0", "cni0", "10.1.0.0/16", "fd00:10:1::/64", "", map[string]any{"type": "firewall"}))
	addPod(t, l.Node, rt, "a", 8080)
	wantHealthy(t, l.Node, "to begin with")
	tests := []struct {
		name, do, check, text, level string
		undo                         string // what is to be done where the advice is no command
	}{
		{name: "FORWARD, nft, IPv4", do: "iptables-nft -P FORWARD DROP", check: "forward-policy", text: "iptables-nft, IPv4", level: "problem"},
		{name: "FORWARD, nft, IPv6", do: "ip6tables-nft -P FORWARD DROP", check: "forward-policy", text: "iptables-nft, IPv6", level: "problem"},
		{name: "FORWARD, legacy, IPv4", do: "iptables-legacy -P FORWARD DROP", check: "forward-policy", text: "iptables-legacy, IPv4", level: "problem",
			undo: "iptables-legacy -P FORWARD ACCEPT"},
		{name: "FORWARD, nftables", do: "nft add table inet fw; nft 'add chain inet fw guard { type filter hook forward priority 0; policy drop; }'",
			check: "forward-policy", text: "nftables table inet fw", level: "problem"},
		{name: "IPv4 forwarding", do: "echo 0 >/proc/sys/net/ipv4/ip_forward", check: "forwarding", text: "net.ipv4.ip_forward is 0", level: "problem", undo: "echo 1 >/proc/sys/net/ipv4/ip_forward"},
		{name: "IPv6 forwarding", do: "echo 0 >/proc/sys/net/ipv6/conf/all/forwarding", check: "forwarding", text: "net.ipv6.conf.all.forwarding is 0", level: "problem"},
		{name: "reverse path", do: "echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter; echo 1 >/proc/sys/net/ipv4/conf/eth1/rp_filter", check: "rp-filter", text: "strict on eth1", level: "warning",
			undo: "echo 2 >/proc/sys/net/ipv4/conf/all/rp_filter"},
		{name: "a filter before ours", do: "dev=$(ip -o link show type veth | grep -o 'veth[0-9a-z]*' | head -1); tc filter add dev $dev ingress prio 5 protocol all u32 match u32 0 0 classid 1:1",
			check: "other-programs", text: "u32 filter of somebody else by clsact runs before ours", level: "warning",
			undo: "dev=$(ip -o link show type veth | grep -o 'veth[0-9a-z]*' | head -1); tc filter del dev $dev ingress prio 5"},
		{name: "a program is taken away", do: "dev=$(ip -o link show type veth | grep -o 'veth[0-9a-z]*' | head -1); tc filter del dev $dev egress", check: "programs", text: "has no program sl_to_pod at its egress", level: "problem", undo: "none"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if strings.Contains(tt.do, "legacy") {
				t.Cleanup(func() { shell(t, l.Node, "iptables-legacy -P FORWARD ACCEPT") })
			}
			shell(t, l.Node, tt.do)
			found := func() (findingView, bool) {
				for _, f := range findings(t, l.Node)[tt.level] {
					if f.Check == tt.check && strings.Contains(f.Text, tt.text) {
						return f, true
					}
				}
				return findingView{}, false
			}
			f, ok := found()
			if !ok {
				t.Fatalf("not found: %+v", findings(t, l.Node))
			}
			t.Logf("%s -> %s", f.Text, f.Do)
			advice, _, _ := strings.Cut(f.Do, ", ")
			switch tt.undo {
			case "none":
				return
			case "":
				shell(t, l.Node, strings.ReplaceAll(advice, "sysctl -w net.ipv6.conf.all.forwarding=1", "echo 1 >/proc/sys/net/ipv6/conf/all/forwarding"))
			default:
				shell(t, l.Node, tt.undo)
			}
			if f, ok := found(); ok {
				t.Errorf("after the advice: %+v", f)
			}
		})
	}
	if by := findings(t, l.Node); !slices.ContainsFunc(by["ok"], func(f findingView) bool { return f.Check == "forward-policy" }) {
		t.Errorf("the policies that accept our mark are not seen: %+v", by["ok"])
	}
}
