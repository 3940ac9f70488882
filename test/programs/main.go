// SPDX-License-Identifier: Apache-2.0

// Command programs builds the programs that tests run into a directory, for SLUICE_TEST_BIN. Without that, each package of tests builds
// them for itself, and most of the time is the linker's.
package main

import (
	"fmt"
	"os"

	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: programs DIRECTORY")
		os.Exit(2)
	}
	if err := testbin.BuildInto(os.Args[1], "sluice-agent"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
