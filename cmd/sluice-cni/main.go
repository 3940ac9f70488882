// SPDX-License-Identifier: Apache-2.0

// Command sluice-cni is all CNI plugins but dhcp in one binary. The name it is started under (argv[0]) picks the plugin.
// "sluice install" lays it under their names, and beside it sluice-helper, which it runs for what is slow to make ready.
package main

import (
	"os"
	"path/filepath"
)

func main() {
	ensurePath()
	os.Exit(run(filepath.Base(os.Args[0])))
}
