// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

//go:embed differences.json
var differencesJSON []byte

// difference is a specification that Sluice is known to fail, and the reason.
type difference struct {
	Plugin string `json:"plugin"`
	Spec   string `json:"spec"` // without CNI version
	Why    string `json:"why"`  // a key of reasons
}

type differences struct {
	// Reasons are sentences, by the name that differences give.
	Reasons     map[string]string `json:"reasons"`
	Differences []difference      `json:"differences"`
}

func knownDifferences() (differences, error) {
	var d differences
	dec := json.NewDecoder(bytes.NewReader(differencesJSON))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return d, fmt.Errorf("differences.json: %w", err)
	}
	for _, x := range d.Differences {
		if d.Reasons[x.Why] == "" {
			return d, fmt.Errorf("differences.json: %s, %q: there is no reason %q", x.Plugin, x.Spec, x.Why)
		}
	}
	return d, nil
}

var versions = regexp.MustCompile(`\[\d\.\d\.\d\] |\(\d+\) | \d\.\d\.\d `)

// plainName is a specification's name without the CNI version and the number of a case.
func plainName(name string) string {
	return strings.Join(strings.Fields(versions.ReplaceAllString(name, " ")), " ")
}

// verdict is what is to be said of a suite.
type verdict struct {
	plugin  string
	ran     int
	machine int               // fail with upstream too
	known   int               // differ as is written down
	unknown map[string]string // differ otherwise: what they said
	stale   []string          // are written down and do not differ
}

func judge(plugin string, theirs, ours result, known differences) verdict {
	v := verdict{plugin: plugin, unknown: map[string]string{}}
	for _, n := range ours.ran {
		v.ran += n
	}
	listed := map[string]bool{}
	for _, d := range known.Differences {
		if d.Plugin == plugin {
			listed[d.Spec] = true
		}
	}
	seen, spoilt := map[string]bool{}, map[string]bool{}
	for name := range theirs.failed {
		spoilt[plainName(name)] = true
	}
	for name, message := range ours.failed {
		_, theirsToo := theirs.failed[name]
		switch short := plainName(name); {
		case theirsToo:
			v.machine++
		case listed[short]:
			v.known++
			seen[short] = true
		default:
			v.unknown[name] = message
		}
	}
	for spec, n := range theirs.ran {
		if ours.ran[spec] < n {
			v.unknown[spec] = fmt.Sprintf("ran %d times, with upstream %d", ours.ran[spec], n)
		}
	}
	for spec := range listed {
		if ours.ran[spec] > 0 && !seen[spec] && !spoilt[spec] {
			v.stale = append(v.stale, spec)
		}
	}
	slices.Sort(v.stale)
	return v
}

// String is a line, and what is to be fixed.
func (v verdict) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-12s %4d specifications, %d differ as known", v.plugin, v.ran, v.known)
	if v.machine > 0 {
		fmt.Fprintf(&b, ", %d fail here with upstream too", v.machine)
	}
	b.WriteString("\n")
	names := make([]string, 0, len(v.unknown))
	for name := range v.unknown {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(&b, "  differs: %s\n    %s\n", name, strings.ReplaceAll(strings.TrimSpace(v.unknown[name]), "\n", "\n    "))
	}
	for _, spec := range v.stale {
		fmt.Fprintf(&b, "  does not differ any more: %s\n", spec)
	}
	return b.String()
}

// page is docs/dev/upstream-suites.md.
func page() []byte {
	d, err := knownDifferences()
	if err != nil {
		panic(err) // a test decodes it
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, pageHead, testbin.ReferenceVersion)
	for _, why := range slices.Sorted(maps.Keys(d.Reasons)) {
		fmt.Fprintf(&b, "| `%s` | %s |\n", why, d.Reasons[why])
	}
	b.WriteString(pageTable)
	for _, s := range suites() {
		for _, x := range d.Differences {
			if x.Plugin == s.plugin {
				fmt.Fprintf(&b, "| %s | %s | `%s` |\n", x.Plugin, strings.ReplaceAll(x.Spec, "|", `\|`), x.Why)
			}
		}
	}
	return b.Bytes()
}

const pageHead = `# Upstream's own test suites

Written by ` + "`go run ./test/upstream -docs docs/dev/upstream-suites.md`" + `; do not edit.

` + "`make upstream-suites`" + ` runs the test suites of containernetworking/plugins %s against
Sluice's binaries.
It also runs each suite unchanged, against upstream's plugins.

- A specification that passes with upstream has to pass with Sluice, except for those below.
- A specification that is listed here and passes fails the run too.
- The suites use the default configuration. Those of portmap and firewall read iptables rules, so
  they use ` + "`\"backend\": \"iptables\"`" + `.

## Reasons

| reason | why the result differs |
|---|---|
`

const pageTable = `
## Specifications that differ

| plugin | specification | reason |
|---|---|---|
`
