// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
)

// TunnelPorts is the view of sl_tunnel_ports: the UDP ports on which VXLAN devices of the node wait.
type TunnelPorts struct{ m *bpfsys.Map }

// NewTunnelPorts returns a view of m.
func NewTunnelPorts(m *bpfsys.Map) TunnelPorts { return TunnelPorts{m} }

// Add puts in the ports of devices, by ifindex, and leaves those of others.
func (t TunnelPorts) Add(ports map[uint32]uint16) error {
	if len(ports) == 0 {
		return nil
	}
	return putSet(t.m, tunnelKeys(ports), false)
}

// Replace makes ports of devices, by ifindex, the whole map. What is new is there before what is old goes.
func (t TunnelPorts) Replace(ports map[uint32]uint16) error {
	return putSet(t.m, tunnelKeys(ports), true)
}

func tunnelKeys(ports map[uint32]uint16) map[bpfgen.TypesSlTunnelPort]bool {
	keys := make(map[bpfgen.TypesSlTunnelPort]bool)
	for index, port := range ports {
		port = codec.Port(port)
		for _, k := range []bpfgen.TypesSlTunnelPort{{Ifindex: index, Port: port}, {Ifindex: index}, {Port: port}, {}} {
			keys[k] = true
		}
	}
	return keys
}
