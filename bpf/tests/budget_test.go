// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"encoding/json"
	"flag"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/cilium/ebpf"
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
		cost[part.name] = costOf(t, spec.Programs[part.name], *part.into(o))
	}
	socketCost(t, o, cost)
	xdpCost(t, o, cost)
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
		if os.Getenv(envKernel) != "" {
			c.Verified = 0 // the kernel matrix has budgets of its own
		}
		limit, ok := limits[name]
		if !ok {
			t.Errorf("%s has no budget in %s", name, budgetFile)
		}
		if !c.within(limit) {
			t.Errorf("%s: %+v, allowed are %+v", name, c, limit)
		}
	}
}

// socketCost adds what the programs for socket calls cost.
func socketCost(t *testing.T, o *programSet, cost map[string]budget) {
	t.Helper()
	spec, programs := sockPrograms(t, o)
	for name, p := range programs {
		cost[name] = costOf(t, spec.Programs[name], p)
	}
}

// envKernel is set where the kernel matrix runs the tests.
const envKernel = "SLUICE_TEST_KERNEL"

// processed is what every verifier says at the end of its log.
var processed = regexp.MustCompile(`processed (\d+) insns`)

// costOf reads the verifier's log, since program info has the number only from
// Linux 5.16 on.
func costOf(t *testing.T, spec *ebpf.ProgramSpec, p *ebpf.Program) budget {
	t.Helper()
	m := processed.FindStringSubmatch(p.VerifierLog)
	if m == nil {
		t.Fatalf("%s: the verifier did not say how much it walked: %q", spec.Name, p.VerifierLog)
	}
	verified, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("report: verified %s %d", spec.Name, verified)
	return budget{len(spec.Instructions), verified}
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
