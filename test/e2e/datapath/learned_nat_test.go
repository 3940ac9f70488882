// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// natPath is a connection that netfilter translates, as kube-proxy has it do for a kind of Service.
type natPath struct {
	name string
	from e2etest.Place
	to   netip.Addr // port 80
	addr netip.Addr // of the backend, port 8000
	masq bool       // netfilter masquerades as well
	sees netip.Addr // the client, as the backend sees it
	pods []*e2etest.Pod
}

// natRules are those of a proxy for p: like kube-proxy's, they mark what they masquerade.
func natRules(fam e2etest.Family, p natPath) string {
	ip := map[string]string{"4": "ip", "6": "ip6"}[fam.Suffix]
	var b strings.Builder
	fmt.Fprintf(&b, "table %s proxy {\nchain pre {\ntype nat hook prerouting priority -100;\n", ip)
	for _, proto := range []string{"tcp", "udp"} {
		mark := ""
		if p.masq {
			mark = "meta mark set meta mark or 0x4000 "
		}
		fmt.Fprintf(&b, "%s daddr %s %s dport 80 %sdnat to %s\n", ip, p.to, proto, mark, e2etest.At(p.addr, 8000))
	}
	b.WriteString("}\nchain post {\ntype nat hook postrouting priority 100;\nmeta mark & 0x4000 == 0x4000 masquerade\n}\n}\n")
	return b.String()
}

// natPaths makes pods of each kind of network, and returns the paths of a family between them, the client and the node.
func natPaths(t *testing.T, w *e2etest.World) func(fam e2etest.Family) []natPath {
	t.Helper()
	plain, other, ptp := e2etest.Net1(), e2etest.Network{Name: "net2", Bridge: "cni2", Subnets: []string{"10.3.0.0/16", "fd00:10:3::/64"}},
		e2etest.Network{Name: "net3", Main: "ptp", Subnets: []string{"10.4.0.0/16", "fd00:10:4::/64"}}
	plain.NoMasq, other.NoMasq, ptp.NoMasq = true, true, true
	masked, app := w.AddPod(w.Runtime(e2etest.Net0()), "masked"), w.AddPod(w.Runtime(plain), "app")
	sibling, web := w.AddPod(w.Runtime(plain), "sibling"), w.AddPod(w.Runtime(other), "web")
	left, right := w.AddPod(w.Runtime(ptp), "left"), w.AddPod(w.Runtime(ptp), "right")
	for _, p := range []*e2etest.Pod{sibling, web, right} {
		e2etest.Serve(t, p, p.Name, ":8000")
	}
	e2etest.Serve(t, w.Client(), "client", ":8000")
	return func(fam e2etest.Family) []natPath {
		vip, node, client := e2etest.VirtualIP(fam), fam.Node(w.Client()), fam.Client(w.Client())
		gateway := func(p *e2etest.Pod) netip.Addr {
			return netip.MustParseAddr(e2etest.NthAddr(netip.PrefixFrom(fam.Pod(p), map[string]int{"4": 24, "6": 64}[fam.Suffix]), 1))
		}
		return []natPath{
			{name: "outside, masqueraded by us", from: masked, to: vip, addr: client, sees: node, pods: []*e2etest.Pod{masked}},
			{name: "outside", from: app, to: vip, addr: client, sees: fam.Pod(app), pods: []*e2etest.Pod{app}},
			{name: "outside, masqueraded by netfilter", from: app, to: vip, addr: client, masq: true, sees: node, pods: []*e2etest.Pod{app}},
			{name: "another network", from: app, to: vip, addr: fam.Pod(web), sees: fam.Pod(app), pods: []*e2etest.Pod{app, web}},
			{name: "another network, masqueraded", from: app, to: vip, addr: fam.Pod(web), masq: true, sees: gateway(web), pods: []*e2etest.Pod{app, web}},
			{name: "same bridge, masqueraded", from: app, to: vip, addr: fam.Pod(sibling), masq: true, sees: gateway(sibling), pods: []*e2etest.Pod{app, sibling}},
			{name: "point to point", from: left, to: vip, addr: fam.Pod(right), sees: fam.Pod(left), pods: []*e2etest.Pod{left, right}},
			{name: "NodePort", from: w.Client(), to: node, addr: fam.Pod(web), sees: client, pods: []*e2etest.Pod{web}},
			{name: "NodePort, masqueraded", from: w.Client(), to: node, addr: fam.Pod(web), masq: true, sees: gateway(web), pods: []*e2etest.Pod{web}},
			{name: "NodePort of a point to point pod", from: w.Client(), to: node, addr: fam.Pod(right), sees: client, pods: []*e2etest.Pod{right}},
			{name: "pod to NodePort", from: app, to: node, addr: fam.Pod(web), masq: true, sees: gateway(web), pods: []*e2etest.Pod{app, web}},
		}
	}
}

// Connections that netfilter translates take the fast path with that translation, whoever translates and wherever the backend is.
func TestPrivilegedNetfilterNAT(t *testing.T) {
	t.Parallel()
	require.ConntrackBTF(t)
	w := e2etest.NewWorld(t)
	paths := natPaths(t, w)
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		for _, p := range paths(fam) {
			t.Run(p.name, func(t *testing.T) {
				e2etest.LoadNFT(t, w.Node, natRules(fam, p))
				defer unproxy(t, w, fam)
				for _, proto := range []string{"tcp", "udp"} {
					c := natTalk(t, p, fam, proto)
					if c.Answer.Peer.Addr() != p.sees {
						t.Errorf("%s: the backend sees %s, want %s", proto, c.Answer.Peer, p.sees)
					}
					wantFast(t, w, proto, c, p.pods)
				}
			})
		}
	})
}

// wantFast goes on with a connection until it is learned, and then expects it on the fast path.
func wantFast(t *testing.T, w *e2etest.World, proto string, c *e2etest.Talk, pods []*e2etest.Pod) {
	t.Helper()
	rounds := func(n int) {
		if err := c.SendRounds(n); err != nil {
			t.Fatalf("%s: %v", proto, err)
		}
	}
	rounds(5)
	if c.UDP { // netfilter gives a stream its full life when it is two seconds old
		time.Sleep(2200 * time.Millisecond)
	}
	rounds(5)
	before := make([]e2etest.Counters, len(pods))
	for i, p := range pods {
		before[i] = w.Counters(t, p)
	}
	rounds(e2etest.LongTalk)
	for i, p := range pods {
		after := w.Counters(t, p)
		rx, tx := after.RxPackets-before[i].RxPackets, after.TxPackets-before[i].TxPackets
		if fast := after.RxFast - before[i].RxFast; rx == 0 || fast < rx*8/10 {
			t.Errorf("%s: of %d packets to %s %d took the fast path", proto, rx, p.Name, fast)
		}
		if fast := after.TxFast - before[i].TxFast; tx == 0 || fast < tx*8/10 {
			t.Errorf("%s: of %d packets from %s %d took the fast path", proto, tx, p.Name, fast)
		}
	}
}

// natTalk opens a connection on a path.
func natTalk(t *testing.T, p natPath, fam e2etest.Family, proto string) *e2etest.Talk {
	t.Helper()
	c, err := e2etest.Dial(p.from, proto+fam.Suffix, "", e2etest.At(p.to, 80))
	if err != nil {
		t.Fatalf("%s: %v", proto, err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func unproxy(t *testing.T, w *e2etest.World, fam e2etest.Family) {
	t.Helper()
	e2etest.MustRun(t, w.Node, "nft delete table "+map[string]string{"4": "ip", "6": "ip6"}[fam.Suffix]+" proxy")
}

// Netfilter's entry of a translated connection on the fast path is one that a stateful firewall can rely on, and the connection outlives
// its entry: netfilter makes another one with the same endpoint.
func TestPrivilegedNetfilterNATTable(t *testing.T) {
	t.Parallel()
	require.ConntrackBTF(t)
	w := e2etest.NewWorld(t)
	w.Configure(`{"relearnSeconds": 1}`)
	paths := natPaths(t, w)
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		for i, p := range paths(fam) {
			if i%2 != 0 && testing.Short() {
				continue
			}
			t.Run(p.name, func(t *testing.T) {
				e2etest.LoadNFT(t, w.Node, natRules(fam, p))
				defer unproxy(t, w, fam)
				tcp, udp := natTalk(t, p, fam, "tcp"), natTalk(t, p, fam, "udp")
				wantFast(t, w, "udp", udp, p.pods) // takes two seconds
				wantFast(t, w, "tcp", tcp, p.pods)
				wantEntry(t, w, "tcp", tcp, "ESTABLISHED", 3600)
				wantEntry(t, w, "udp", udp, "", 60)
				e2etest.MustRun(t, w.Node, "conntrack -F")
				for range 4 { // past relearning
					time.Sleep(400 * time.Millisecond)
					for _, c := range []*e2etest.Talk{tcp, udp} {
						if err := c.SendRounds(3); err != nil {
							t.Fatalf("after the table was flushed: %v", err)
						}
					}
				}
				wantFast(t, w, "udp", udp, p.pods)
				wantFast(t, w, "tcp", tcp, p.pods)
				wantEntry(t, w, "tcp, flushed", tcp, "ESTABLISHED", 200)
				tcp.Close()
				time.Sleep(300 * time.Millisecond)
				if state, _ := tableEntry(t, w, tcp); state == "ESTABLISHED" || state == "SYN_RECV" {
					t.Errorf("after the end netfilter has it as %s", state)
				}
			})
		}
	})
}

// A Service whose endpoint goes: kube-proxy changes its rule and deletes the entries of UDP. The next datagram goes to the new endpoint, and
// so does each one after it.
func TestPrivilegedNetfilterNATEndpointGoes(t *testing.T) {
	t.Parallel()
	require.ConntrackBTF(t)
	w := e2etest.NewWorld(t)
	paths := natPaths(t, w)
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		all := paths(fam)
		client, web := all[1], all[3] // both for the same pod, at the virtual address
		for _, ends := range [][2]natPath{{client, web}, {web, client}} {
			t.Run(ends[0].name+" to "+ends[1].name, func(t *testing.T) {
				e2etest.LoadNFT(t, w.Node, natRules(fam, ends[0]))
				defer unproxy(t, w, fam)
				c := natTalk(t, ends[0], fam, "udp")
				wantFast(t, w, "udp", c, ends[0].pods[:1])
				was := c.Answer.Server
				unproxy(t, w, fam)
				e2etest.LoadNFT(t, w.Node, natRules(fam, ends[1]))
				e2etest.MustRun(t, w.Node, fmt.Sprintf("conntrack -D -p udp --orig-dst %s -f ipv%s", ends[0].to, fam.Suffix))
				for gone := time.Now(); time.Since(gone) < 2*time.Second; time.Sleep(5 * time.Millisecond) {
					if err := c.SendRounds(1); err != nil {
						t.Fatal(err)
					}
					if c.Answer.Server == was {
						t.Fatalf("%s still answers", was)
					}
				}
				wantFast(t, w, "udp", c, ends[1].pods[:1])
			})
		}
	})
}

// What a rule forbids later is over after relearnSeconds, also for a connection that netfilter translates.
func TestPrivilegedNetfilterNATLaterRule(t *testing.T) {
	t.Parallel()
	require.ConntrackBTF(t)
	w := e2etest.NewWorld(t)
	w.Configure(`{"relearnSeconds": 1}`)
	paths := natPaths(t, w)
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		for _, p := range paths(fam) {
			t.Run(p.name, func(t *testing.T) {
				e2etest.LoadNFT(t, w.Node, natRules(fam, p))
				defer unproxy(t, w, fam)
				c := natTalk(t, p, fam, "tcp")
				wantFast(t, w, "tcp", c, p.pods)
				e2etest.LoadNFT(t, w.Node, "table inet later {\nchain forward {\ntype filter hook forward priority 0; policy drop;\n}\n}\n")
				defer e2etest.MustRun(t, w.Node, "nft delete table inet later")
				c.Timeout = 500 * time.Millisecond
				for begin := time.Now(); c.SendRounds(1) == nil; time.Sleep(20 * time.Millisecond) {
					if time.Since(begin) > 3*time.Second {
						t.Fatal("it goes on")
					}
				}
			})
		}
	})
}

// A connection outlives the rules that have translated it, as netfilter's entry does: kube-proxy starts again, in another mode. There are
// other rules all the time; without any, netfilter tracks and translates nothing, whatever entries it has.
func TestPrivilegedNetfilterNATRulesGone(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	paths := natPaths(t, w)
	e2etest.LoadNFT(t, w.Node, `table inet other {
chain forward {
type filter hook forward priority 0;
ct state invalid drop
}
chain prerouting {
type nat hook prerouting priority 1;
}
chain postrouting {
type nat hook postrouting priority 101;
}
}
`)
	e2etest.EachFamily(t, func(t *testing.T, fam e2etest.Family) {
		for i, p := range paths(fam) {
			if i%2 != 0 && testing.Short() {
				continue
			}
			t.Run(p.name, func(t *testing.T) {
				e2etest.LoadNFT(t, w.Node, natRules(fam, p))
				tcp, udp := natTalk(t, p, fam, "tcp"), natTalk(t, p, fam, "udp")
				rounds := func(when string) {
					for end := time.Now().Add(2500 * time.Millisecond); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
						for _, c := range []*e2etest.Talk{tcp, udp} {
							if err := c.SendRounds(1); err != nil {
								t.Fatalf("%s: %v", when, err)
							}
						}
					}
				}
				rounds("with the rules")
				unproxy(t, w, fam)
				rounds("without them")
			})
		}
	})
}
