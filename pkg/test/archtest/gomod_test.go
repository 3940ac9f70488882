// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
)

// forTests are requirements of go.mod that no program links, each with the reason why its tests are in the product's module.
var forTests = map[string]string{
	"github.com/anishathalye/porcupine":        "the model test of cluster-wide addresses calls the code beside it",
	"github.com/google/go-cmp":                 "tests beside the code compare values with it",
	"github.com/gopacket/gopacket":             "packet tests make and read frames with it",
	"github.com/santhosh-tekuri/jsonschema/v6": "the agent's decoder and its schema are compared beside the decoder",
}

// What go.mod requires is what the programs link. Scanners of vulnerabilities and licences read go.mod, and a program
// that imports a package of Sluice gets its versions.
func TestRequirements(t *testing.T) {
	linked := linkedModules(t)
	for _, path := range requirements(t) {
		_, test := forTests[path]
		_, ok := linked[path]
		switch {
		case !ok && !test:
			t.Errorf("go.mod requires %s, which no program of cmd links: require it in the module of test, bench or build/release, or name it here", path)
		case ok && test:
			t.Errorf("a program links %s, which is for tests: %s", path, forTests[path])
		}
	}
	for path := range forTests {
		if !slices.Contains(requirements(t), path) {
			t.Errorf("go.mod requires no %s", path)
		}
	}
}

// Tests see the versions that a release links: no requirement of another module of the workspace raises one.
func TestWorkspaceVersions(t *testing.T) {
	linked := linkedModules(t)
	args := append([]string{"list", "-m", "-f", "{{.Path}} {{.Version}}"}, slices.Sorted(maps.Keys(linked))...)
	for line := range strings.Lines(goCommand(t, []string{"GOWORK="}, args...)) {
		path, version, _ := strings.Cut(strings.TrimSpace(line), " ")
		if version != linked[path] {
			t.Errorf("%s: a release links %s, tests and benchmarks have %s: run \"make tidy\"", path, linked[path], version)
		}
	}
}

// requirements returns the modules that go.mod requires directly.
func requirements(t *testing.T) []string {
	t.Helper()
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal([]byte(goCommand(t, nil, "mod", "edit", "-json")), &mod); err != nil {
		t.Fatal(err)
	}
	var direct []string
	for _, r := range mod.Require {
		if !r.Indirect {
			direct = append(direct, r.Path)
		}
	}
	if len(direct) == 0 {
		t.Fatal("go.mod requires nothing")
	}
	return direct
}

// linkedModules returns the version of each module that a program links for an architecture of a release.
func linkedModules(t *testing.T) map[string]string {
	t.Helper()
	versions := map[string]string{}
	for _, arch := range []string{"amd64", "arm64"} {
		out := goCommand(t, []string{"GOWORK=off", "GOOS=linux", "GOARCH=" + arch, "CGO_ENABLED=0"},
			"list", "-deps", "-tags", "grpcnotrace", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}{{end}}{{end}}", "./cmd/...")
		for line := range strings.Lines(out) {
			if path, version, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
				versions[path] = version
			}
		}
	}
	return versions
}
