// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"maps"

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
	_, err := t.add(ports)
	return err
}

// Replace makes ports of devices, by ifindex, the whole map. What is new is there before what is old goes.
func (t TunnelPorts) Replace(ports map[uint32]uint16) error {
	want, err := t.add(ports)
	if err != nil {
		return err
	}
	var old []bpfgen.TypesSlTunnelPort
	err = codec.Each(t.m, func(k *bpfgen.TypesSlTunnelPort, _ *uint32) bool {
		if !want[*k] {
			old = append(old, *k)
		}
		return true
	})
	if err != nil {
		return err
	}
	for _, k := range old {
		if err := bpfsys.Remove(t.m, k); err != nil {
			return err
		}
	}
	return nil
}

func (t TunnelPorts) add(ports map[uint32]uint16) (map[bpfgen.TypesSlTunnelPort]bool, error) {
	want := make(map[bpfgen.TypesSlTunnelPort]bool)
	for index, port := range ports {
		port = codec.Port(port)
		for _, k := range []bpfgen.TypesSlTunnelPort{{Ifindex: index, Port: port}, {Ifindex: index}, {Port: port}, {}} {
			want[k] = true
		}
	}
	for k := range maps.Keys(want) {
		if err := bpfsys.Put(t.m, k, uint32(1)); err != nil {
			return nil, err
		}
	}
	return want, nil
}
