// SPDX-License-Identifier: Apache-2.0

// Package endpoint is the typed view of the maps about addresses: those of pods with their counters, those of the node, its
// uplinks, and the networks that are never masqueraded. Only the loader writes them; programs count in Stats, each on its own
// CPU. A view does not own its map: closing is the caller's.
package endpoint

import (
	"net"
	"net/netip"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/maps/cacheepoch"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
)

// Flags of an endpoint.
const (
	FlagMasquerade = uint32(bpfgen.TypesSlEndpointFlagSL_EP_MASQUERADE)
	FlagAdmit      = uint32(bpfgen.TypesSlEndpointFlagSL_EP_ADMIT)
	FlagPublish    = uint32(bpfgen.TypesSlEndpointFlagSL_EP_HOSTPORT)
	FlagQueueRx    = uint32(bpfgen.TypesSlEndpointFlagSL_EP_QDISC_RX)
	FlagQueueTx    = uint32(bpfgen.TypesSlEndpointFlagSL_EP_IFB_TX)
)

// FlagNames returns the names of the flags that are set.
func FlagNames(flags uint32) []string {
	names := make([]string, 0, 3)
	for _, f := range []struct {
		bit  uint32
		name string
	}{{FlagMasquerade, "masquerade"}, {FlagAdmit, "admit"}, {FlagPublish, "publish"}, {FlagQueueRx, "queue-rx"}, {FlagQueueTx, "queue-tx"}} {
		if flags&f.bit != 0 {
			names = append(names, f.name)
		}
	}
	return names
}

// Value is one address of a pod.
type Value bpfgen.TypesSlEndpoint

// Prefix returns the pod's own subnet for its address a.
func (v *Value) Prefix(a netip.Addr) netip.Prefix { return codec.FromPrefix(a, v.PrefixLen) }

// HardwareAddr returns the MAC of the pod's device.
func (v *Value) HardwareAddr() net.HardwareAddr { return net.HardwareAddr(v.Mac[:]) }

// GatewayAddr returns the MAC of the device the pod's packets are routed from.
func (v *Value) GatewayAddr() net.HardwareAddr { return net.HardwareAddr(v.GatewayMac[:]) }

// Map is the view of sl_endpoints.
type Map struct {
	m     *bpfsys.Map
	epoch cacheepoch.Epoch
}

// New returns a view of m, whose changes e tells of.
func New(m *bpfsys.Map, e cacheepoch.Epoch) Map { return Map{m, e} }

// Put writes the entry of a, also over that of another owner. E2BIG: the map is full.
func (m Map) Put(a netip.Addr, v *Value) error {
	if err := bpfsys.Put(m.m, codec.Addr(a), *v); err != nil {
		return err
	}
	return m.epoch.Next()
}

// Get returns the entry of a; false when there is none.
func (m Map) Get(a netip.Addr) (Value, bool, error) {
	return bpfsys.Lookup[Value](m.m, codec.Addr(a))
}

// Delete removes the entry of a; missing is success.
func (m Map) Delete(a netip.Addr) error {
	if err := bpfsys.Remove(m.m, codec.Addr(a)); err != nil {
		return err
	}
	return m.epoch.Next()
}

// Each calls f with every entry until f returns false.
func (m Map) Each(f func(a netip.Addr, v *Value) bool) error {
	return codec.Each(m.m, func(k *[16]byte, v *Value) bool { return f(codec.FromAddr(*k), v) })
}

// Len returns the number of entries.
func (m Map) Len() (int, error) { return codec.Count[[16]byte, Value](m.m) }
