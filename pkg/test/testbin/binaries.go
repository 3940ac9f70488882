// SPDX-License-Identifier: Apache-2.0

// Package testbin builds the real programs for tests that judge them from the
// outside: those of the plugins under every name they answer to, and the
// operator's tool. It needs the go command and the module's source.
package testbin

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/install"
)

// EnvDir names the variable with a directory of binaries to test instead of
// freshly built ones: an installed Sluice, or another suite as the oracle.
const EnvDir = "SLUICE_TEST_BIN"

// Plugins lists the names of the plugins.
func Plugins() []string {
	return install.Plugins()
}

// Programs lists what is built: the programs of the plugins, and the operator's tool.
func Programs() []string {
	names := []string{"sluice"}
	for _, p := range install.Programs() {
		names = append(names, p.Name)
	}
	return names
}

// Module is the product's module. Those of the benchmarks, the tests and the release tool have their paths below it.
const Module = "github.com/sluice-cni/sluice"

// BuildFlags are those of the go command that programs under test are built with. Stripped and without gRPC's tracer they have the size
// of the release's programs (build/release says why), and they are the same at each commit that leaves their source alone.
func BuildFlags() []string {
	return []string{"-trimpath", "-buildvcs=false", "-tags", "grpcnotrace", "-ldflags", "-s -w"}
}

// Set is a directory of binaries. The caller must Close it.
type Set struct {
	// Dir holds one file for each of Plugins, and each of Programs.
	Dir string

	temporary bool
}

// Build makes a Set, or takes the one that EnvDir names. extra are programs besides Programs.
func Build(extra ...string) (*Set, error) {
	if dir := os.Getenv(EnvDir); dir != "" {
		abs, err := filepath.Abs(dir)
		return &Set{Dir: abs}, err
	}
	dir, err := os.MkdirTemp("", "sluice-bin-")
	if err != nil {
		return nil, err
	}
	if err := BuildInto(dir, extra...); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &Set{Dir: dir, temporary: true}, nil
}

// BuildInto makes a Set in a directory that exists. It builds the programs as the Makefile does: static and stripped.
func BuildInto(dir string, extra ...string) error {
	if err := BuildPrograms(dir, append(Programs(), extra...)...); err != nil {
		return err
	}
	for _, p := range install.Programs() {
		for _, name := range p.Plugins {
			if name == p.Name {
				continue
			}
			if err := os.Link(filepath.Join(dir, p.Name), filepath.Join(dir, name)); err != nil {
				return err
			}
		}
	}
	// Other users' processes must be able to run what is inside.
	return os.Chmod(dir, 0o755)
}

// BuildPrograms builds programs of the product, named by their folders in cmd, into dir.
func BuildPrograms(dir string, programs ...string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	return build(root, dir, programs)
}

// build builds programs of the product's module at root into dir. Without the workspace the modules that they link have the versions that a
// release has, whatever the tests require.
func build(root, dir string, programs []string, flags ...string) error {
	args := slices.Concat([]string{"build", "-o", dir + "/"}, BuildFlags(), flags)
	for _, name := range programs {
		args = append(args, "./cmd/"+name)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the binaries: %w\n%s", err, out)
	}
	return nil
}

// Path returns the path of one binary.
func (s *Set) Path(name string) string { return filepath.Join(s.Dir, name) }

// Close removes what Build made.
func (s *Set) Close() error {
	if !s.temporary {
		return nil
	}
	return os.RemoveAll(s.Dir)
}

// Root returns the directory of the product's module, which is that of the repository. The current directory may be in any module of it.
func Root() (string, error) {
	var stderr bytes.Buffer
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", Module)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go list -m: %w: %s", err, stderr.Bytes())
	}
	return strings.TrimSpace(string(out)), nil
}
