// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/require"
)

// whole is the run by the target that has the packagers and the SBOM tool, quick the run in CI.
var (
	whole = flag.Bool("whole", false, "build the image and packages, and test them")
	quick = flag.Bool("quick", false, "build them once for this machine, and install the deb")
	tool  = flag.String("sbom-tool", "", "the cyclonedx-gomod program")
)

const (
	target = "make package-check"
	// epoch is the time of every file of the products under test.
	epoch = "1764000000"
)

// root is the repository.
const root = "../.."

// command runs a program and returns what it prints.
func command(name string, args ...string) (string, error) {
	return output(exec.Command(name, args...))
}

func output(cmd *exec.Cmd) (string, error) {
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s%s", strings.Join(cmd.Args, " "), err, out.String(), errs.String())
	}
	return out.String(), nil
}

// release makes products of a version from the repository at dir.
func release(dir, out, version, arches string, products ...string) error {
	args := []string{"run", "./build/release", "-version", version, "-commit", "0123456789abcdef", "-epoch", epoch, "-out", out, "-arch", arches}
	if slices.Contains(products, "sbom") {
		args = append(args, "-sbom-tool", *tool)
	}
	cmd := exec.Command("go", append(args, products...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-trimpath -buildvcs=false")
	_, err := output(cmd)
	return err
}

// scratch is removed at the end of all tests.
var scratch string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(inScratch(m.Run))
}

func inScratch(run func() int) int {
	var err error
	if scratch, err = os.MkdirTemp("", "sluice-packages-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(scratch)
	// Users other than root look into it: man and its formatters drop privileges.
	if err := os.Chmod(scratch, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return run()
}

// Two versions of packages for this machine.
const (
	older = "v1.0.0"
	newer = "v1.1.0"
)

// packages makes the packages of both versions, once.
var packages = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(scratch, "packages")
	return dir, errors.Join(
		release(root, dir, older, runtime.GOARCH, "packages"),
		release(root, dir, newer, runtime.GOARCH, "packages"))
})

// builtPackage returns the package of a version for this machine. pattern has the version as %s.
func builtPackage(t *testing.T, pattern, version string) string {
	t.Helper()
	require.Asked(t, *whole, target)
	dir, err := packages()
	if err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(dir, fmt.Sprintf(pattern, strings.TrimPrefix(version, "v"))))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s of %s: %v, %v", pattern, version, found, err)
	}
	return found[0]
}

// deb and rpm return the packages of a version.
func deb(t *testing.T, version string) string {
	t.Helper()
	return builtPackage(t, "sluice_%s_*.deb", version)
}

func rpm(t *testing.T, version string) string {
	t.Helper()
	return builtPackage(t, "sluice-%s-1.*.rpm", version)
}
