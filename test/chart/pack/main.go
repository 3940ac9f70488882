// SPDX-License-Identifier: Apache-2.0

// Command pack makes the archive of the Helm chart: pack -version v1.2.3 -out dist. Two runs make equal files, which "helm package"
// does not: it writes the time into them.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/sluice-cni/sluice/test/chart"
)

func main() {
	version := flag.String("version", "dev", "version of the build, as in pkg/version")
	out := flag.String("out", chart.Root+"/dist", "directory for the archive")
	flag.Parse()
	file, err := chart.Pack(*out, *version)
	if err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
	fmt.Println(file)
}
