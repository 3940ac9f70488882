// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/pkg/install"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// suiteTime bounds one run of a suite.
var suiteTime = netlab.Patient(10 * time.Minute)

// runAll runs suites that are prepared, both forms of each, and compares.
func runAll(ctx context.Context, dir string, chosen []suite) error {
	known, err := knownDifferences()
	if err != nil {
		return err
	}
	failed := 0
	for _, s := range chosen {
		theirs, err := runSuite(ctx, dir, s, plain)
		if err != nil {
			return fmt.Errorf("the suite of %s as it is: %w", s.plugin, err)
		}
		ours, err := runSuite(ctx, dir, s, wrapped)
		if err != nil {
			return fmt.Errorf("the suite of %s: %w", s.plugin, err)
		}
		v := judge(s.plugin, theirs, ours, known)
		fmt.Print(v)
		failed += len(v.unknown) + len(v.stale)
	}
	if failed > 0 {
		return fmt.Errorf("%d specifications are not as test/upstream/differences.json says", failed)
	}
	return nil
}

// result is a suite's specifications: how many ran, and what the failed ones said.
type result struct {
	ran    map[string]int    // by name without the CNI version: it is tried with several
	failed map[string]string // a message of each that failed at least once, by the whole name
}

// runSuite runs one form of a suite on a node of its own.
func runSuite(ctx context.Context, dir string, s suite, form string) (_ result, err error) {
	ctx, cancel := context.WithTimeout(ctx, suiteTime)
	defer cancel()
	node, err := netlab.NewNode()
	if err != nil {
		return result{}, err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	if err := node.Do(func() error { return layOut(dir, s) }); err != nil {
		return result{}, err
	}
	work, err := os.MkdirTemp("", "sluice-suite-")
	if err != nil {
		return result{}, err
	}
	defer os.RemoveAll(work)
	report := filepath.Join(work, "report.json")
	plugins := oursDir
	if form == plain {
		plugins = theirDir
	}
	// As upstream's own script: the plugins first in PATH, and no umask.
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", `umask 0; exec "$@"`, "sh", filepath.Join(dir, s.plugin+form), "-ginkgo.no-color", "-ginkgo.json-report="+report)
	cmd.Dir = work
	cmd.Env = append(os.Environ(), "PATH="+plugins+":"+os.Getenv("PATH"))
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := node.Start(cmd); err != nil {
		return result{}, err
	}
	ended := cmd.Wait() // not zero when something failed: the report says what
	r, err := read(report)
	if err != nil {
		return r, fmt.Errorf("%w\n%s", errors.Join(err, ended), said.String())
	}
	return r, nil
}

// layOut puts the plugins where the suites look for them, and the node's configuration.
func layOut(dir string, s suite) error {
	errs := []error{os.MkdirAll(oursDir, 0o755), os.MkdirAll(theirDir, 0o755), os.MkdirAll(echoDir, 0o755)}
	for _, p := range install.Programs() {
		for _, plugin := range p.Plugins {
			errs = append(errs, os.Symlink(filepath.Join(dir, p.Name), filepath.Join(oursDir, plugin)))
		}
	}
	for _, p := range suites() {
		errs = append(errs, os.Symlink(filepath.Join(dir, prefix+p.plugin), filepath.Join(theirDir, p.plugin)))
	}
	for _, end := range []string{"server", "client"} {
		errs = append(errs, os.Symlink(filepath.Join(dir, echoPrefix+end), filepath.Join(echoDir, end)))
	}
	if s.backend != "" {
		errs = append(errs, os.WriteFile("/etc/sluice/config.json", []byte(`{"backend":"`+s.backend+`"}`), 0o644))
	}
	return errors.Join(errs...)
}

// read takes what Ginkgo reports.
func read(file string) (result, error) {
	r := result{ran: map[string]int{}, failed: map[string]string{}}
	raw, err := os.ReadFile(file)
	if err != nil {
		return r, err
	}
	var reports []struct {
		SpecReports []struct {
			ContainerHierarchyTexts []string
			LeafNodeType            string
			LeafNodeText            string
			State                   string
			Failure                 struct{ Message string }
		}
	}
	if err := json.Unmarshal(raw, &reports); err != nil {
		return r, fmt.Errorf("the suite's report: %w", err)
	}
	for _, report := range reports {
		for _, spec := range report.SpecReports {
			if spec.LeafNodeType != "It" && spec.State == "passed" {
				continue
			}
			name := strings.Join(append(spec.ContainerHierarchyTexts, spec.LeafNodeText), " ")
			if spec.LeafNodeType != "It" { // what prepares the suite, say
				name = spec.LeafNodeType
			}
			switch spec.State {
			case "skipped", "pending":
			case "passed":
				r.ran[plainName(name)]++
			default:
				r.ran[plainName(name)]++
				r.failed[name] = spec.Failure.Message
			}
		}
	}
	if len(r.ran) == 0 {
		return r, errors.New("the suite ran nothing")
	}
	return r, nil
}
