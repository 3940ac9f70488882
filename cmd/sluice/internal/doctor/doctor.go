// SPDX-License-Identifier: Apache-2.0

// Package doctor says what is wrong with a node, and what to do about each
// thing.
//
// Facts are what was seen of a node; Gather sees them, and changes nothing. Each
// check is a function of the facts alone, so that a test can make up any node. A
// check that finds nothing says so by an OK finding or by none at all.
package doctor

import (
	"slices"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/orphans"
	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/nodeports"
)

// Level says how bad a finding is.
type Level string

// The levels, from nothing to worst.
const (
	OK      Level = "ok"      // looked at, as it should be
	Info    Level = "info"    // worth knowing, nothing to do
	Warning Level = "warning" // works, or may stop working
	Problem Level = "problem" // something does not work
)

func (l Level) rank() int { return slices.Index([]Level{OK, Info, Warning, Problem}, l) }

// Finding is one thing that was found.
type Finding struct {
	Check string // stable name of the kind of finding, as in docs/troubleshooting.md
	Level Level
	Text  string // what was found and what it means
	Do    string // what to do; empty when there is nothing
}

// Facts are what is known of a node.
type Facts struct {
	Config   *nodeconf.Config
	Probes   []loader.Probe
	Cgroup   string         // where programs for the node's own processes go; empty: nowhere
	Status   *loader.Status // nil: nothing is loaded
	Decision *loader.Status // nil: no call tried since boot
	Hooks    []loader.HookPrograms
	Links    map[int]string // names by ifindex
	Queues   map[int]string // kinds of the qdiscs that packets leave pods' host veths by
	Records  []*attachments.Record
	Choices  map[string]netfilter.Choice
	Usage    netfilter.Usage
	RuleSets []netfilter.RuleSet
	Forwards []netfilter.ForwardChain
	// Conflicts are hostPorts that take what sockets of the node wait for. Holders are the programs of those sockets, by inode.
	Conflicts []nodeports.Conflict
	Holders   map[uint32]string
	// Firewalld says that firewalld runs.
	Firewalld bool

	Sysctls map[string]string // by path below /proc/sys; what the node does not have is not in it
	TBF     error             // why the kernel has no token bucket or no IFB; nil: it has both, or was not asked

	Owners    error          // a directory of Sluice's that another user made or can change
	Places    []loader.Place // where pins are looked for, and other mount namespaces that have some
	Leftovers orphans.Report
	// Blind are the things that could not be looked at.
	Blind []error
}

// uses reports whether any pod's device has the feature in the datapath.
func (f *Facts) uses(feature string) bool {
	return f.Status != nil && slices.ContainsFunc(f.Status.Endpoints, func(e loader.EndpointStatus) bool {
		return slices.Contains(e.Features, feature)
	})
}

// checks are asked in the order in which one would look: the kernel, what is
// loaded, who else is there, the node's settings, what is left of pods.
func checks() []func(*Facts) []Finding {
	return []func(*Facts) []Finding{
		checkBlind, checkProbes, checkNetkit, checkBandwidth, checkSockets,
		checkOwners, checkMounts, checkDatapath, checkPrograms, checkUplinks, checkMaps, checkOthers, checkQueues,
		checkTables, checkRules, checkForward, checkFirewalld, checkConflicts, checkForwarding, checkGateways, checkReversePath, checkBridgeFilter, checkConntrack,
		checkRecords, checkLeftovers,
	}
}

// Examine returns what all checks find.
func Examine(f *Facts) []Finding {
	out := []Finding{}
	for _, check := range checks() {
		out = append(out, check(f)...)
	}
	return out
}

// Worst returns the highest level among findings.
func Worst(findings []Finding) Level {
	worst := OK
	for _, f := range findings {
		if f.Level.rank() > worst.rank() {
			worst = f.Level
		}
	}
	return worst
}

func checkBlind(f *Facts) []Finding {
	var out []Finding
	for _, err := range f.Blind {
		out = append(out, Finding{"not-looked-at", Warning, err.Error(), "run the doctor as root, on the node itself"})
	}
	return out
}
