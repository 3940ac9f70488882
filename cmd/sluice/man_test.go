// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/spf13/cobra"

	"github.com/sluice-cni/sluice/pkg/test/mantest"
)

// Each command has a man page. sluice-agent(8) is that of the program of this name, which "sluice agent" starts.
func TestManPages(t *testing.T) {
	mantest.Check(t, newRoot(newApp(nil, nil)), func(c *cobra.Command) bool { return c.CommandPath() == "sluice agent" })
}
