// SPDX-License-Identifier: Apache-2.0

// Package hostport has what a hostPort is for the datapath: Mapping, from the CNI's portMappings on, and Entry, the element of the map.
// pkg/hostport names hostPorts. It also has the typed views of the maps: the mappings, their allowlists and the ports that SNAT must not
// use. Only the loader writes them. A view does not own its map: the caller closes it.
package hostport

import (
	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/maps/cacheepoch"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
)

const (
	flagSNAT    = uint16(bpfgen.TypesSlHostportFlagSL_HP_SNAT)
	flagMasqAll = uint16(bpfgen.TypesSlHostportFlagSL_HP_MASQ_ALL)

	ifSource  = uint16(bpfgen.TypesSlHostportFlagSL_HP_COND_SRC)
	ifDest    = uint16(bpfgen.TypesSlHostportFlagSL_HP_COND_DST)
	ifIn      = uint16(bpfgen.TypesSlHostportFlagSL_HP_COND_IIF)
	notSource = uint16(bpfgen.TypesSlHostportFlagSL_HP_COND_NOT_SRC)
	notDest   = uint16(bpfgen.TypesSlHostportFlagSL_HP_COND_NOT_DST)
	notIn     = uint16(bpfgen.TypesSlHostportFlagSL_HP_COND_NOT_IIF)
)

// Map is the view of sl_hostports.
type Map struct {
	m     *bpfsys.Map
	epoch cacheepoch.Epoch
}

// New returns a view of m, whose changes e tells of.
func New(m *bpfsys.Map, e cacheepoch.Epoch) Map { return Map{m, e} }

// Put writes e, atomically, in place of what its key has. E2BIG: the map is full.
func (m Map) Put(e Entry) error {
	if err := bpfsys.Put(m.m, rawKey(e.Key), e.raw()); err != nil {
		return err
	}
	return m.epoch.Next()
}

// Get returns the entry of k; false when there is none.
func (m Map) Get(k Key) (Entry, bool, error) {
	raw, ok, err := bpfsys.Lookup[bpfgen.TypesSlHostport](m.m, rawKey(k))
	if !ok {
		return Entry{}, false, err
	}
	return decode(k, &raw), true, nil
}

// Delete removes k; missing is success.
func (m Map) Delete(k Key) error {
	if err := bpfsys.Remove(m.m, rawKey(k)); err != nil {
		return err
	}
	return m.epoch.Next()
}

// Each calls f with every entry until f returns false. It reads the whole map: O(hostPorts of the node).
func (m Map) Each(f func(Entry) bool) error {
	return codec.Each(m.m, func(k *bpfgen.TypesSlHostportKey, v *bpfgen.TypesSlHostport) bool {
		return f(decode(Key{HostIP: codec.FromAddr(k.Ip), Proto: k.Proto, Port: codec.Port(k.Port)}, v))
	})
}

// Len returns the number of entries.
func (m Map) Len() (int, error) {
	return codec.Count[bpfgen.TypesSlHostportKey, bpfgen.TypesSlHostport](m.m)
}

func rawKey(k Key) bpfgen.TypesSlHostportKey {
	return bpfgen.TypesSlHostportKey{Ip: codec.Addr(k.HostIP), Port: codec.Port(k.Port), Proto: k.Proto}
}

func (e Entry) raw() bpfgen.TypesSlHostport {
	raw := bpfgen.TypesSlHostport{
		Ip: codec.Addr(e.PodIP), Owner: e.Owner, Generation: e.Generation, Port: codec.Port(e.PodPort), Sources: e.Allowlist,
	}
	set := func(flag uint16, on bool) {
		if on {
			raw.Flags |= flag
		}
	}
	set(flagSNAT, e.SNAT)
	set(flagMasqAll, e.MasqAll)
	c := e.Conditions
	if c.Source.IsValid() {
		set(ifSource, true)
		set(notSource, c.NotSource)
		raw.Src, raw.SrcPrefix = codec.Addr(c.Source.Addr()), codec.PrefixLen(c.Source)
	}
	if c.Dest.IsValid() {
		set(ifDest, true)
		set(notDest, c.NotDest)
		raw.Dst, raw.DstPrefix = codec.Addr(c.Dest.Addr()), codec.PrefixLen(c.Dest)
	}
	if c.InIfindex != 0 {
		set(ifIn, true)
		set(notIn, c.NotIn)
		raw.Ifindex = c.InIfindex
	}
	return raw
}

func decode(k Key, v *bpfgen.TypesSlHostport) Entry {
	has := func(flag uint16) bool { return v.Flags&flag != 0 }
	var c Conditions
	if has(ifSource) {
		c.Source, c.NotSource = codec.FromPrefix(codec.FromAddr(v.Src), v.SrcPrefix), has(notSource)
	}
	if has(ifDest) {
		c.Dest, c.NotDest = codec.FromPrefix(codec.FromAddr(v.Dst), v.DstPrefix), has(notDest)
	}
	if has(ifIn) {
		c.InIfindex, c.NotIn = v.Ifindex, has(notIn)
	}
	return Entry{
		Mapping: Mapping{
			Key: k, PodIP: codec.FromAddr(v.Ip), PodPort: codec.Port(v.Port), SNAT: has(flagSNAT), MasqAll: has(flagMasqAll), Conditions: c,
		},
		Owner: v.Owner, Generation: v.Generation, Allowlist: v.Sources,
	}
}
