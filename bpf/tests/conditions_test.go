// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"net/netip"
	"testing"

	"github.com/sluice-cni/sluice/pkg/maps/hostport"
)

func far(family int) netip.Addr { return pick(family, far4, far6) }

// netOf is the network of an address in the lab's plan.
func netOf(a netip.Addr) netip.Prefix {
	p := netip.PrefixFrom(a, 48)
	if a.Is4() {
		p = netip.PrefixFrom(a, 24)
	}
	return p.Masked()
}

// A packet that does not meet a mapping's conditions is none of the mapping's.
func TestPrivilegedHostPortConditions(t *testing.T) {
	fx := newFixture(t, nil)
	tests := []struct {
		name string
		c    func(w *walk, family int) hostport.Conditions
		met  bool
	}{
		{"source", func(_ *walk, f int) hostport.Conditions { return hostport.Conditions{Source: netOf(client(f))} }, true},
		{"other source", func(_ *walk, f int) hostport.Conditions { return hostport.Conditions{Source: netOf(far(f))} }, false},
		{"not source", func(_ *walk, f int) hostport.Conditions {
			return hostport.Conditions{Source: netOf(client(f)), NotSource: true}
		}, false},
		{"not other source", func(_ *walk, f int) hostport.Conditions {
			return hostport.Conditions{Source: netOf(far(f)), NotSource: true}
		}, true},
		{"destination", func(_ *walk, f int) hostport.Conditions { return hostport.Conditions{Dest: netOf(upl0.addr(f))} }, true},
		{"not destination", func(_ *walk, f int) hostport.Conditions {
			return hostport.Conditions{Dest: netOf(upl0.addr(f)), NotDest: true}
		}, false},
		{"device", func(w *walk, _ int) hostport.Conditions {
			return hostport.Conditions{InIfindex: uint32(w.index(upl0.name))}
		}, true},
		{"other device", func(w *walk, _ int) hostport.Conditions {
			return hostport.Conditions{InIfindex: uint32(w.index(upl1.name))}
		}, false},
		{"not device", func(w *walk, _ int) hostport.Conditions {
			return hostport.Conditions{InIfindex: uint32(w.index(upl0.name)), NotIn: true}
		}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			hostPortCases(t, fx, func(w *walk, family, proto int) {
				m := mapping(family, proto, podA)
				m.conditions = tt.c(w, family)
				w.publish(m)
				j := w.toHostPort(family, proto, podA)
				if !tt.met {
					j.ignored("S")
					return
				}
				j.in("S")
				j.out("SA")
			})
		})
	}
}

// Who is in the list gets through, in its own family only; another list asks again.
func TestPrivilegedHostPortSources(t *testing.T) {
	fx := newFixture(t, nil)
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		m := mapping(family, proto, podA)
		m.sources = []netip.Prefix{netOf(far(family)), netOf(client(family))}
		w.publish(m)
		j := w.toHostPort(family, proto, podA)
		j.in("S")
		j.out("SA")
		j.inFast("PA")
		// The other family's whole space is not this one's.
		m.sources, m.gen = []netip.Prefix{netip.PrefixFrom(unspecified(10-family), 0)}, m.gen+1
		w.publish(m)
		f := j.outside.rx("PA")
		f.srcMAC, f.dstMAC = upl0.router, upl0.mac
		w.step(uplIngress, upl0.name, f.bytes(t), wantDrop(reasonSource, podA))
	})
}
