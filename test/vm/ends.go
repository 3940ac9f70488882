// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	"github.com/sluice-cni/sluice/test/vm/suite"
)

// endsOnly are tests that ask nothing of a kernel's BPF, or nothing that a kernel
// between the first and the last of the matrix could answer in another way. They
// run under these two only. docs/kernels.md shows the reasons.
var endsOnly = []struct {
	// packages is the beginning of their paths.
	packages string
	tests    suite.Names
	// subtests, if not empty, is a pattern of go test for those of all tests.
	subtests string
	reason   string
}{
	{"test/e2e/", suite.Names{"Netfilter", "IPTables"}, "", "netfilter's tables, through nft and iptables"},
	{"test/e2e/", suite.Names{"Parity$", "DelAcrossBackends$", "MixedAtOnce$", "LocalnetIsGuarded$"}, "", "what all backends have in common"},
	{"test/e2e/", suite.Names{"DHCP", "Flannel$"}, "", "delegates, and a DHCP server"},
	{"test/e2e/lifecycle", suite.Names{"BadInput$", "BadNodeConfig$", "UnknownPlugin$", "NetNSOverride$"}, "", "configurations and requests that are refused"},
	{"test/conformance", nil, olderVersions, "JSON of CNI versions before the newest"},
	{"test/conformance", suite.Names{"Examples$", "MainRefusals$", "MissingPrevResult$", "ForeignPrevResult$", "ResultThatCannotBeExpressed$"}, "", "examples of the documentation, and refusals"},
	{"cmd/sluice", suite.Names{""}, "", "the operator's tool; what it reads is the matter of the loader's tests"},
}

// older are the CNI versions before the newest, as names of subtests: below a
// test, below its plugin, or one deeper.
const (
	older         = `^(0\.[1-4]\.[0-9]|1\.0\.0)$`
	olderVersions = `./` + older + `|././` + older + `|./././` + older
)

// leftOut are the patterns of what a package does not run between the ends.
func leftOut(path string) (patterns []string) {
	for _, e := range endsOnly {
		switch {
		case !strings.HasPrefix(path, e.packages):
		case e.subtests != "":
			patterns = append(patterns, e.subtests)
		default:
			patterns = append(patterns, e.tests.Pattern())
		}
	}
	return patterns
}
