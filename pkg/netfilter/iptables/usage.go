// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"slices"
	"strings"
)

// tableNames are the tables of iptables.
var tableNames = []string{"filter", "nat", "mangle", "raw", "security"}

// IsTable reports whether iptables-nft keeps a table of that name.
func IsTable(name string) bool { return slices.Contains(tableNames, name) }

// hooksOf are chains that a table of iptables has if it has any.
var hooksOf = map[string][]string{"filter": {"FORWARD", "INPUT"}, "nat": {"PREROUTING", "POSTROUTING"}, "mangle": {"PREROUTING"}, "raw": {"PREROUTING"}, "security": {"FORWARD"}}

// hints are chains that Kubernetes' components make in the variant that they
// use, for others to see.
var hints = []string{"KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"}

// IsHint reports whether the chain is a mark of Kubernetes on the variant that it uses.
func IsHint(chain string) bool { return slices.Contains(hints, chain) }

// Count counts the rules of all tables, and says whether one has a hint. With
// thirdParty it leaves out rules of CNI plugins: a choice must not speak for
// itself. A process for each table reads it. Tables without a tool to read them
// count nothing, as this variant cannot be the one to use.
func (t *Tables) Count(ctx context.Context, thirdParty bool) (n int, hint bool, err error) {
	for _, v6 := range []bool{false, true} {
		names := tableNames
		if t.variant == VariantLegacy {
			if names, err = t.env.LegacyTables(v6); err != nil {
				return n, hint, err
			}
		}
		for _, name := range names {
			if !t.mayHave(v6, name, hooksOf[name]...) {
				continue
			}
			have, err := t.read(ctx, v6, name)
			if err != nil {
				continue
			}
			n += have.count(thirdParty)
			hint = hint || slices.ContainsFunc(hints, have.has)
		}
	}
	return n, hint, nil
}

func (t table) count(thirdParty bool) (n int) {
	for chain, rules := range t.chains {
		for _, r := range rules {
			if !thirdParty || !ofPlugin(chain, r) {
				n++
			}
		}
	}
	return n
}

// ofPlugin reports that a CNI plugin made the rule.
func ofPlugin(chain, rule string) bool {
	return strings.HasPrefix(chain, "CNI-") || strings.Contains(rule, "-j CNI-") || strings.HasPrefix(comment(rule), guardComment("")) ||
		comment(rule) == commentAdmitted || comment(rule) == commentAnswers
}
