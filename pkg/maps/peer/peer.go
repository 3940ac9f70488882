// SPDX-License-Identifier: Apache-2.0

// Package peer is the typed view of what the node's own sockets got through hostPorts. Programs write it; Go reads it to find
// the sockets whose port has gone, and forgets those. A view does not own its map: closing is the caller's.
package peer

import (
	"errors"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/sluice-cni/sluice/pkg/bpfobj"
	"github.com/sluice-cni/sluice/pkg/maps/wire"
)

// Value is whom a socket asked for and the pod it talks to.
type Value struct {
	Asked, Pod netip.AddrPort
	Proto      uint8  // IPPROTO_TCP, IPPROTO_UDP
	Gen        uint64 // of the hostPort entry
}

// Connected is the view of sl_peers: sockets with a peer, by cookie (SO_COOKIE).
type Connected struct{ m *ebpf.Map }

// NewConnected returns a view of m.
func NewConnected(m *ebpf.Map) Connected { return Connected{m} }

// Each calls f with every entry until f returns false.
func (c Connected) Each(f func(cookie uint64, v Value) bool) error {
	return wire.Each(c.m, func(k *uint64, v *bpfobj.TypesSlPeer) bool { return f(*k, decode(v)) })
}

// Delete forgets a socket; missing is success.
func (c Connected) Delete(cookie uint64) error {
	if err := c.m.Delete(cookie); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

// Len returns the number of sockets.
func (c Connected) Len() (int, error) { return wire.Count[uint64, bpfobj.TypesSlPeer](c.m) }

// Datagram is the view of sl_peers_udp: sockets without a peer, and the pods they sent to.
type Datagram struct{ m *ebpf.Map }

// NewDatagram returns a view of m.
func NewDatagram(m *ebpf.Map) Datagram { return Datagram{m} }

// Len returns the number of pairs.
func (d Datagram) Len() (int, error) {
	return wire.Count[bpfobj.TypesSlPeerKey, bpfobj.TypesSlPeer](d.m)
}

func decode(v *bpfobj.TypesSlPeer) Value {
	return Value{
		Asked: netip.AddrPortFrom(wire.FromAddr(v.Asked), wire.Port(v.AskedPort)),
		Pod:   netip.AddrPortFrom(wire.FromAddr(v.Pod), wire.Port(v.PodPort)),
		Proto: uint8(v.Proto), Gen: v.Gen,
	}
}

func encode(v Value) *bpfobj.TypesSlPeer {
	return &bpfobj.TypesSlPeer{
		Asked: wire.Addr(v.Asked.Addr()), AskedPort: wire.Port(v.Asked.Port()),
		Pod: wire.Addr(v.Pod.Addr()), PodPort: wire.Port(v.Pod.Port()),
		Proto: uint32(v.Proto), Gen: v.Gen,
	}
}
