// SPDX-License-Identifier: Apache-2.0

// Command sluice-cni is all CNI plugins but dhcp in one binary. The name of the file that the runtime starts picks the plugin.
// "sluice install" puts a starter for each plugin beside it (pkg/install), and sluice-helper, which it runs for what is slow to
// initialise.
package main

import (
	"os"
	"path/filepath"
	"runtime"

	"github.com/sluice-cni/sluice/pkg/install"
)

func main() {
	// A verb does one thing after the other. With more processors, the runtime wakes threads at every message from the kernel that
	// look for work in vain: a tenth to a sixth of an ADD's CPU time. A system call that blocks still lets others run.
	runtime.GOMAXPROCS(1)
	ensurePath()
	started := os.Args
	os.Args = install.PluginArgs(os.Args)
	os.Exit(run(filepath.Base(os.Args[0]), restarter(started)))
}
