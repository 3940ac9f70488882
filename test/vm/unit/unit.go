// SPDX-License-Identifier: Apache-2.0

// Package unit divides the privileged tests into what a machine runs at a time,
// and keeps what each part said. The command of test/vm uses it: a matrix that
// was interrupted goes on where it stopped, and one that is repeated runs what
// has changed.
package unit

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/test/vm/suite"
)

// most is how many tests a unit has: as many as an emulated machine runs in a
// few minutes.
const most = 20

// Unit is a package's test binary, or some of the tests of it.
type Unit struct {
	Package suite.Package
	// Part counts from 1 to Parts.
	Part, Parts int
	// Run and Skip are patterns of go test.
	Run, Skip string
	// Key is a digest of all that its result depends on; see Inputs.
	Key string
}

// Name is for people: "loader 2/4", or "pkg/rtnl" of a package in one part.
func (u Unit) Name() string {
	if u.Parts == 1 {
		return u.Package.Path
	}
	return fmt.Sprintf("%s %d/%d", u.Package.Path, u.Part, u.Parts)
}

// file is its name without what a file's cannot have.
func (u Unit) file() string {
	return strings.NewReplacer("/", "_", " ", "-").Replace(strings.Replace(u.Name(), "/", "_", strings.Count(u.Package.Path, "/")))
}

// Whole makes one unit of a package.
func Whole(p suite.Package, run, skip string) Unit {
	return Unit{Package: p, Part: 1, Parts: 1, Run: run, Skip: skip}
}

// Divide makes units of the tests of a package. skips are patterns of go test. A
// test that one leaves out with all of its subtests is in no unit.
func Divide(p suite.Package, skips ...string) ([]Unit, error) {
	tests := slices.Clone(p.Tests)
	for _, s := range skips {
		if strings.Contains(s, "/") {
			continue // leaves out some subtests
		}
		re, err := regexp.Compile(s)
		if err != nil {
			return nil, err
		}
		tests = slices.DeleteFunc(tests, re.MatchString)
	}
	if len(tests) == 0 {
		return nil, nil
	}
	parts := (len(tests) + most - 1) / most
	units := make([]Unit, parts)
	for i := range units {
		some := tests[i*len(tests)/parts : (i+1)*len(tests)/parts]
		units[i] = Unit{Package: p, Part: i + 1, Parts: parts, Run: "^(" + strings.Join(some, "|") + ")$", Skip: strings.Join(skips, "|")}
	}
	return units, nil
}

// Inputs is all that a unit's result depends on, besides its own patterns.
type Inputs struct {
	// Release is uname -r of the kernel, Series what tests are told.
	Release, Series string
	// Machine is what runs the kernel's instructions, and how patient tests are.
	Machine string
	// Digests: of the test binary, the plugins' programs (for a package that runs
	// them), the files that the tests read, what starts the tests, and the tools.
	Binary, Plugins, Data, Guest, Tools string
}

// Sign sets the key of u.
func (u *Unit) Sign(in Inputs) error {
	if !u.Package.Plugins {
		in.Plugins = ""
	}
	raw, err := json.Marshal(struct {
		Inputs
		Run, Skip string
	}{in, u.Run, u.Skip})
	if err != nil {
		return err
	}
	u.Key = digest(raw)
	return nil
}

func digest(raw []byte) string { return fmt.Sprintf("%x", sha256.Sum256(raw)) }

// Digest is that of files: of their names below root, and what they hold.
func Digest(root string, names ...string) (string, error) {
	all := sha256.New()
	for _, name := range slices.Sorted(slices.Values(names)) {
		one := sha256.New()
		f, err := os.Open(filepath.Join(root, name))
		if err != nil {
			return "", err
		}
		_, err = io.Copy(one, f)
		_ = f.Close()
		if err != nil {
			return "", err
		}
		fmt.Fprintf(all, "%q %x\n", name, one.Sum(nil))
	}
	return fmt.Sprintf("%x", all.Sum(nil)), nil
}
