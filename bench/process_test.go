// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// Each step takes time, and leaves nothing that keeps the next round from doing it.
func TestPrivilegedProcess(t *testing.T) {
	bin, err := testbin.Build()
	if err != nil {
		t.Fatal(err)
	}
	defer bin.Close()
	out, err := printed(t, func() error { return runProcess(t.Context(), []string{"-rounds", "2", "-sluice-bin", bin.Dir}) })
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	steps := 9
	if strings.Contains(out, "without a Go program") { // no Go on a test kernel
		steps--
	}
	if len(lines) < steps {
		t.Fatal(out)
	}
	for _, line := range lines[len(lines)-steps:] {
		f := strings.Fields(line)
		if wall := f[len(f)-4]; wall == "0" {
			t.Errorf("a step that takes no time: %s", line)
		}
	}
	if err := runProcess(t.Context(), []string{"-rounds", "0"}); err == nil || !strings.Contains(err.Error(), "-rounds") {
		t.Errorf("no round: %v", err)
	}
}
