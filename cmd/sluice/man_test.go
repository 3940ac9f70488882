// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/pkg/test/mantest"
)

// The man pages of the repository are those of the commands: -update writes them. sluice-agent(8) is of the program of that name, which
// "sluice agent" starts.
func TestManPages(t *testing.T) {
	agents := func(name string) bool { return name == "sluice-agent.8" || strings.HasPrefix(name, "sluice-agent-") }
	pages := mantest.Pages(t, newRoot(newApp(nil, nil)), func(c *cobra.Command) bool { return c.CommandPath() == "sluice agent" })
	mantest.Compare(t, "../../docs/man", pages, func(name string) bool { return !agents(name) }, *update, "go test ./cmd/sluice -run TestManPages -update")
}
