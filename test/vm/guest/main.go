// SPDX-License-Identifier: Apache-2.0

// Command guest runs a set of test binaries in the machine it is in, and is the
// only program that a test machine needs besides them.
//
//	guest run suites.json    run the tests, say what passed, failed and was skipped
//
// In an emulated machine it is process 1 as well, and modprobe: under the name
// init it makes the machine usable, runs "guest run" or a shell, and turns the
// machine off; under the name modprobe it loads modules for the kernel.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	var err error
	switch name := filepath.Base(os.Args[0]); {
	case name == "init" && os.Getpid() == 1:
		initMain()
		return
	case name == "modprobe":
		err = modprobeMain(os.Args[1:])
	case len(os.Args) == 3 && os.Args[1] == "run":
		err = runMain(os.Args[2], false)
	case len(os.Args) == 3 && os.Args[1] == "stream":
		err = runMain(os.Args[2], true)
	default:
		fmt.Fprintln(os.Stderr, "usage: guest run FILE")
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
