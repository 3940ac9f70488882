// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
	"github.com/sluice-cni/sluice/test/vm/image"
	"github.com/sluice-cni/sluice/test/vm/qemu"
	"github.com/sluice-cni/sluice/test/vm/suite"
	"github.com/sluice-cni/sluice/test/vm/unit"
)

// Where things are in a machine.
const (
	guestHome      = "/sluice"
	guestSource    = "/src"
	guestReference = guestHome + "/reference"
)

// EnvKernel tells a test the series it runs on, to find its line in a table.
const EnvKernel = "SLUICE_TEST_KERNEL"

// work is a run's own directory, gone after it.
type work struct {
	*options
	dir      string
	build    string // of the binaries, kept from run to run
	base     string // archive of the tools
	packages []suite.Package
	files    []string // of the tree
	inputs   unit.Inputs
	digests  map[string][2]string // of each package: its binary, what its tests read
}

// prepare builds everything that does not depend on the kernel.
func (o *options) prepare(ctx context.Context) (_ *work, err error) {
	w := &work{options: o}
	switch {
	case o.exec != "":
	case o.shell != "":
		w.packages, err = suite.Find(ctx, o.root, o.packages...)
	default:
		w.packages, err = o.find(ctx)
	}
	if err != nil {
		return nil, err
	}
	w.build = o.buildDir()
	if err := suite.Build(ctx, o.root, w.build, w.packages); err != nil {
		return nil, err
	}
	if w.base, err = o.baseArchive(ctx); err != nil {
		return nil, err
	}
	if w.files, err = sourceFiles(ctx, o.root); err != nil {
		return nil, err
	}
	if err := w.digest(); err != nil {
		return nil, err
	}
	o.removeLeftovers()
	w.dir, err = os.MkdirTemp(o.cache, "run-")
	return w, err
}

// digest finds what the results of units depend on.
func (w *work) digest() error {
	w.digests = map[string][2]string{}
	for _, p := range w.packages {
		binary, err := unit.Digest(w.build, "tests/"+p.BinaryName())
		if err != nil {
			return err
		}
		data, err := unit.Digest(w.root, suite.Data(p, w.files)...)
		if err != nil {
			return err
		}
		w.digests[p.Path] = [2]string{binary, data}
	}
	programs := []string{"bin/sluice"}
	for _, p := range suite.Programs() {
		programs = append(programs, "bin/"+p.Name)
	}
	var err error
	if w.inputs.Plugins, err = unit.Digest(w.build, programs...); err != nil {
		return err
	}
	w.inputs.Guest, err = unit.Digest(w.build, "guest")
	w.inputs.Tools = filepath.Base(w.base)
	return err
}

// sign sets the key of a unit under a kernel.
func (w *work) sign(k kernel, u *unit.Unit) error {
	in, of := w.inputs, w.digests[u.Package.Path]
	in.Release, in.Series, in.Binary, in.Data = k.Release, k.Series, of[0], of[1]
	return u.Sign(in)
}

// find returns the packages to test, at least one.
func (o *options) find(ctx context.Context) ([]suite.Package, error) {
	packages, err := suite.Find(ctx, o.root, o.packages...)
	if err == nil && len(packages) == 0 {
		err = fmt.Errorf("no package among %s has privileged tests for a kernel", strings.Join(o.packages, ", "))
	}
	return packages, err
}

// buildDir is where the binaries and the logs of this tree are kept from run to
// run.
func (o *options) buildDir() string {
	return filepath.Join(o.cache, "build", fmt.Sprintf("%x", sha256.Sum256([]byte(o.root)))[:12])
}

// removeLeftovers takes away what killed runs have left, once it is a day old.
func (o *options) removeLeftovers() {
	for _, pattern := range []string{"run-*", "fetch-*"} {
		dirs, _ := filepath.Glob(filepath.Join(o.cache, pattern)) // the pattern is good
		for _, d := range dirs {
			if st, err := os.Stat(d); err == nil && time.Since(st.ModTime()) > 24*time.Hour {
				_ = os.RemoveAll(d)
			}
		}
	}
}

func (w *work) close() error { return os.RemoveAll(w.dir) }

// baseArchive returns the archive of the tools, made anew when one of them
// changed.
func (o *options) baseArchive(ctx context.Context) (string, error) {
	key, err := image.BaseKey()
	if err != nil {
		return "", err
	}
	file := filepath.Join(o.cache, "base-"+key+".cpio")
	unlock, err := o.lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	old, err := filepath.Glob(filepath.Join(o.cache, "base-*.cpio"))
	if err != nil {
		return "", err
	}
	if err := image.Base(ctx, file+".new"); err != nil {
		return "", errors.Join(err, os.Remove(file+".new"))
	}
	for _, f := range old {
		_ = os.Remove(f)
	}
	return file, os.Rename(file+".new", file)
}

// initrd writes a machine's initramfs: tools, modules, tests and what to do, in
// that order. packages are those whose tests it has. name is the machine's.
func (w *work) initrd(k kernel, name string, set *suite.Set, packages []suite.Package) (_ string, err error) {
	tests := filepath.Join(w.dir, "tests-"+name+".cpio")
	if err := w.testArchive(tests, set, packages); err != nil {
		return "", err
	}
	file := filepath.Join(w.dir, "initrd-"+name)
	out, err := os.Create(file)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, out.Close(), os.Remove(tests)) }()
	for _, part := range []string{w.base, k.Modules, tests} {
		if err := appendFile(out, part); err != nil {
			return "", err
		}
	}
	return file, nil
}

func appendFile(to io.Writer, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(to, f)
	return err
}

// testArchive packs what changes: files of the tree that tests read, the
// binaries, and what a machine runs. A shell and a command have the whole tree.
func (w *work) testArchive(name string, set *suite.Set, packages []suite.Package) error {
	raw, err := set.JSON()
	if err != nil {
		return err
	}
	files := w.files
	if w.shell == "" && w.exec == "" {
		files = nil
		for _, p := range packages {
			files = append(files, suite.Data(p, w.files)...)
		}
		slices.Sort(files)
		files = slices.Compact(files)
	}
	a, err := image.Create(name)
	if err != nil {
		return err
	}
	a.Text(guestHome[1:]+"/suites.json", string(raw), 0o644)
	for _, f := range files {
		a.File(filepath.Join(w.root, f), filepath.Join(guestSource, f)[1:])
	}
	a.File(filepath.Join(w.build, "guest"), "init")
	a.Symlink("/init", "usr/sbin/modprobe")
	a.Symlink("/init", "usr/sbin/guest")
	bin := guestHome[1:] + "/bin/"
	for _, p := range suite.Programs() {
		names := []string{bin + p.Name}
		for _, plugin := range p.Plugins {
			names = append(names, bin+plugin)
		}
		a.Files(filepath.Join(w.build, "bin", p.Name), names...)
	}
	a.File(filepath.Join(w.build, "bin", "sluice"), bin+"sluice")
	if w.reference {
		if err := addReference(a); err != nil {
			return err
		}
	}
	for _, f := range w.with {
		a.File(f, bin+filepath.Base(f))
	}
	if w.exec != "" {
		a.Text(suite.ExecScript[1:], "PATH="+guestHome+"/bin:$PATH\n"+w.exec+"\n", 0o755)
	}
	a.Dir(guestSource[1:])
	for _, p := range packages {
		a.Dir(filepath.Join(guestSource, p.Path)[1:])
		a.File(filepath.Join(w.build, "tests", p.BinaryName()), guestHome[1:]+"/tests/"+p.BinaryName())
	}
	return a.Close()
}

// addReference packs upstream's plugins that tests compare with.
func addReference(a *image.Archive) error {
	names := []string{"bridge", "ptp", "host-local", "portmap", "firewall", "bandwidth", "static"}
	dir, err := testbin.Reference(context.Background(), names...)
	if err != nil {
		return err
	}
	for _, name := range names {
		a.File(filepath.Join(dir, name), guestReference[1:]+"/"+name)
	}
	return nil
}

// set describes what a machine of a series runs.
func (w *work) set(series string, units []unit.Unit) *suite.Set {
	s := &suite.Set{
		Env: map[string]string{
			testbin.EnvDir: guestHome + "/bin", netlab.EnvPatience: fmt.Sprint(w.patience), EnvKernel: series, netlab.EnvNIC: qemu.NIC,
		},
		Args:    []string{"-test.count=1"},
		Timeout: suite.Duration{Duration: w.timeout},
	}
	if w.reference {
		s.Env[testbin.EnvReference] = guestReference
	}
	for _, u := range units {
		s.Suites = append(s.Suites, suite.Suite{
			Package: u.Package.Path, Binary: guestHome + "/tests/" + u.Package.BinaryName(), Dir: guestSource + "/" + u.Package.Path,
			Args: []string{"-test.run=" + u.Run, "-test.skip=" + u.Skip},
		})
	}
	return s
}

// units are those of a series, each as it is now.
func (w *work) units(k kernel) (units []unit.Unit, err error) {
	for _, p := range w.packages {
		if w.quick && k.Series != w.kernels[0] && slices.Contains(quickFloor, "./"+p.Path) {
			continue
		}
		some := []unit.Unit{unit.Whole(p, w.run, strings.TrimPrefix(w.skipArg(w.skip), skipFlag))}
		if w.everything() {
			if whole, sample := wholePackages[k.Series]; sample {
				p = sampled(p, whole)
			}
			skips := append(suite.Skips(w.reference), leftOut(p.Path, k.Series == firstKernel())...)
			if some, err = unit.Divide(p, skips...); err != nil {
				return nil, err
			}
		}
		for _, u := range some {
			if err := w.sign(k, &u); err != nil {
				return nil, err
			}
			units = append(units, u)
		}
	}
	return units, nil
}

func (o *options) testArgs() []string {
	return []string{"-test.run=" + o.run, o.skipArg(o.skip), "-test.count=1"}
}

// skipArg leaves out what matches more, besides what cannot run in a machine.
func (o *options) skipArg(more string) string {
	if more != "" {
		more = "|" + more
	}
	return skipFlag + strings.Join(suite.Skips(o.reference), "|") + more
}

const skipFlag = "-test.skip="

// everything reports whether tests were not selected.
func (o *options) everything() bool { return o.run == defaultRun && o.skip == "" }

// firstKernel is the oldest of the matrix. It alone runs firstOnly.
func firstKernel() string { first, _, _ := strings.Cut(allKernels, ","); return first }

// everyTest reports whether all tests that the matrix has run under a kernel.
func (o *options) everyTest(series string) bool { return o.everything() && series == firstKernel() }

// sourceFiles returns the tree's files as git sees them, tracked or new.
func sourceFiles(ctx context.Context, root string) ([]string, error) {
	cmd := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	var files []string
	for f := range bytes.SplitSeq(out, []byte{0}) {
		name := string(f)
		if st, err := os.Stat(filepath.Join(root, name)); name == "" || err != nil || !st.Mode().IsRegular() {
			continue // deleted in the working tree
		}
		files = append(files, name)
	}
	return files, nil
}
