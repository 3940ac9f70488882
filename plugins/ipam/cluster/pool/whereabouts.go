// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// This file is whereabouts' encoding to the byte: its objects, their names, and the offsets and
// entries in them.

// APIVersion is that of whereabouts' objects.
const APIVersion = "whereabouts.cni.cncf.io/v1alpha1"

// IPPool is whereabouts' object of a pool.
type IPPool struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"`
	Metadata   Meta   `json:"metadata"`
	Spec       struct {
		Range       string           `json:"range"`
		Allocations map[string]Entry `json:"allocations"`
	} `json:"spec"`
}

// JSON pointers into an IPPool.
const (
	RangePath       = "/spec/range"
	AllocationsPath = "/spec/allocations/" // and a Key
)

// Reservation is whereabouts' object by which it reserves one address over all pools of a network.
type Reservation struct {
	APIVersion string          `json:"apiVersion,omitempty"`
	Kind       string          `json:"kind,omitempty"`
	Metadata   Meta            `json:"metadata"`
	Spec       ReservationSpec `json:"spec"`
}

// ReservationSpec is the pod that an address is reserved for.
type ReservationSpec struct {
	PodRef string `json:"podref"`
	IfName string `json:"ifname,omitempty"`
}

// NodeSlicePool is what is read of whereabouts' object that divides a range among the nodes.
type NodeSlicePool struct {
	Status struct {
		Allocations []struct {
			NodeName   string `json:"nodeName"`
			SliceRange string `json:"sliceRange"`
		} `json:"allocations"`
	} `json:"status"`
}

// Meta is what is read of an object's metadata.
type Meta struct {
	Name            string `json:"name"`
	Namespace       string `json:"namespace,omitempty"`
	UID             string `json:"uid,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
}

// NewIPPool returns an empty pool.
func NewIPPool(namespace, name, cidr string) *IPPool {
	o := &IPPool{APIVersion: APIVersion, Kind: "IPPool", Metadata: Meta{Name: name, Namespace: namespace}}
	o.Spec.Range, o.Spec.Allocations = cidr, map[string]Entry{}
	return o
}

// NewReservation returns the reservation of that name for a pod.
func NewReservation(namespace, name, podRef, ifName string) *Reservation {
	return &Reservation{APIVersion, "OverlappingRangeIPReservation", Meta{Name: name, Namespace: namespace}, ReservationSpec{podRef, ifName}}
}

// Object returns the pool as every store has it.
func (o *IPPool) Object() *Object {
	return &Object{Name: o.Metadata.Name, UID: o.Metadata.UID, Range: o.Spec.Range, Allocations: o.Spec.Allocations}
}

// MaxOffset is the largest offset of an address in its pool. whereabouts reads offsets as signed
// 64-bit numbers, and drops those that do not fit.
const MaxOffset = 1<<63 - 1

// Entry is one allocation, in whereabouts' encoding. An entry of a node has an ID of NodeID, one
// that is kept for an owner an ID of Hold. Both have no PodRef.
type Entry struct {
	ID     string `json:"id"`
	PodRef string `json:"podref"`
	IfName string `json:"ifname,omitempty"`
}

// Object is a pool as a store has it.
type Object struct {
	Name        string
	UID         string // of the object: one that was removed and made again has another one
	Range       string
	Allocations map[string]Entry
}

// Taken returns the allocations by offset. An offset that cannot be read is an error: another
// program or a person wrote it, and what it means is unknown.
func (o *Object) Taken() (map[uint64]Entry, error) {
	out := make(map[uint64]Entry, len(o.Allocations))
	for k, e := range o.Allocations {
		off, err := ParseKey(k)
		if err != nil {
			return nil, fmt.Errorf("pool %s: %w; correct the object", o.Name, err)
		}
		out[off] = e
	}
	return out, nil
}

// Prefix returns the range of the object. It is compared with the configuration's: offsets of
// another range would mean other addresses.
func (o *Object) Prefix() (netip.Prefix, error) {
	p, err := netip.ParsePrefix(o.Range)
	if err != nil || p != p.Masked() {
		return p, fmt.Errorf("pool %s: range %q: not a network; correct the object", o.Name, o.Range)
	}
	return p, nil
}

// Offset returns the distance of an address from the first address of the network. It reports false
// for an address outside the network or further away than MaxOffset.
func Offset(p netip.Prefix, a netip.Addr) (uint64, bool) {
	if !p.Contains(a) {
		return 0, false
	}
	base, addr := p.Masked().Addr().As16(), a.As16()
	hi := binary.BigEndian.Uint64(addr[:8]) - binary.BigEndian.Uint64(base[:8])
	low, below := binary.BigEndian.Uint64(addr[8:]), binary.BigEndian.Uint64(base[8:])
	if low < below || hi != 0 || low-below > MaxOffset {
		return 0, false
	}
	return low - below, true
}

// Addr returns the address at an offset. It reports false if the network has no such address.
func Addr(p netip.Prefix, offset uint64) (netip.Addr, bool) {
	base := p.Masked().Addr()
	b := base.As16()
	low := binary.BigEndian.Uint64(b[8:])
	if offset > MaxOffset || low+offset < low {
		return netip.Addr{}, false
	}
	binary.BigEndian.PutUint64(b[8:], low+offset)
	a := netip.AddrFrom16(b)
	if base.Is4() {
		a = a.Unmap()
	}
	return a, p.Contains(a)
}

// Key is an offset as whereabouts writes it.
func Key(offset uint64) string { return strconv.FormatUint(offset, 10) }

// ParseKey is the reverse of Key. It accepts what whereabouts accepts.
func ParseKey(s string) (uint64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("allocation %q: not an offset", s)
	}
	return uint64(n), nil
}

// Name returns the name of the object of a range. node is set for a slice of a node only.
func Name(network, node, cidr string) string {
	name := normal(cidr)
	if node != "" {
		name = node + "-" + name
	}
	if network != "" {
		name = network + "-" + name
	}
	return name
}

// SliceNode returns the node whose slice a pool of that name and range is, if it is one of the
// network. The name of another network looks the same: the caller has to know whether there is such
// a node.
func SliceNode(network, name, cidr string) (string, bool) {
	node, ok := strings.CutSuffix(name, "-"+normal(cidr))
	if network != "" && ok {
		node, ok = strings.CutPrefix(node, network+"-")
	}
	return node, ok && node != ""
}

// ReservationName returns the name of the object that reserves an address over all pools of a
// network.
func ReservationName(network string, a netip.Addr) string {
	name := normal(a.String())
	if network != "" {
		name = network + "-" + name
	}
	return name
}

// ReservedAddr returns the address of ReservationName.
func ReservedAddr(network, name string) (netip.Addr, bool) {
	text := name
	if network != "" {
		var ok bool
		if text, ok = strings.CutPrefix(name, network+"-"); !ok {
			return netip.Addr{}, false
		}
	}
	a, err := netip.ParseAddr(strings.ReplaceAll(text, "-", ":"))
	return a, err == nil && a.Zone() == "" && ReservationName(network, a) == name
}

// normal makes a range or an address part of an object's name.
func normal(s string) string {
	if strings.HasSuffix(s, ":") {
		s += "0"
	}
	return strings.NewReplacer(":", "-", "/", "-").Replace(s)
}
