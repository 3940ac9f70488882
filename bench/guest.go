// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-cni/sluice/bench/subject"
	"github.com/sluice-cni/sluice/pkg/test/vmtest"
)

// guestReference is where upstream's plugins are while a virtual machine is
// made: below the module, so that they go in with the tree. The test that runs in
// there finds them at the same place.
const guestReference = "testdata/reference"

// addInGuest times ADD under another kernel: it boots one and runs
// TestPrivilegedAdd in it, which is this command again. Its clock counts
// instructions: measured in real time, an emulator's first look at each piece of
// code would be most of what a short process takes.
func addInGuest(ctx context.Context, series, refBin string, plugins []string) (err error) {
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
	self, err := os.Executable()
	if err != nil {
		return err
	}
	line := []string{filepath.Base(self), "quick", "-sluice-bin", "/sluice/bin", "-out", "/tmp/quick.json"}
	f.Visit(func(given *flag.Flag) {
		switch given.Name {
		case "guest":
		case "sluice-bin", "reference-bin", "out":
			err = errors.Join(err, fmt.Errorf("-%s has no effect beside -guest", given.Name))
		default:
			line = append(line, "-"+given.Name+"='"+given.Value.String()+"'")
		}
	})
	if err != nil {
		return err
	}
	return vmtest.Run(ctx, "-icount", "-kernels", series, "-with", self, "-exec", strings.Join(line, " "))
}
