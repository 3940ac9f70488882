// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

// The agent is optional. Where it is not installed, the command says so, also for flags, which are all the agent's.
func TestAgentMissing(t *testing.T) {
	for _, args := range []string{"agent ", "agent version", "agent --help", "agent --kubeconfig x"} {
		_, errs, status := runTool(t, newFakeNode(), 0, strings.Fields(args)...)
		if status != 1 || !strings.Contains(errs, "sluice-agent: the node agent is optional") {
			t.Errorf("%s: %d, %q", args, status, errs)
		}
	}
}
