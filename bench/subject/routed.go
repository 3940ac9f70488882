// SPDX-License-Identifier: Apache-2.0

package subject

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// Addresses of the routed peer's one pod and of its gateway.
var (
	routedPod     = netip.MustParseAddr("10.88.0.2")
	routedGateway = netip.MustParseAddr("10.88.0.1")
)

// routedDoor is the node's end of its veth.
const routedDoor = "routed0"

// routed makes a pod behind a veth that the node routes to, with a bridge in
// between if bridged: no plugin, no netfilter rule, no BPF program. The client
// reaches the pod under its own address. It is what a veth costs with the
// kernel's own forwarding.
func (w *World) routed(bridged bool) (*netlab.NS, netip.AddrPort, error) {
	pod, err := w.lab.Node.NewPod("routed")
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	node := w.lab.Client().Uplink.Node
	gateway, above := routedDoor, [][]string(nil)
	if bridged {
		gateway, above = "br0", [][]string{
			{"link", "add", "br0", "type", "bridge"},
			{"link", "set", routedDoor, "master", "br0"},
		}
	}
	steps := []struct {
		in   *netlab.NS
		args [][]string
	}{
		{w.lab.Node.NS, slices.Concat([][]string{
			{"link", "add", routedDoor, "type", "veth", "peer", "name", "eth0", "netns", pod.Path},
		}, above, [][]string{
			{"addr", "add", routedGateway.String() + "/24", "dev", gateway},
			{"link", "set", gateway, "up"},
			{"link", "set", routedDoor, "up"},
		})},
		{pod.NS, [][]string{
			{"addr", "add", routedPod.String() + "/24", "dev", "eth0"},
			{"link", "set", "lo", "up"},
			{"link", "set", "eth0", "up"},
			{"route", "add", "default", "via", routedGateway.String()},
		}},
		{w.lab.Client().NS, [][]string{{"route", "replace", routedPod.String() + "/32", "via", netlab.IP4(node).String()}}},
	}
	for _, s := range steps {
		for _, args := range s.args {
			if err := s.in.Do(func() error { _, err := netlab.Run("ip", args...); return err }); err != nil {
				return nil, netip.AddrPort{}, fmt.Errorf("ip %v: %w", args, err)
			}
		}
	}
	w.target = netip.AddrPortFrom(routedPod, containerPort)
	return pod.NS, netip.AddrPortFrom(netip.IPv4Unspecified(), containerPort), nil
}
