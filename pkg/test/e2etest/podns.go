// SPDX-License-Identifier: Apache-2.0

package e2etest

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/require"
)

// PodnsKind is a kind of pod that has no host veth, so firewall and bandwidth work in its
// pod netns. The client is its neighbour. For devices without a layer 2, it is the
// neighbour of its gateway.
type PodnsKind struct {
	Name, Plugin string
	Extra        Attributes
	Subnets      []string // of the pods; nil: the uplink's
	NodeSetup    []string // lines of ip(8) on the node
	ClientSetup  []string // and on the client
	ClientAddrs  []string // the client's addresses, where they are not the uplink's
	Require      string
}

// PodnsKinds are the kinds that the plugins offer.
func PodnsKinds() []PodnsKind {
	return []PodnsKind{
		{Name: "macvlan", Plugin: "macvlan", Require: "macvlan"},
		{Name: "ipvlan l2", Plugin: "ipvlan", Require: "ipvlan"},
		{Name: "ipvlan l3", Plugin: "ipvlan", Require: "ipvlan", Extra: Attributes{"mode": "l3"}, Subnets: []string{"10.88.0.0/24", "fd00:88::/64"}},
		{
			Name: "vlan", Plugin: "vlan", Require: "vlan", Extra: Attributes{"vlanId": 100},
			Subnets: []string{"10.77.0.0/24", "fd00:77::/64"}, ClientAddrs: []string{"10.77.0.99", "fd00:77::99"},
			ClientSetup: []string{
				"link add link eth0 name tagged type vlan id 100", "addr add 10.77.0.99/24 dev tagged",
				"addr add fd00:77::99/64 dev tagged nodad", "link set tagged up",
			},
		},
		{ // a card whose wire leads to the client
			Name: "host-device", Plugin: "host-device", Extra: Attributes{"device": "nic0"},
			Subnets: []string{"10.88.0.0/24", "fd00:88::/64"}, ClientAddrs: []string{"10.88.0.99", "fd00:88::99"},
			NodeSetup:   []string{"link add nic0 type veth peer name wire0 netns CLIENT"},
			ClientSetup: []string{"addr add 10.88.0.99/24 dev wire0", "addr add fd00:88::99/64 dev wire0 nodad", "link set wire0 up"},
		},
		{ // the kind of device that an SR-IOV card's function is to others: one of several on a wire
			Name: "host-device macvlan", Plugin: "host-device", Require: "macvlan", Extra: Attributes{"device": "nic0"},
			NodeSetup: []string{"link add link eth0 name nic0 type macvlan mode bridge"},
		},
	}
}

// NewWorld makes a node with what pods of this kind need.
func (k PodnsKind) NewWorld(t *testing.T) *World {
	t.Helper()
	if k.Require != "" {
		require.Link(t, k.Require)
	}
	w := NewWorld(t)
	for _, line := range k.NodeSetup {
		MustRun(t, w.Node, "ip "+strings.ReplaceAll(line, "CLIENT", w.Client().ProcPath()))
	}
	for _, line := range k.ClientSetup {
		MustRun(t, w.Client(), "ip "+line)
	}
	return w
}

// Network is a network of such pods, with a chain of plugins.
func (k PodnsKind) Network(plugins ...string) Network {
	n := LANNetwork(k.Plugin, k.Extra)
	if k.Plugin == "host-device" {
		delete(n.Extra, "master")
	}
	if k.Subnets != nil {
		var ranges []any
		for i, s := range k.Subnets {
			r := Attributes{"subnet": s}
			if k.ClientAddrs != nil {
				r["gateway"] = k.ClientAddrs[i]
			}
			ranges = append(ranges, []Attributes{r})
		}
		n.IPAM = Attributes{"ranges": ranges}
	}
	n.Plugins = plugins
	return n
}

// ClientAddr is the client's address on the pods' network.
func (k PodnsKind) ClientAddr(w *World, fam Family) netip.Addr {
	for _, a := range k.ClientAddrs {
		if addr := netip.MustParseAddr(a); addr.Is4() == (fam.Suffix == "4") {
			return addr
		}
	}
	return fam.Client(w.Client())
}

// EachPodnsKind runs f for every kind, in parallel.
func EachPodnsKind(t *testing.T, f func(t *testing.T, k PodnsKind)) {
	t.Helper()
	for _, k := range PodnsKinds() {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			f(t, k)
		})
	}
}
