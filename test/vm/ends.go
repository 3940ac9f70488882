// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"slices"
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
	{"test/e2e/lifecycle", suite.Names{""}, "", "the life of an attachment: records, rollback, refusals; what it asks of a kernel is the matter of the loader's tests"},
	{"test/e2e/doctor", suite.Names{""}, "", "what the doctor says; its probes are those of the loader's tests"},
	{
		"loader", suite.Names{"DeleteBeforeLoad$", "KillWhileOldSetGoes$", "LoadKilled", "LoadAfterCrash$", "Pins", "RefusalIsRemembered$"}, "",
		"who owns the pins, and what a killed load leaves: files and locks",
	},
	{"test/conformance", nil, olderVersions, "JSON of CNI versions before the newest"},
	{"test/conformance", suite.Names{"Examples$", "MainRefusals$", "MissingPrevResult$", "ForeignPrevResult$", "ResultThatCannotBeExpressed$"}, "", "examples of the documentation, and refusals"},
	{"cmd/sluice", suite.Names{""}, "", "the operator's tool; what it reads is the matter of the loader's tests"},
}

// sampleKernel is one that offers nothing new beside the kernels around it. It runs what -quick runs.
const sampleKernel = "6.18"

// sampled is p with the tests that -quick runs.
func sampled(p suite.Package) suite.Package {
	run, some := regexp.MustCompile(quickRun.Pattern()), slices.Contains(quickPackages, "./"+p.Path)
	p.Tests = slices.DeleteFunc(slices.Clone(p.Tests), func(name string) bool { return !some || !run.MatchString(name) })
	return p
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
