// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestPrivilegedRules(t *testing.T) {
	h := mustHandle(t, mustNS(t))
	before := must[[]Rule](t)(h.Rules(FamilyAll))
	if !slices.ContainsFunc(before, func(r Rule) bool { return r.Family == FamilyV6 && r.Table == TableMain && r.Priority == 32766 }) {
		t.Errorf("the rule of the main table is not among %v", before)
	}
	want := []Rule{
		{Family: FamilyV4, Src: netip.MustParsePrefix("10.1.0.2/32"), Table: 100},
		{Family: FamilyV6, Src: netip.MustParsePrefix("fd00::2/128"), Table: 1 << 30, Priority: 77},
	}
	for _, r := range want {
		ok(t, h.AddRule(r))
		if err := h.AddRule(r); r.Priority != 0 && !errors.Is(err, ErrExist) {
			t.Errorf("add %s again: %v, want ErrExist", r, err)
		}
	}
	var got []Rule
	for _, r := range must[[]Rule](t)(h.Rules(FamilyAll)) {
		if r.Src.IsValid() {
			got = append(got, r)
		}
	}
	got = slices.CompactFunc(got, func(a, b Rule) bool { return a.Src == b.Src }) // the first may be there twice
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
		cmpopts.IgnoreFields(Rule{}, "Priority")); d != "" {
		t.Errorf("rules (- want, + got):\n%s", d)
	}
	for _, r := range want {
		for h.DelRule(r) == nil { // until there is none
		}
		if err := h.DelRule(r); !errors.Is(err, ErrNotFound) {
			t.Errorf("delete %s again: %v, want ErrNotFound", r, err)
		}
	}
	if after := must[[]Rule](t)(h.Rules(FamilyAll)); len(after) != len(before) {
		t.Errorf("rules are left: %v", after)
	}
}
