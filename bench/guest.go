// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

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
