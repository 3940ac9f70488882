// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/mantest"
)

// Each command has a man page.
func TestManPages(t *testing.T) { mantest.Check(t, newRoot(io.Discard), nil) }

// Shells get completion, and ask the agent itself for the levels.
func TestCompletion(t *testing.T) {
	for line, want := range map[string]string{
		"completion bash":         "__start_sluice-agent",
		"completion zsh":          "#compdef sluice-agent",
		"completion fish":         "complete -c sluice-agent",
		"__complete --log-level ": "warn",
		"__complete che":          "check-config",
	} {
		var out bytes.Buffer
		root := newRoot(&out)
		root.SetArgs(strings.Split(line, " "))
		root.SetErr(io.Discard)
		if err := root.Execute(); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %v, want %q in\n%.300s", line, err, want, &out)
		}
	}
}
