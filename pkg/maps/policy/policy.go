// SPDX-License-Identifier: Apache-2.0

// Package policy is the typed view of the firewall's maps: policies by id, and the pod devices that are under one. Programs
// count in a policy's rules, with atomic adds; everything else is written by the loader only. Views do not own their maps.
package policy

import (
	"fmt"
	"hash/fnv"
	"iter"
	"math/bits"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/ipproto"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
	"github.com/sluice-cni/sluice/pkg/policy"
)

// Value is a policy as programs read it. Policies of the same meaning are equal but for the counters.
type Value bpfgen.TypesSlPolicy

// Flags of a policy and of a device under it.
const (
	flagDenyIngress = uint32(bpfgen.TypesSlPolicyFlagSL_POLICY_DENY_INGRESS)
	flagDenyEgress  = uint32(bpfgen.TypesSlPolicyFlagSL_POLICY_DENY_EGRESS)
	flagSameBridge  = uint32(bpfgen.TypesSlPolicyFlagSL_POLICY_SAME_BRIDGE)
	flagIsolated    = uint32(bpfgen.TypesSlPolicyFlagSL_POLICY_ISOLATED)
)

// anyPort is a port_max that also matches what has no ports.
const anyPort = 1<<32 - 1

// FromPolicy returns p as programs read it, counters zero.
func FromPolicy(p *policy.Policy) (*Value, error) {
	v := &Value{Flags: modeFlags(p.Mode)}
	if p.DenyIngress {
		v.Flags |= flagDenyIngress
	}
	if p.DenyEgress {
		v.Flags |= flagDenyEgress
	}
	in, out := policy.Entries(p.Ingress), policy.Entries(p.Egress)
	if len(in)+len(out) > len(v.Rules) {
		return nil, fmt.Errorf("a policy of %d entries: at most %d fit", len(in)+len(out), len(v.Rules))
	}
	v.IngressCount, v.EgressCount = uint16(len(in)), uint16(len(out))
	for i, e := range append(in, out...) {
		r := &v.Rules[i]
		r.Number = uint8(e.Number)
		r.Proto = e.Proto
		if e.Proto != 0 {
			r.ProtoMask = 0xff
		}
		r.Flags = ruleFlags(e)
		r.PortMax = anyPort
		if e.Ports != nil {
			r.PortMin, r.PortMax = uint32(e.Ports.First), uint32(e.Ports.Last)
		}
		if e.Prefix.IsValid() {
			r.Ip = codec.Addr(e.Prefix.Addr())
			for bit := range int(codec.PrefixLen(e.Prefix)) {
				r.Mask[bit/8] |= 0x80 >> (bit % 8)
			}
		}
	}
	return v, nil
}

func modeFlags(m policy.Mode) uint32 {
	switch m {
	case policy.ModeSameBridge:
		return flagSameBridge
	case policy.ModeIsolated:
		return flagIsolated
	}
	return 0
}

func modeOf(flags uint32) policy.Mode {
	switch {
	case flags&flagSameBridge != 0:
		return policy.ModeSameBridge
	case flags&flagIsolated != 0:
		return policy.ModeIsolated
	}
	return policy.ModeOpen
}

func ruleFlags(e policy.Entry) uint8 {
	var f bpfgen.TypesSlRuleFlag
	if e.Allow {
		f |= bpfgen.TypesSlRuleFlagSL_RULE_ALLOW
	}
	if e.V4 {
		f |= bpfgen.TypesSlRuleFlagSL_RULE_V4
	}
	if e.V6 {
		f |= bpfgen.TypesSlRuleFlagSL_RULE_V6
	}
	return uint8(f)
}

// Same reports whether two policies differ in nothing but what was counted.
func (v *Value) Same(w *Value) bool {
	a, b := *v, *w
	a.clear()
	b.clear()
	return a == b
}

const (
	// maxProbes is how many ids of a policy are looked up one by one. By chance a map with a few hundred policies never has them all.
	maxProbes = 32
	lastID    = 1<<16 - 1
)

// ids are those that v may have, in the order in which they are tried. The same rules have the same ones.
func (v *Value) ids() iter.Seq[uint16] {
	c := *v
	c.clear()
	h := fnv.New64a()
	_, _ = h.Write(unsafe.Slice((*byte)(unsafe.Pointer(&c)), unsafe.Sizeof(c)))
	first := h.Sum64()
	return func(yield func(uint16) bool) {
		for i := range uint64(lastID) {
			if !yield(uint16(1 + (first+i)%lastID)) {
				return
			}
		}
	}
}

func (v *Value) clear() {
	v.IngressDefault, v.EgressDefault = 0, 0
	for i := range v.Rules {
		v.Rules[i].Hits = 0
	}
}

// Line is one entry of a policy with what it decided. The last line of a direction is its default, number -1.
type Line struct {
	Allow    bool
	Prefix   netip.Prefix // invalid: any
	Protocol string
	Ports    *policy.PortRange
	Number   int
	Hits     uint64 // connections it allowed, packets it denied
}

// Mode returns the policy's ingressPolicy.
func (v *Value) Mode() policy.Mode { return modeOf(v.Flags) }

// Ingress returns the lines for what others open toward the pod.
func (v *Value) Ingress() []Line {
	return append(v.lines(0, int(v.IngressCount)), Line{Allow: v.Flags&flagDenyIngress == 0, Protocol: "any", Number: -1, Hits: v.IngressDefault})
}

// Egress returns the lines for what the pod opens.
func (v *Value) Egress() []Line {
	return append(v.lines(int(v.IngressCount), int(v.EgressCount)),
		Line{Allow: v.Flags&flagDenyEgress == 0, Protocol: "any", Number: -1, Hits: v.EgressDefault})
}

func (v *Value) lines(first, n int) []Line {
	out := make([]Line, 0, n+1)
	for i := first; i < min(first+n, len(v.Rules)); i++ {
		r := &v.Rules[i]
		l := Line{
			Allow: r.Flags&uint8(bpfgen.TypesSlRuleFlagSL_RULE_ALLOW) != 0, Protocol: protocolName(r.Proto),
			Number: int(r.Number), Hits: r.Hits,
		}
		if r.PortMax != anyPort {
			l.Ports = &policy.PortRange{First: uint16(r.PortMin), Last: uint16(r.PortMax)}
		}
		ones := 0
		for _, b := range r.Mask {
			ones += bits.OnesCount8(b)
		}
		if ones > 0 {
			l.Prefix = codec.FromPrefix(codec.FromAddr(r.Ip), uint8(ones))
		}
		out = append(out, l)
	}
	return out
}

func protocolName(n uint8) string {
	switch n {
	case 0:
		return "any"
	case unix.IPPROTO_ICMPV6:
		return "icmpv6"
	}
	return ipproto.Name(n)
}

// Map is the view of sl_policies.
type Map struct{ m *bpfsys.Map }

// New returns a view of m.
func New(m *bpfsys.Map) Map { return Map{m} }

// Put writes a policy under an id that no device has. E2BIG: the map is full.
func (m Map) Put(id uint16, v *Value) error { return bpfsys.Put(m.m, uint32(id), *v) }

// Get returns the policy of that id; false when there is none.
func (m Map) Get(id uint16) (*Value, bool, error) {
	v, ok, err := bpfsys.Lookup[Value](m.m, uint32(id))
	if !ok {
		return nil, false, err
	}
	return &v, true, nil
}

// Delete removes a policy; missing is success.
func (m Map) Delete(id uint16) error { return bpfsys.Remove(m.m, uint32(id)) }

// IDs returns the ids that are there.
func (m Map) IDs() ([]uint16, error) {
	keys, err := bpfsys.Keys[uint32](m.m)
	ids := make([]uint16, len(keys))
	for i, k := range keys {
		ids[i] = uint16(k)
	}
	return ids, err
}

// Place returns the id for v, and whether the policy under it is v already. The cost does not depend on the policies in the map, unless
// a tenant has chosen rules that take the ids of v: then all are read. One that is under another id, by such a walk or by a former build,
// is not found once an id of v is free: v is there twice then.
func (m Map) Place(v *Value) (id uint16, there bool, err error) {
	probes := 0
	for id := range v.ids() {
		if probes++; probes > maxProbes {
			break
		}
		have, ok, err := m.Get(id)
		if err != nil {
			return 0, false, err
		}
		if !ok || have.Same(v) {
			return id, ok, nil
		}
	}
	return m.placeByWalk(v)
}

// placeByWalk does what Place does by all policies of the map.
func (m Map) placeByWalk(v *Value) (id uint16, there bool, err error) {
	ids, err := m.IDs()
	if err != nil {
		return 0, false, err
	}
	taken := make(map[uint16]bool, len(ids))
	for _, id := range ids {
		have, ok, err := m.Get(id)
		if err != nil {
			return 0, false, err
		}
		if ok && have.Same(v) {
			return id, true, nil
		}
		taken[id] = true
	}
	for id := range v.ids() {
		if !taken[id] {
			return id, false, nil
		}
	}
	return 0, false, unix.E2BIG
}

// Policed is a pod device under a policy.
type Policed bpfgen.TypesSlDevPolicy

// NewPoliced returns the entry of a device of owner whose bridge, or host end if it has none, is group, under the policy id.
func NewPoliced(owner uint64, group uint32, id uint16, m policy.Mode) *Policed {
	return &Policed{Owner: owner, Group: group, Policy: id, Flags: uint16(modeFlags(m))}
}

// Mode returns the device's ingressPolicy.
func (p *Policed) Mode() policy.Mode { return modeOf(uint32(p.Flags)) }

// Devices is the view of sl_dev_policy, by ifindex of the host end or own.Key.
type Devices struct{ m *bpfsys.Map }

// NewDevices returns a view of m.
func NewDevices(m *bpfsys.Map) Devices { return Devices{m} }

// Put writes the entry of a device. E2BIG: the map is full.
func (d Devices) Put(key uint32, v *Policed) error { return bpfsys.Put(d.m, key, *v) }

// Get returns the entry of a device; false when it is under no policy.
func (d Devices) Get(key uint32) (Policed, bool, error) {
	return bpfsys.Lookup[Policed](d.m, key)
}

// Delete removes the entry of a device; missing is success.
func (d Devices) Delete(key uint32) error { return bpfsys.Remove(d.m, key) }

// All returns every device.
func (d Devices) All() (map[uint32]Policed, error) {
	all := make(map[uint32]Policed)
	err := codec.Each(d.m, func(k *uint32, v *Policed) bool {
		all[*k] = *v
		return true
	})
	return all, err
}
