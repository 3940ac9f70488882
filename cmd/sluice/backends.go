// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/netfilter"
)

// choiceView is which netfilter tables were chosen for what was asked for.
type choiceView struct {
	Asked   string    `json:"asked"` // auto or iptables
	Backend string    `json:"backend"`
	Reason  string    `json:"reason"`
	Decided time.Time `json:"decided"`
}

func newChoiceViews(choices map[string]netfilter.Choice) []choiceView {
	out := []choiceView{}
	for _, asked := range slices.Sorted(maps.Keys(choices)) {
		c := choices[asked]
		out = append(out, choiceView{asked, c.Name, c.Reason, c.Decided})
	}
	return out
}

// usedBy counts attachments by what they want and which backend does it.
type usedBy map[string]map[string]int

// newUsedBy reads the sections of all records. What it cannot read it leaves out.
func newUsedBy(records []*attachments.Record) usedBy {
	used := usedBy{}
	count := func(feature, backend string) {
		if backend == "" {
			return
		}
		if used[feature] == nil {
			used[feature] = map[string]int{}
		}
		used[feature][backend]++
	}
	for _, r := range records {
		var ports struct {
			Ports []struct{ Backend string }
		}
		if _, err := r.Section("portmap", &ports); err == nil {
			seen := map[string]bool{}
			for _, p := range ports.Ports {
				if !seen[p.Backend] {
					seen[p.Backend] = true
					count("portmap", p.Backend)
				}
			}
		}
		var fw struct{ Backend string }
		if _, err := r.Section("firewall", &fw); err == nil {
			count("firewall", fw.Backend)
		}
		var bw struct{ Backend string }
		if _, err := r.Section("bandwidth", &bw); err == nil {
			count("bandwidth", bw.Backend)
		}
		for _, plugin := range []string{"bridge", "ptp"} {
			var m struct{ Masquerade string }
			if _, err := r.Section(plugin, &m); err == nil {
				count("masquerade", m.Masquerade)
			}
		}
	}
	return used
}

// String is "firewall: 3 ebpf; portmap: 2 ebpf, 1 iptables-nft".
func (u usedBy) String() string {
	features := make([]string, 0, len(u))
	for _, f := range slices.Sorted(maps.Keys(u)) {
		names := make([]string, 0, len(u[f]))
		for _, name := range slices.Sorted(maps.Keys(u[f])) {
			names = append(names, fmt.Sprintf("%d %s", u[f][name], name))
		}
		features = append(features, f+": "+strings.Join(names, ", "))
	}
	return strings.Join(features, "; ")
}

// statusBackends says what is used besides eBPF, why and since when, and how
// many attachments each backend has. A node with eBPF alone has nothing to tell.
func (a *app) statusBackends(v statusView) error {
	var errs []error
	for _, c := range v.Choices {
		errs = append(errs, a.field("netfilter", fmt.Sprintf("%s for %s: %s (decided %s)", c.Backend, c.Asked, c.Reason, c.Decided.Format(time.RFC3339)), a.colours.yellow))
	}
	others := slices.ContainsFunc(slices.Collect(maps.Values(v.UsedBy)), func(names map[string]int) bool {
		return len(names) > 1 || len(names) == 1 && names["ebpf"] == 0
	})
	if others {
		errs = append(errs, a.field("used by", v.UsedBy.String(), a.colours.plain))
	}
	return errors.Join(errs...)
}
