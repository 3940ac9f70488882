// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-cni/sluice/bench/subject"
	"github.com/sluice-cni/sluice/pkg/test/vmtest"
)

// guestReference is where upstream's plugins are while a virtual machine is
// made: below the module, so that they go in with the tree. The test that runs in
// there finds them at the same place.
const guestReference = "testdata/reference"

// podMemory is what a pod of a virtual machine takes of its memory, in megabytes: a network namespace is the most of it.
const podMemory = 2

// addInGuest times ADD under another kernel. Its clock counts instructions: measured in real time, an emulator's first look at each
// piece of code would be most of what a short process takes. Sluice alone is timed with the flags that f got.
func addInGuest(ctx context.Context, series string, f *flag.FlagSet, a *adds) error {
	if strings.Contains(a.peers, subject.Reference) {
		if err := refuse(f, func(name string) bool { return name != "guest" && name != "reference-bin" }); err != nil {
			return fmt.Errorf("%w: leave the reference out, by -peers %s", err, subject.Sluice)
		}
		return referenceInGuest(ctx, series, a.refBin, a.plugins)
	}
	line, err := commandLine("add", f)
	if err != nil {
		return err
	}
	return runInGuest(ctx, series, line, podMemory*slices.Max(a.pods))
}

// referenceInGuest times every plugin of both suites. It runs TestPrivilegedAdd, which is this command again.
func referenceInGuest(ctx context.Context, series, refBin string, plugins []string) (err error) {
	dir := filepath.Join("bench", guestReference)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("from the module's directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(filepath.Dir(dir))) }()
	if _, err := subject.ReferenceSuite(ctx, refBin, dir, plugins); err != nil {
		return fmt.Errorf("copy the reference's plugins (left by a run that was killed? remove %s): %w", dir, err)
	}
	return vmtest.Run(ctx, "-icount", "-kernels", series, "-v", "-run", "^TestPrivilegedAdd$", "./bench")
}

// quickInGuest compares peers under another kernel, with the flags that f got. Its clock counts instructions too, so what else the
// machine does changes nothing.
func quickInGuest(ctx context.Context, series string, f *flag.FlagSet, peers string) error {
	if strings.Contains(peers, subject.Reference) {
		return fmt.Errorf("-guest has no plugins of the reference: leave it out of -peers, as in direct,%s,%s", subject.Sluice, subject.SluiceNetkit)
	}
	line, err := commandLine("quick", f)
	if err != nil {
		return err
	}
	return runInGuest(ctx, series, line, 0)
}

// refuse names the flags that were given and that the machine would not be told of.
func refuse(f *flag.FlagSet, lost func(name string) bool) (err error) {
	f.Visit(func(given *flag.Flag) {
		if lost(given.Name) {
			err = errors.Join(err, fmt.Errorf("-%s has no effect beside -guest", given.Name))
		}
	})
	return err
}

// commandLine is a command of this program as the machine's shell is told it.
func commandLine(command string, f *flag.FlagSet) ([]string, error) {
	err := refuse(f, func(name string) bool { return slices.Contains([]string{"sluice-bin", "reference-bin", "out"}, name) })
	line := []string{command, "-sluice-bin", "/sluice/bin", "-out", "/tmp/out.json"}
	f.Visit(func(given *flag.Flag) {
		if given.Name != "guest" {
			line = append(line, "-"+given.Name+"='"+given.Value.String()+"'")
		}
	})
	return line, err
}

// runInGuest runs this program in the machine, which gets that many megabytes more than for tests.
func runInGuest(ctx context.Context, series string, line []string, memory int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return vmtest.Run(ctx, "-icount", "-kernels", series, "-memory", strconv.Itoa(memory),
		"-with", self, "-exec", filepath.Base(self)+" "+strings.Join(line, " "))
}
