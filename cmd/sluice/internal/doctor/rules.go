// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/netfilter"
)

// wantedRules is what an attachment record says that a backend without eBPF has.
type wantedRules struct {
	kind    netfilter.Kind
	backend string
	addr    netip.Addr
}

// tableNames are the backends whose rules can be listed.
var tableNames = []string{netfilter.NameNFTables, netfilter.NameIPTablesNFT, netfilter.NameIPTablesLegacy}

// rulesOf reads a record. Sections of an ADD that has not ended, or that cannot be
// read, want nothing.
func rulesOf(r *attachments.Record) []wantedRules {
	var out []wantedRules
	add := func(kind netfilter.Kind, backend string, addr netip.Addr) {
		if addr.IsValid() && slices.Contains(tableNames, backend) {
			out = append(out, wantedRules{kind, backend, addr})
		}
	}
	for plugin, s := range r.Plugins {
		if s.State != attachments.StateDone {
			continue
		}
		switch plugin {
		case "portmap":
			var d struct {
				Ports []struct {
					PodIP   netip.Addr
					Backend string
				}
			}
			if json.Unmarshal(s.Data, &d) == nil {
				for _, p := range d.Ports {
					add(netfilter.KindPorts, p.Backend, p.PodIP)
				}
			}
		case "firewall":
			var d struct {
				Backend string
				Addrs   []netip.Addr
			}
			if json.Unmarshal(s.Data, &d) == nil {
				for _, a := range d.Addrs {
					add(netfilter.KindAdmission, d.Backend, a)
				}
			}
		default: // a main plugin that masquerades
			var d struct {
				Masquerade string
				Addrs      []netip.Prefix
			}
			if json.Unmarshal(s.Data, &d) == nil {
				for _, a := range d.Addrs {
					add(netfilter.KindMasquerade, d.Masquerade, a.Addr())
				}
			}
		}
	}
	return out
}

// has reports whether a rule set is about the address and does what is wanted.
func (w wantedRules) has(sets []netfilter.RuleSet) bool {
	return slices.ContainsFunc(sets, func(s netfilter.RuleSet) bool {
		return s.Backend == w.backend && s.Kind == w.kind && slices.Contains(s.Addrs, w.addr)
	})
}

// checkRules compares the records with the rules: another program may have flushed
// the tables. CHECK of a pod compares more.
func checkRules(f *Facts) []Finding {
	var out []Finding
	for _, r := range f.Records {
		missing := make(map[string][]string)
		for _, w := range rulesOf(r) {
			text := fmt.Sprintf("%s of %s has no rules of %s", w.kind, r.ID, w.backend)
			if addr := w.addr.String(); !f.IsLeft(r) && !w.has(f.RuleSets) && !slices.Contains(missing[text], addr) {
				missing[text] = append(missing[text], addr)
			}
		}
		for _, text := range slices.Sorted(maps.Keys(missing)) {
			slices.Sort(missing[text])
			out = append(out, Finding{"netfilter-rules", Problem, text + " for " + strings.Join(missing[text], ", "),
				"find out what flushed the tables, then delete and add the pod again: an ADD writes the rules, a record alone does not say them all"})
		}
	}
	return out
}
