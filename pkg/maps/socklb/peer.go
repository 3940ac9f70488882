// SPDX-License-Identifier: Apache-2.0

// Package socklb is the typed view of what the node's own sockets got through hostPorts. Programs write it; Go reads it to find
// the sockets whose port has gone, and forgets those. A view does not own its map: closing is the caller's.
package socklb

import (
	"net/netip"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
)

// Value is the address that a socket asked for, and the pod it talks to.
type Value struct {
	Asked, Pod netip.AddrPort
	Proto      uint8  // IPPROTO_TCP, IPPROTO_UDP
	Gen        uint64 // of the hostPort entry
}

// Connected is the view of sl_socklb_conn: sockets with a peer, by cookie (SO_COOKIE).
type Connected struct{ m *bpfsys.Map }

// NewConnected returns a view of m.
func NewConnected(m *bpfsys.Map) Connected { return Connected{m} }

// Each calls f with every entry until f returns false.
func (c Connected) Each(f func(cookie uint64, v Value) bool) error {
	return codec.Each(c.m, func(k *uint64, v *bpfgen.TypesSlSocklbEntry) bool { return f(*k, decode(v)) })
}

// Delete forgets a socket; missing is success.
func (c Connected) Delete(cookie uint64) error { return bpfsys.Remove(c.m, cookie) }

// Len returns the number of sockets.
func (c Connected) Len() (int, error) { return codec.Count[uint64, bpfgen.TypesSlSocklbEntry](c.m) }

// Datagram is the view of sl_socklb_udp: sockets without a peer, and the pods they sent to.
type Datagram struct{ m *bpfsys.Map }

// NewDatagram returns a view of m.
func NewDatagram(m *bpfsys.Map) Datagram { return Datagram{m} }

// Len returns the number of pairs.
func (d Datagram) Len() (int, error) {
	return codec.Count[bpfgen.TypesSlSocklbKey, bpfgen.TypesSlSocklbEntry](d.m)
}

func decode(v *bpfgen.TypesSlSocklbEntry) Value {
	return Value{
		Asked: netip.AddrPortFrom(codec.FromAddr(v.Frontend), codec.Port(v.FrontendPort)),
		Pod:   netip.AddrPortFrom(codec.FromAddr(v.Pod), codec.Port(v.PodPort)),
		Proto: uint8(v.Proto), Gen: v.Generation,
	}
}

func encode(v Value) *bpfgen.TypesSlSocklbEntry {
	return &bpfgen.TypesSlSocklbEntry{
		Frontend: codec.Addr(v.Asked.Addr()), FrontendPort: codec.Port(v.Asked.Port()),
		Pod: codec.Addr(v.Pod.Addr()), PodPort: codec.Port(v.Pod.Port()),
		Proto: uint32(v.Proto), Generation: v.Gen,
	}
}
