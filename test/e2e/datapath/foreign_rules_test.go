// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// A Service address on a dummy device, as kube-proxy's IPVS mode has them, keeps its traffic: a hostPort
// with the same number is for the node's addresses only (CVE-2019-9946).
func TestPrivilegedVIPOnDummyDevice(t *testing.T) {
	t.Parallel()
	require.Link(t, "dummy")
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	web, app := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)), w.AddPod(rt, "app")
	e2etest.Serve(t, web, "web", ":80")
	e2etest.MustRun(t, w.Node, "ip link add kube-ipvs0 type dummy")
	for _, fam := range e2etest.Families() {
		e2etest.MustRun(t, w.Node, fmt.Sprintf("ip addr add %s/%d dev kube-ipvs0", e2etest.VirtualIP(fam), e2etest.VirtualIP(fam).BitLen()))
	}
	e2etest.MustRun(t, w.Node, e2etest.Programs.Path("sluice")+" resync")
	for _, fam := range e2etest.Families() { // bound: a datagram socket without an address answers from whichever lies nearest
		e2etest.ServeFamily(t, w.Node, fam.Suffix, "service", e2etest.At(e2etest.VirtualIP(fam), 8080))
	}
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		for _, from := range []e2etest.Place{w.Client(), app, w.Node} {
			if got := e2etest.Ask(t, from, proto, e2etest.At(e2etest.VirtualIP(fam), 8080)); got.Server != "service" {
				t.Errorf("answered by %s, want service", got.Server)
			}
			if got := e2etest.Ask(t, from, proto, e2etest.At(fam.Node(w.Client()), 8080)); got.Server != "web" {
				t.Errorf("the node's address: answered by %s, want web", got.Server)
			}
		}
	})
}

// Who decides about forwarding decides about hairpin too; the firewall plugin's mark admits it.
func TestPrivilegedHairpinIsForwarded(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	w.Configure(`{"firewallMark": "0x1000"}`)
	open, closed := e2etest.Net0(), e2etest.Net1()
	closed.Plugins = []string{"portmap"} // no firewall plugin admits its pods
	web := w.AddPod(w.Runtime(open), "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
	sibling := w.AddPod(w.Runtime(open), "sibling")
	rt := w.Runtime(closed)
	lone, other := w.AddPod(rt, "lone", e2etest.TCP(8081, 80), e2etest.UDP(8081, 80)), w.AddPod(rt, "other")
	e2etest.Serve(t, web, "web", ":80")
	e2etest.Serve(t, lone, "lone", ":80")
	node := func(fam e2etest.Family) netip.Addr { return fam.Node(w.Client()) }
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		e2etest.Ask(t, other, proto, e2etest.At(node(fam), 8081))
	})
	e2etest.LoadNFT(t, w.Node, "table inet admin {\nchain forward {\ntype filter hook forward priority 0; policy drop;\nmeta mark & 0x1000 == 0x1000 accept\n}\n}\n")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		for _, from := range []e2etest.Place{sibling, web} {
			if got := e2etest.Ask(t, from, proto, e2etest.At(node(fam), 8080)); got.Server != "web" {
				t.Errorf("answered by %s, want web", got.Server)
			}
		}
		e2etest.AssertNoAnswer(t, other, proto, e2etest.At(node(fam), 8081))
	})
}
