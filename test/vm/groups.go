// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/test/vm/suite"
)

// group is some tests of some packages.
type group struct {
	// packages is the beginning of their paths.
	packages string
	tests    suite.Names
	// subtests, if not empty, is a pattern of go test for those of all tests.
	subtests string
	reason   string
}

// firstOnly are tests that ask nothing of a kernel's BPF, or nothing that a newer kernel could answer in another way. They run under
// the first kernel of the matrix only. docs/dev/kernels.md shows the reasons.
var firstOnly = []group{
	{"test/e2e/", suite.Names{"Netfilter", "IPTables"}, "", "netfilter's tables, through nft and iptables"},
	{"test/e2e/", suite.Names{"Parity$", "DelAcrossBackends$", "MixedAtOnce$", "LocalnetIsGuarded$"}, "", "what all backends have in common"},
	{"test/e2e/", suite.Names{"DHCP", "Flannel$"}, "", "delegates, and a DHCP server"},
	{"test/e2e/lifecycle", suite.Names{""}, "", "the life of an attachment: records, rollback, refusals; what it asks of a kernel is the matter of the loader's tests"},
	{"test/e2e/doctor", suite.Names{""}, "", "what the doctor says; its probes are those of the loader's tests"},
	{"pkg/netfilter/", suite.Names{""}, "", "netfilter's tables, through nft and iptables"},
	{"plugins/meta/firewall", suite.Names{"Admit$"}, "", "netfilter's tables, through nft and iptables"},
	{
		"loader", suite.Names{"KillWhileOldSetGoes$", "LoadKilled", "LoadAfterCrash$", "Pins", "RefusalIsRemembered$"}, "",
		"who owns the pins, and what a killed load leaves: files and locks",
	},
	{"test/conformance", nil, olderVersions, "JSON of CNI versions before the newest"},
	{"test/conformance", suite.Names{"Examples$", "MainRefusals$", "MissingPrevResult$", "ForeignPrevResult$", "ResultThatCannotBeExpressed$"}, "", "examples of the documentation, and refusals"},
}

// hostOnly are tests that run under no kernel of the matrix, but under that of the machine that runs "make test": they ask nothing of a
// kernel's BPF, or they are long and about our own tables.
var hostOnly = []group{
	{"bpf/tests", suite.Names{"ShareGreedyPod$", "ShareTurnover$", "ShareSpoofedUDP$"}, "", "shares of the connection table under tens of thousands of packets"},
	{"test/e2e/datapath", suite.Names{"Flood$"}, "", "shares of the connection table under tens of thousands of packets"},
	{"test/e2e/fastpath", suite.Names{"Model$"}, "", "random worlds with and without the fast path; what a kernel does about one kind of packet is tested beside the kind"},
	{"loader", suite.Names{"DeleteBeforeLoad$", "AddressOfLivingPod$"}, "", "verbs on maps of an earlier build, and refusals, with a load for each"},
	{"cmd/sluice", suite.Names{""}, "", "the operator's tool; what it reads is the matter of the loader's tests"},
	{"pkg/agent", suite.Names{"FollowAddresses$"}, "", "the agent's wait for messages of the kernel"},
}

// wholePackages are, for each kernel that offers little beside those around it, what it runs whole. Of other packages it runs what -quick
// runs. All programs are loaded everywhere, and all test packets walk through them: what a verifier or a helper answers is seen there.
// 6.12 is the first with tcx, by which programs are attached and replaced in another way.
var wholePackages = map[string][]string{
	"6.1":  {"bpf/tests"},
	"6.12": {"bpf/tests", "loader", "test/e2e/datapath"},
	"6.18": {"bpf/tests"},
}

// sampled is p with the tests that a kernel runs which has some packages whole.
func sampled(p suite.Package, whole []string) suite.Package {
	if slices.Contains(whole, p.Path) {
		return p
	}
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

// leftOut are the patterns of what a package does not run under a kernel, the first of the matrix or another.
func leftOut(path string, first bool) (patterns []string) {
	groups := hostOnly
	if !first {
		groups = slices.Concat(hostOnly, firstOnly)
	}
	for _, e := range groups {
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
