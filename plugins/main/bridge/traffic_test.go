// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// place is a pod on the bridge under test, or any namespace with a server.
type place struct {
	*netlab.NS
	addr string // of its server
}

// member adds a pod with these keys and lets it serve TCP at its address.
func (r *rig) member(name, keys string) place {
	r.t.Helper()
	pod := r.node.PodT(r.t, name)
	res := r.mustAdd(call("1.1.0", name, "eth0", pod.Path, `"bridge":"br0","ipam":{"type":"fake"}`+keys))
	p := place{pod.NS, res.IPs[0].Address.IP.String()}
	r.serve(p)
	return p
}

func (r *rig) serve(p place) {
	r.t.Helper()
	stop, err := p.ServeTCP(p.addr + ":7000")
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = stop() })
}

func (r *rig) ip(ns *netlab.NS, args string) {
	r.t.Helper()
	if err := ns.Do(func() error { return exec.Command("ip", strings.Fields(args)...).Run() }); err != nil {
		r.t.Fatalf("ip %s: %v", args, err)
	}
}

func (r *rig) wantReach(what string, from, to place, want bool) {
	r.t.Helper()
	if got := r.reach(from.NS, to.addr+":7000"); got != want {
		r.t.Errorf("%s: reached %v, want %v", what, got, want)
	}
}

// Isolated ports reach the others and the gateway, but not each other.
func TestPrivilegedIsolationTraffic(t *testing.T) {
	r := newRig(t)
	const isolated = `,"isGateway":true,"portIsolation":true`
	a, b, open := r.member("a", isolated), r.member("b", isolated), r.member("c", `,"isGateway":true`)
	gateway := place{r.node.NS, "10.1.0.1"}
	r.serve(gateway)
	r.wantReach("isolated to isolated", a, b, false)
	r.wantReach("isolated to open", a, open, true)
	r.wantReach("open to isolated", open, b, true)
	r.wantReach("isolated to the gateway", a, gateway, true)
}

// A pod reaches the gateway of its VLAN; a pod of another VLAN does not.
func TestPrivilegedVLANGatewayTraffic(t *testing.T) {
	r := mustFilterVLANs(t)
	inside, outside := r.member("a", `,"vlan":100,"isGateway":true`), r.member("b", `,"vlan":101`)
	gateway := place{r.node.NS, "10.1.0.1"}
	r.serve(gateway)
	r.wantReach("VLAN 100 to its gateway", inside, gateway, true)
	r.wantReach("VLAN 101 to the gateway of VLAN 100", outside, gateway, false)
	r.wantReach("the node to VLAN 100", gateway, inside, true)
}

// A trunk carries the VLANs it lists, tagged, and no others.
func TestPrivilegedVLANTrunkTraffic(t *testing.T) {
	r := mustFilterVLANs(t)
	require.Link(t, "vlan")
	trunk := r.member("a", `,"vlan":100,"vlanTrunk":[{"id":300},{"minID":400,"maxID":402}]`)
	for vlan, carried := range map[string]bool{"300": true, "401": true, "500": false} {
		pod := r.member("p"+vlan, `,"vlan":`+vlan)
		far := place{pod.NS, "10." + vlan[:1] + "0.0.2"}
		r.ip(pod.NS, "addr add "+far.addr+"/24 dev eth0")
		r.serve(far)
		r.ip(trunk.NS, "link add link eth0 name v"+vlan+" type vlan id "+vlan)
		r.ip(trunk.NS, "addr add 10."+vlan[:1]+"0.0.1/24 dev v"+vlan)
		r.ip(trunk.NS, "link set v"+vlan+" up")
		r.wantReach("tag "+vlan, trunk, far, carried)
	}
}

// macspoofchk stops a pod that takes another address, and not before.
func TestPrivilegedSpoofTraffic(t *testing.T) {
	require.NFTFamily(t, "bridge")
	r := newNFTablesRig(t)
	r.plug = New(r.with(nil))
	checked, free := r.member("a", `,"isGateway":true,"macspoofchk":true`), r.member("b", `,"isGateway":true`)
	gateway := place{r.node.NS, "10.1.0.1"}
	r.serve(gateway)
	r.wantReach("own address", checked, gateway, true)
	r.wantReach("own address, unchecked", free, gateway, true)
	r.ip(checked.NS, "link set eth0 address 02:00:00:00:00:99")
	r.ip(free.NS, "link set eth0 address 02:00:00:00:00:98")
	r.wantReach("another address", checked, gateway, false)
	r.wantReach("another address, unchecked", free, gateway, true)
}
