// SPDX-License-Identifier: Apache-2.0

// Command sluice-cni is all CNI plugins but dhcp in one binary. The name of the file that the runtime starts picks the plugin.
// "sluice install" puts a starter for each plugin beside it (pkg/install), and sluice-helper, which it runs for what is slow to
// initialise.
package main

import (
	"os"
	"path/filepath"

	"github.com/sluice-cni/sluice/pkg/install"
)

func main() {
	ensurePath()
	started := os.Args
	os.Args = install.PluginArgs(os.Args)
	os.Exit(run(filepath.Base(os.Args[0]), restarter(started)))
}
