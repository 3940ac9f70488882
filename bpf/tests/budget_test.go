// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"encoding/json"
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write the files in testdata anew")

const budgetFile = "testdata/instructions.json"

// budget is what a program may cost: instructions in the object (the same
// everywhere for one compiler) and instructions the verifier walks (which differs
// from kernel to kernel). Both are what it was when the file was written and a quarter.
type budget struct {
	Object   int `json:"object"`
	Verified int `json:"verified"`
}

func (b budget) within(limit budget) bool {
	return b.Object <= limit.Object && b.Verified <= limit.Verified
}

// A program that grows by more than a quarter is a decision: run the test with -update to take it.
func TestPrivilegedInstructions(t *testing.T) {
	o := mustLoad(t, loadOptions{})
	cost := map[string]budget{}
	for _, part := range parts {
		spec, err := part.load()
		if err != nil {
			t.Fatal(err)
		}
		info, err := (*part.into(o)).Info()
		if err != nil {
			t.Fatal(err)
		}
		verified, ok := info.VerifiedInstructions()
		if !ok {
			t.Log("this kernel does not tell how much it verified (5.16)")
		}
		cost[part.name] = budget{len(spec.Programs[part.name].Instructions), int(verified)}
	}
	if *update {
		writeBudget(t, cost)
	}
	raw, err := os.ReadFile(budgetFile)
	if err != nil {
		t.Fatal(err)
	}
	var limits map[string]budget
	if err := json.Unmarshal(raw, &limits); err != nil {
		t.Fatal(err)
	}
	for name, c := range cost {
		limit, ok := limits[name]
		if !ok {
			t.Errorf("%s has no budget in %s", name, budgetFile)
		}
		if !c.within(limit) {
			t.Errorf("%s: %+v, allowed are %+v", name, c, limit)
		}
	}
}

func writeBudget(t *testing.T, cost map[string]budget) {
	t.Helper()
	limits := map[string]budget{}
	for name, c := range cost {
		limits[name] = budget{c.Object * 5 / 4, c.Verified * 5 / 4}
	}
	raw, err := json.MarshalIndent(limits, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll("testdata", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(budgetFile, append(raw, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}
