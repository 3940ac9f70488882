// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"path"
	"slices"
	"strings"
)

// reads are the files outside of its directory that a package's tests read in a
// machine, as path.Match has it.
var reads = map[string][]string{
	"test/conformance":    {"plugins/*/*/README.md", "docs/install-runtimes.md"},
	"test/e2e/privileges": {"deploy/kustomize/base/sluice.yaml"},
}

// Data picks from the files of the tree those that the tests of p read in a
// machine: what is beside the code, and what reads names. A machine has no
// others, so a test that reads more fails there.
func Data(p Package, files []string) []string {
	var out []string
	for _, f := range files {
		beside := strings.HasPrefix(f, p.Path+"/") && !strings.HasSuffix(f, ".go")
		named := slices.ContainsFunc(reads[p.Path], func(pattern string) bool {
			ok, err := path.Match(pattern, f)
			return err == nil && ok
		})
		if f == "go.mod" || beside || named {
			out = append(out, f)
		}
	}
	return out
}
