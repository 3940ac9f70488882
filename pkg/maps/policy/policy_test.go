// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"testing"

	"github.com/sluice-cni/sluice/pkg/policy"
)

// The ids that a policy may have follow from its rules, whatever was counted, and none is 0.
func TestPolicyIDs(t *testing.T) {
	t.Parallel()
	ids := func(p *policy.Policy, count uint64) []uint16 {
		v, err := FromPolicy(p)
		if err != nil {
			t.Fatal(err)
		}
		v.IngressDefault, v.Rules[0].Hits = count, count
		return slices.Collect(Policy{Rules: v}.ids())
	}
	isolated := &policy.Policy{Mode: policy.ModeIsolated, DenyIngress: true}
	first := ids(isolated, 0)
	if len(first) != lastID || slices.Contains(first, 0) {
		t.Errorf("%d ids, the first is %d", len(first), first[0])
	}
	if again := ids(isolated, 7); !slices.Equal(first, again) {
		t.Errorf("%v after packets were counted, %v before", again, first)
	}
	other := *isolated
	other.DenyEgress = true
	if slices.Equal(first, ids(&other, 0)) {
		t.Error("other rules have the same ids")
	}
	sorted := slices.Sorted(slices.Values(first))
	if len(slices.Compact(sorted)) != lastID {
		t.Error("an id twice")
	}
}
