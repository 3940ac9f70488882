// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/bench/subject"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// Pods that come at once, and the same ones after another, have figures of their own.
func TestPrivilegedChurn(t *testing.T) {
	bin, err := testbin.Build()
	if err != nil {
		t.Fatal(err)
	}
	defer bin.Close()
	out := filepath.Join(t.TempDir(), "churn.json")
	args := []string{"-peers", subject.Sluice, "-sluice-bin", bin.Dir, "-pods", "3", "-rounds", "0", "-against", "1", "-out", out}
	if err := runChurn(t.Context(), args); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, scenario := range []string{chain, inTurn} {
		if !strings.Contains(string(raw), `"scenario": "`+scenario+`"`) {
			t.Errorf("no %q in %s", scenario, raw)
		}
	}
}
