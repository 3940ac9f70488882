// SPDX-License-Identifier: Apache-2.0

// Package hostport is the typed view of the published ports and of the ports that masquerading leaves alone. Only the loader
// writes them. A view does not own its map: closing is the caller's.
package hostport

import (
	"fmt"
	"net/netip"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/maps/cacheepoch"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
)

// Flags of an entry.
const (
	FlagSNAT    = uint16(bpfgen.TypesSlHostportFlagSL_HP_SNAT)
	FlagMasqAll = uint16(bpfgen.TypesSlHostportFlagSL_HP_MASQ_ALL)

	ifSource  = uint16(bpfgen.TypesSlHostportFlagSL_HP_COND_SRC)
	ifDest    = uint16(bpfgen.TypesSlHostportFlagSL_HP_COND_DST)
	ifIn      = uint16(bpfgen.TypesSlHostportFlagSL_HP_COND_IIF)
	notSource = uint16(bpfgen.TypesSlHostportFlagSL_HP_COND_NOT_SRC)
	notDest   = uint16(bpfgen.TypesSlHostportFlagSL_HP_COND_NOT_DST)
	notIn     = uint16(bpfgen.TypesSlHostportFlagSL_HP_COND_NOT_IIF)
)

// Key names a published port. An unspecified HostIP stands for every address of the node in its family.
type Key struct {
	HostIP netip.Addr
	Proto  uint8
	Port   uint16
}

// String returns address:port/protocol.
func (k Key) String() string {
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(k.HostIP, k.Port), protoName(k.Proto))
}

func protoName(p uint8) string {
	switch p {
	case 6:
		return "tcp"
	case 17:
		return "udp"
	case 132:
		return "sctp"
	}
	return fmt.Sprintf("protocol %d", p)
}

func (k Key) raw() bpfgen.TypesSlHostportKey {
	return bpfgen.TypesSlHostportKey{Ip: codec.Addr(k.HostIP), Port: codec.Port(k.Port), Proto: k.Proto}
}

// Value is where a published port leads and whose it is.
type Value struct {
	PodIP   netip.Addr
	PodPort uint16
	Owner   uint64
	Gen     uint64 // changes with every replacement; flows made by another generation are dead
	Flags   uint16 // FlagSNAT, FlagMasqAll
	Sources uint64 // list of allowed sources, 0: all
	Conditions
}

// Conditions narrow what an entry is for. Zero ones always hold.
type Conditions struct {
	Source, Dest                 netip.Prefix
	In                           uint32 // ifindex
	NotSource, NotDest, NotIndex bool   // the other way round
}

// Map is the view of sl_hostports.
type Map struct {
	m     *bpfsys.Map
	epoch cacheepoch.Epoch
}

// New returns a view of m, whose changes e tells of.
func New(m *bpfsys.Map, e cacheepoch.Epoch) Map { return Map{m, e} }

// Put makes v the value of k, atomically. E2BIG: the map is full.
func (m Map) Put(k Key, v Value) error {
	raw := bpfgen.TypesSlHostport{
		Ip: codec.Addr(v.PodIP), Owner: v.Owner, Generation: v.Gen, Port: codec.Port(v.PodPort), Flags: v.Flags, Sources: v.Sources,
	}
	v.Conditions.encode(&raw)
	if err := bpfsys.Put(m.m, k.raw(), raw); err != nil {
		return err
	}
	return m.epoch.Next()
}

// Get returns the value of k; false when there is none.
func (m Map) Get(k Key) (Value, bool, error) {
	raw, ok, err := bpfsys.Lookup[bpfgen.TypesSlHostport](m.m, k.raw())
	if !ok {
		return Value{}, false, err
	}
	return decode(&raw), true, nil
}

// Delete removes k; missing is success.
func (m Map) Delete(k Key) error {
	if err := bpfsys.Remove(m.m, k.raw()); err != nil {
		return err
	}
	return m.epoch.Next()
}

// Each calls f with every entry until f returns false.
func (m Map) Each(f func(Key, Value) bool) error {
	return codec.Each(m.m, func(k *bpfgen.TypesSlHostportKey, v *bpfgen.TypesSlHostport) bool {
		return f(Key{HostIP: codec.FromAddr(k.Ip), Proto: k.Proto, Port: codec.Port(k.Port)}, decode(v))
	})
}

// Len returns the number of published ports.
func (m Map) Len() (int, error) {
	return codec.Count[bpfgen.TypesSlHostportKey, bpfgen.TypesSlHostport](m.m)
}

func decode(v *bpfgen.TypesSlHostport) Value {
	return Value{
		PodIP: codec.FromAddr(v.Ip), PodPort: codec.Port(v.Port), Owner: v.Owner, Gen: v.Generation,
		Flags: v.Flags & (FlagSNAT | FlagMasqAll), Sources: v.Sources, Conditions: decodeConditions(v),
	}
}

func (c Conditions) encode(raw *bpfgen.TypesSlHostport) {
	set := func(flag uint16, on bool) {
		if on {
			raw.Flags |= flag
		}
	}
	if c.Source.IsValid() {
		raw.Flags |= ifSource
		raw.Src, raw.SrcPrefix = codec.Addr(c.Source.Addr()), codec.PrefixLen(c.Source)
		set(notSource, c.NotSource)
	}
	if c.Dest.IsValid() {
		raw.Flags |= ifDest
		raw.Dst, raw.DstPrefix = codec.Addr(c.Dest.Addr()), codec.PrefixLen(c.Dest)
		set(notDest, c.NotDest)
	}
	if c.In != 0 {
		raw.Flags |= ifIn
		raw.Ifindex = c.In
		set(notIn, c.NotIndex)
	}
}

func decodeConditions(v *bpfgen.TypesSlHostport) Conditions {
	var c Conditions
	if v.Flags&ifSource != 0 {
		c.Source, c.NotSource = codec.FromPrefix(codec.FromAddr(v.Src), v.SrcPrefix), v.Flags&notSource != 0
	}
	if v.Flags&ifDest != 0 {
		c.Dest, c.NotDest = codec.FromPrefix(codec.FromAddr(v.Dst), v.DstPrefix), v.Flags&notDest != 0
	}
	if v.Flags&ifIn != 0 {
		c.In, c.NotIndex = v.Ifindex, v.Flags&notIn != 0
	}
	return c
}
