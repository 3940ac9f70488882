// SPDX-License-Identifier: Apache-2.0

package result

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
)

// Budgets say how many instructions a kernel's verifier may walk in each
// program: kernel, program, limit. Every kernel counts differently.
type Budgets map[string]map[string]int

// ReadBudgets reads a JSON file.
func ReadBudgets(file string) (Budgets, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	b := Budgets{}
	return b, json.Unmarshal(raw, &b)
}

// Write writes the file that ReadBudgets reads.
func (b Budgets) Write(file string) error {
	raw, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(raw, '\n'), 0o644)
}

// Verified returns what a run reported as "report: verified PROGRAM COUNT".
func (r *Run) Verified() map[string]int {
	out := map[string]int{}
	for _, f := range r.Reports("verified") {
		if n, err := strconv.Atoi(f[1]); err == nil {
			out[f[0]] = n
		}
	}
	return out
}

// Check returns the programs that cost more than a kernel allows, or have no
// budget.
func (b Budgets) Check(kernel string, run *Run) []string {
	var wrong []string
	for program, n := range run.Verified() {
		limit, ok := b[kernel][program]
		switch {
		case !ok:
			wrong = append(wrong, fmt.Sprintf("program %s has no instruction budget for this kernel; it takes %d", program, n))
		case n > limit:
			wrong = append(wrong, fmt.Sprintf("program %s: %d instructions verified, allowed are %d", program, n, limit))
		}
	}
	slices.Sort(wrong)
	return wrong
}

// Take makes what was seen and a quarter the budget.
func (b Budgets) Take(kernel string, run *Run) {
	if seen := run.Verified(); len(seen) > 0 {
		b[kernel] = map[string]int{}
		for program, n := range seen {
			b[kernel][program] = n * 5 / 4
		}
	}
}
