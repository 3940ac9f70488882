// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/install"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// envBinaries makes suites use the plugins of a directory.
const envBinaries = testbin.EnvDir

// notHere are packages with privileged tests that say nothing about a kernel,
// each with its reason. A name that ends in "/" stands for everything below.
var notHere = map[string]string{
	"bench/page":                      "drives a browser, which is not in a test machine",
	"bench/subject":                   "measures; needs Go and the network",
	"bench/tool":                      "runs load generators, which are not in a test machine",
	"bench/traffic":                   "measures",
	"cmd/sluice/internal/ui/pagetest": "drives a browser, which is not in a test machine",
	"pkg/test/kubetest":               "runs programs of Kubernetes, which are not in a test machine",
	"plugins/ipam/cluster":            "runs programs of Kubernetes, which are not in a test machine",
	"test/e2e/agent":                  "runs programs of Kubernetes, which are not in a test machine",
	"test/manifests":                  "runs programs of Kubernetes, which are not in a test machine",
	"test/cluster/":                   "makes clusters of programs that are not in a test machine",
	"pkg/test/archtest":               "reads the source with the go command",
	"test/vm/":                        "is what runs the others",
	"test/upstream":                   "compiles the reference's suites; needs Go and the network",
	"test/packages":                   "runs dpkg and rpm, which are not in a test machine",
	"test/runtimes":                   "runs container runtimes, which are not in a test machine",
}

// Programs are the plugins' programs that a machine has. Those of cluster-wide addresses would take 25 MB of its memory, and their tests
// are not here.
func Programs() []install.Program {
	return slices.DeleteFunc(install.Programs(), func(p install.Program) bool { return p.Name == install.IPAM || p.Name == install.IPAMStore })
}

// NotHere are tests that cannot run in a machine without Go or Python, each the begin of a go test pattern: they build programs, or run
// firewalld, udev or load generators.
var NotHere = Names{"Firewalld", "DHCPUpstream", "ReportQuick$", "HostPortFromLateBridge$"}

// WithReference are tests that compare with upstream's plugins. They run in a machine that is given those.
var WithReference = Names{
	"CleanupOfUpstream$", "CheckOfUpstream$", "DelOfUpstream$", "HandoverToEBPF$", "UpstreamDelOfOurs$", "BandwidthOfUpstream", "GCOfUpstream$",
	"SwitchSuites", "SwitchToOurs$", "SwitchBack$", "SwitchOneAtATime$", "StaticGatewayAsUpstream$", "Stateful$",
}

// noIPAM is the example that needs a program which Programs leaves out.
const noIPAM = "^TestPrivilegedExamples$/^cluster$"

// Skips are the patterns for go test's -skip of what cannot run in a machine, with or without upstream's plugins.
func Skips(reference bool) []string {
	if reference {
		return []string{NotHere.Pattern(), noIPAM}
	}
	return []string{NotHere.Pattern(), WithReference.Pattern(), noIPAM}
}

// Names are what follows "TestPrivileged" in names of tests: all of a name where it ends in "$", else its begin.
type Names []string

// Pattern returns the pattern for go test's -run and -skip.
func (n Names) Pattern() string { return "^TestPrivileged(" + strings.Join(n, "|") + ")" }

// Package is one that has privileged tests.
type Package struct {
	// Path below the repository, and Dir on this machine.
	Path, Dir string
	// Tests are its privileged tests, sorted.
	Tests []string
	// Plugins says that its tests run the plugins' programs.
	Plugins bool
}

// privileged matches the beginning of a privileged test.
var privileged = regexp.MustCompile(`(?m)^func (TestPrivileged\w*)\(`)

// Find returns the packages with privileged tests that patterns name (those of
// the whole workspace if none), sorted. root is the repository. Those that do
// not belong on a test kernel are left out unless they are named exactly.
func Find(ctx context.Context, root string, patterns ...string) ([]Package, error) {
	if len(patterns) == 0 {
		patterns = []string{"work"}
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles"}, patterns...)...)
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, stderr.Bytes())
	}
	var found []Package
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath, Dir           string
			TestGoFiles, XTestGoFiles []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("decode go list: %w", err)
		}
		path := strings.TrimPrefix(p.ImportPath, testbin.Module+"/")
		tests, err := privilegedTests(p.Dir, slices.Concat(p.TestGoFiles, p.XTestGoFiles))
		if err != nil {
			return nil, err
		}
		if len(tests) > 0 && !leftOut(path) {
			found = append(found, Package{Path: path, Dir: p.Dir, Tests: tests})
		}
	}
	return found, findPlugins(ctx, root, found)
}

// findPlugins sets Plugins of packages: their tests are linked with what finds the programs.
func findPlugins(ctx context.Context, root string, packages []Package) error {
	if len(packages) == 0 {
		return nil
	}
	args := []string{"list", "-test", "-f", `{{.ImportPath}}{{range .Deps}} {{.}}{{end}}`}
	for _, p := range packages {
		args = append(args, "./"+p.Path)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go list -test: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		deps := strings.Fields(line)
		if !strings.HasSuffix(deps[0], ".test") || !slices.ContainsFunc(deps, func(d string) bool { return strings.HasSuffix(d, "/pkg/test/testbin") }) {
			continue
		}
		for i, p := range packages {
			if strings.HasSuffix(deps[0], "/"+p.Path+".test") {
				packages[i].Plugins = true
			}
		}
	}
	return nil
}

func leftOut(path string) bool {
	for name := range notHere {
		if path == name || strings.HasSuffix(name, "/") && strings.HasPrefix(path+"/", name) {
			return true
		}
	}
	return false
}

func privilegedTests(dir string, files []string) ([]string, error) {
	var tests []string
	for _, f := range files {
		raw, err := os.ReadFile(filepath.Join(dir, f))
		if err != nil {
			return nil, err
		}
		for _, m := range privileged.FindAllSubmatch(raw, -1) {
			tests = append(tests, string(m[1]))
		}
	}
	slices.Sort(tests)
	return tests, nil
}

// BinaryName is the file that Build makes of a package.
func (p Package) BinaryName() string { return strings.ReplaceAll(p.Path, "/", "_") + ".test" }

// Build compiles the packages' tests, the plugins under all of their names, and
// the guest command into dir: static, for this machine's architecture.
//
//	dir/guest  dir/tests/NAME.test  dir/bin/PLUGIN
func Build(ctx context.Context, root, dir string, packages []Package) error {
	for _, d := range []string{"tests", "bin"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	if err := goTool(ctx, root, "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, "guest"), "./test/vm/guest"); err != nil {
		return err
	}
	bin := filepath.Join(dir, "bin")
	if err := testbin.BuildPrograms(bin, testbin.Programs()...); err != nil {
		return err
	}
	for _, p := range Programs() {
		for _, name := range p.Plugins {
			to := filepath.Join(bin, name)
			if err := os.Remove(to); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			if err := os.Link(filepath.Join(bin, p.Name), to); err != nil {
				return err
			}
		}
	}
	for _, p := range packages {
		if err := goTool(ctx, root, "test", "-c", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, "tests", p.BinaryName()), "./"+p.Path); err != nil {
			return err
		}
	}
	return nil
}

func goTool(ctx context.Context, root string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
