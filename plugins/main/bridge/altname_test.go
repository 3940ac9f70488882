// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	fake "github.com/sluice-cni/sluice/pkg/test/plugintest"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// A bridge may be called by an alternative name: every verb takes it for the one device that it is.
func TestPrivilegedBridgeByAltName(t *testing.T) {
	r := newRig(t)
	r.node.NS.IPT(t, "link add br0 type bridge")
	r.node.NS.IPT(t, "link property add dev br0 altname pods-of-node-1")
	r.node.NS.IPT(t, "link set br0 up")
	if err := r.node.WriteSysctl("net/ipv4/conf/br0/forwarding", "0"); err != nil {
		t.Fatal(err)
	}
	pod := r.node.PodT(t, "p1")
	byName := call("1.1.0", "c0", "eth0", r.node.PodT(t, "p0").Path, `"bridge":"br0",`+gatewayed)
	byAlt := call("1.1.0", "c1", "eth0", pod.Path, `"bridge":"pods-of-node-1",`+gatewayed)
	r.mustAdd(byName)
	res := r.mustAdd(byAlt)
	if got := res.Interfaces[0].Name; got != "br0" {
		t.Errorf("the result's bridge is %q", got)
	}
	if got := r.node.NS.IPT(t, "-br link show type bridge"); strings.Count(got, "\n") != 1 {
		t.Errorf("bridges:\n%s", got)
	}
	if err := r.check(byAlt, res); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	r.node.NS.IPT(t, "link set br0 up")
	if err := r.del(byAlt); err != nil {
		t.Errorf("DEL: %v", err)
	}
	if got := r.links(pod.NS); len(got) != 1 {
		t.Errorf("left in the pod: %v", got)
	}
	if got := r.links(r.node.NS); !slices.Contains(got, "br0") {
		t.Errorf("the bridge is gone: %v", got)
	}
}

const gatewayed = `"isGateway":true,"ipam":{"type":"fake"}`

// The pod was attached by upstream's plugin, or the record is lost: the bridge is found by the alternative name.
func TestPrivilegedDelByAltNameWithoutRecord(t *testing.T) {
	r := newRig(t)
	r.node.NS.IPT(t, "link add br0 up type bridge")
	r.node.NS.IPT(t, "link property add dev br0 altname pods")
	pod := r.node.PodT(t, "p1")
	r.host(func(h *rtnl.Handle) error {
		br, err := h.LinkByName("br0")
		if err != nil {
			return err
		}
		fd, err := os.Open(pod.ProcPath())
		if err != nil {
			return err
		}
		defer fd.Close()
		return h.AddVeth(rtnl.VethSpec{HostName: "vethother", Master: br.Index, HostUp: true, PeerName: "eth0", PeerNS: int(fd.Fd())})
	})
	if err := r.del(call("1.1.0", "c1", "eth0", pod.Path, `"bridge":"pods",`+gatewayed)); err != nil {
		t.Fatal(err)
	}
	if got := r.links(r.node.NS); slices.Contains(got, "vethother") {
		t.Errorf("the pod's device is left: %v", got)
	}
}

// The VLAN gateway is called after the bridge, not after the name in the configuration: one VLAN has one.
func TestPrivilegedVLANGatewayByAltName(t *testing.T) {
	require.VLANFiltering(t)
	r := newRig(t)
	r.node.NS.IPT(t, "link add br0 up type bridge vlan_filtering 1")
	r.node.NS.IPT(t, "link property add dev br0 altname pods-of-node-1")
	for i, bridge := range []string{"br0", "pods-of-node-1"} {
		id := string(rune('a' + i))
		a := call("1.1.0", id, "eth0", r.node.PodT(t, id).Path, `"bridge":"`+bridge+`","vlan":100,`+gatewayed)
		res := r.mustAdd(a)
		if n := len(res.Interfaces); n != 4 || res.Interfaces[3].Name != "br0.100" {
			t.Errorf("%s: %d interfaces, the last is %s", bridge, n, res.Interfaces[n-1].Name)
		}
		if err := r.check(a, res); err != nil {
			t.Errorf("%s: CHECK: %v", bridge, err)
		}
	}
}

// The name of a VLAN gateway has to fit whatever the bridge is called.
func TestPrivilegedLongVLANGatewayName(t *testing.T) {
	r := newRig(t)
	r.node.NS.IPT(t, "link add pods-of-node-1 type bridge")
	pod := r.node.PodT(t, "p1")
	for _, bridge := range []string{"pods-of-node-1", "pods-of-node-2"} { // the second one would be made
		a := call("1.1.0", "c1", "eth0", pod.Path, `"bridge":"`+bridge+`","vlan":100,`+gatewayed)
		_, err := r.add(a)
		fake.WantCode(t, err, cnierr.CodeConfig, bridge+".100")
		fake.WantCode(t, r.verb(r.plug.Status, a), cnierr.CodeConfig, bridge+".100")
	}
	if list, err := attachments.Open(r.dir.Path()).List(""); err != nil || len(list) != 0 {
		t.Errorf("%d records, %v", len(list), err)
	}
}
