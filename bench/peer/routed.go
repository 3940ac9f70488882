// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"fmt"
	"net/netip"

	"github.com/sluice-cni/sluice/bench/traffic"
	"github.com/sluice-cni/sluice/pkg/test/lab"
)

// Addresses of the routed peer's one pod and of its gateway.
var (
	routedPod     = netip.MustParseAddr("10.88.0.2")
	routedGateway = netip.MustParseAddr("10.88.0.1")
)

// routed makes a pod behind a veth that the node routes to: no bridge, no
// plugin, no netfilter rule, no BPF program. The client reaches the pod under
// its own address. It is what a veth costs with the kernel's own forwarding.
func (w *World) routed() (*lab.NS, netip.AddrPort, error) {
	pod, err := w.lab.Node.NewPod("routed")
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	node := w.lab.Client().Uplink.Node
	steps := []struct {
		in   *lab.NS
		args [][]string
	}{
		{w.lab.Node.NS, [][]string{
			{"link", "add", "routed0", "type", "veth", "peer", "name", "eth0", "netns", pod.Path},
			{"addr", "add", routedGateway.String() + "/24", "dev", "routed0"},
			{"link", "set", "routed0", "up"},
		}},
		{pod.NS, [][]string{
			{"addr", "add", routedPod.String() + "/24", "dev", "eth0"},
			{"link", "set", "lo", "up"},
			{"link", "set", "eth0", "up"},
			{"route", "add", "default", "via", routedGateway.String()},
		}},
		{w.lab.Client().NS, [][]string{{"route", "replace", routedPod.String() + "/32", "via", lab.IP4(node).String()}}},
	}
	for _, s := range steps {
		for _, args := range s.args {
			if err := s.in.Do(func() error { _, err := lab.Run("ip", args...); return err }); err != nil {
				return nil, netip.AddrPort{}, fmt.Errorf("ip %v: %w", args, err)
			}
		}
	}
	w.target = netip.AddrPortFrom(routedPod, containerPort)
	return pod.NS, netip.AddrPortFrom(netip.IPv4Unspecified(), containerPort), nil
}

// serveIn starts the agents of the traffic.
func (w *World) serveIn(server *lab.NS, listen netip.AddrPort) (err error) {
	if w.server, err = traffic.Start(server); err != nil {
		return err
	}
	if w.client, err = traffic.Start(w.lab.Client().NS); err != nil {
		return err
	}
	_, err = w.server.Call(traffic.Request{Op: "serve", Addr: listen})
	return err
}
