// SPDX-License-Identifier: Apache-2.0

// Package policy is the typed view of the firewall's maps: policies by id, each with rules, NetworkPolicies or both, and the pod devices
// that are under one. Programs
// count in a policy's rules, with atomic adds; everything else is written by the loader only. Views do not own their maps.
package policy

import (
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"math/bits"
	"net/netip"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/ipproto"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
	"github.com/sluice-cni/sluice/pkg/maps/networkpolicy"
	"github.com/sluice-cni/sluice/pkg/policy"
)

// Policy is what an id stands for. Policies of the same meaning are equal but for the counters.
type Policy struct {
	Rules   *Value                // nil: none
	Network *networkpolicy.Policy // nil: NetworkPolicy restricts nothing
}

// Empty reports whether nothing is restricted, so that no id is needed.
func (p Policy) Empty() bool { return p.Rules == nil && p.Network == nil }

// Same reports whether two policies differ in nothing but what was counted.
func (p Policy) Same(q Policy) bool {
	if (p.Rules == nil) != (q.Rules == nil) || (p.Network == nil) != (q.Network == nil) {
		return false
	}
	return (p.Rules == nil || p.Rules.Same(q.Rules)) && (p.Network == nil || *p.Network == *q.Network)
}

// Mode returns the policy's ingressPolicy.
func (p Policy) Mode() policy.Mode {
	if p.Rules == nil {
		return policy.ModeOpen
	}
	return p.Rules.Mode()
}

// Value is a policy's rules as programs read them.
type Value bpfgen.TypesSlPolicy

// Flags of a policy and of a device under it.
const (
	flagDenyIngress = uint32(bpfgen.TypesSlPolicyFlagSL_POLICY_DENY_INGRESS)
	flagDenyEgress  = uint32(bpfgen.TypesSlPolicyFlagSL_POLICY_DENY_EGRESS)
	flagSameBridge  = uint32(bpfgen.TypesSlPolicyFlagSL_POLICY_SAME_BRIDGE)
	flagIsolated    = uint32(bpfgen.TypesSlPolicyFlagSL_POLICY_ISOLATED)
	flagNoRules     = uint32(bpfgen.TypesSlPolicyFlagSL_POLICY_NO_RULES)
	flagNetwork     = uint32(bpfgen.TypesSlPolicyFlagSL_POLICY_NETWORK)
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

// ids are those that p may have, in the order in which they are tried. Equal policies have the same ones.
func (p Policy) ids() iter.Seq[uint16] {
	h := fnv.New64a()
	if p.Rules != nil {
		c := *p.Rules
		c.clear()
		_, _ = h.Write(unsafe.Slice((*byte)(unsafe.Pointer(&c)), unsafe.Sizeof(c)))
	}
	if p.Network != nil {
		_, _ = h.Write(unsafe.Slice((*byte)(unsafe.Pointer(p.Network)), unsafe.Sizeof(*p.Network)))
	}
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

// Map is the view of sl_policies and sl_np_policies.
type Map struct{ rules, network *bpfsys.Map }

// New returns a view of sl_policies and sl_np_policies. Without the second, nil, no policy has a Network.
func New(rules, network *bpfsys.Map) Map { return Map{rules, network} }

// Put writes a policy under an id that no device has. E2BIG: a map is full.
func (m Map) Put(id uint16, p Policy) error {
	if p.Network != nil {
		if err := bpfsys.Put(m.network, uint32(id), *p.Network); err != nil {
			return err
		}
	}
	if p.Rules == nil {
		return nil
	}
	return bpfsys.Put(m.rules, uint32(id), *p.Rules)
}

// Get returns the policy of that id, an empty one when there is none.
func (m Map) Get(id uint16) (p Policy, err error) {
	v, ok, err := bpfsys.Lookup[Value](m.rules, uint32(id))
	if err != nil {
		return p, err
	}
	if ok {
		p.Rules = &v
	}
	if m.network == nil {
		return p, nil
	}
	n, ok, err := bpfsys.Lookup[networkpolicy.Policy](m.network, uint32(id))
	if ok {
		p.Network = &n
	}
	return p, err
}

// Delete removes a policy; missing is success.
func (m Map) Delete(id uint16) error {
	err := bpfsys.Remove(m.rules, uint32(id))
	if m.network == nil {
		return err
	}
	return errors.Join(err, bpfsys.Remove(m.network, uint32(id)))
}

// IDs returns the ids that are there, in order.
func (m Map) IDs() ([]uint16, error) {
	var ids []uint16
	for _, one := range []*bpfsys.Map{m.rules, m.network} {
		if one == nil {
			continue
		}
		keys, err := bpfsys.Keys[uint32](one)
		if err != nil {
			return nil, err
		}
		for _, k := range keys {
			ids = append(ids, uint16(k))
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// Place returns the id for p, and whether the policy under it is p already. The cost does not depend on the policies in the map, unless
// a tenant has chosen rules that take the ids of p: then all are read. One that is under another id, by such a walk or by a former build,
// is not found once an id of p is free: p is there twice then.
func (m Map) Place(p Policy) (id uint16, there bool, err error) {
	probes := 0
	for id := range p.ids() {
		if probes++; probes > maxProbes {
			break
		}
		have, err := m.Get(id)
		if err != nil {
			return 0, false, err
		}
		if have.Empty() || have.Same(p) {
			return id, !have.Empty(), nil
		}
	}
	return m.placeByWalk(p)
}

// placeByWalk does what Place does by all policies of the map.
func (m Map) placeByWalk(p Policy) (id uint16, there bool, err error) {
	ids, err := m.IDs()
	if err != nil {
		return 0, false, err
	}
	taken := make(map[uint16]bool, len(ids))
	for _, id := range ids {
		have, err := m.Get(id)
		if err != nil {
			return 0, false, err
		}
		if have.Same(p) {
			return id, true, nil
		}
		taken[id] = true
	}
	for id := range p.ids() {
		if !taken[id] {
			return id, false, nil
		}
	}
	return 0, false, unix.E2BIG
}

// Policed is a pod device under a policy.
type Policed bpfgen.TypesSlDevPolicy

// NewPoliced returns the entry of a device of owner whose bridge, or host end if it has none, is group, under the policy p with that id.
func NewPoliced(owner uint64, group uint32, id uint16, p Policy) *Policed {
	flags := modeFlags(p.Mode())
	if p.Rules == nil {
		flags |= flagNoRules
	}
	if p.Network != nil {
		flags |= flagNetwork
	}
	return &Policed{Owner: owner, Group: group, Policy: id, Flags: uint16(flags)}
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
