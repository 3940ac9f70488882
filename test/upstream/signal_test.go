// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Who ends it, by ctrl-C, timeout(1) or a CI, does not keep the hundreds of megabytes that it has compiled.
func TestEndedLeavesNothing(t *testing.T) {
	for _, signal := range []os.Signal{unix.SIGINT, unix.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			tmp := t.TempDir()
			binary := filepath.Join(t.TempDir(), "reference")
			if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			cmd := exec.Command(binary, "-suites", "static")
			cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = cmd.Process.Kill() }()
			left := func() []string {
				found, _ := filepath.Glob(filepath.Join(tmp, "sluice-*")) // the pattern is good
				return found
			}
			for deadline := time.Now().Add(time.Minute); len(left()) == 0; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("it has not begun")
				}
			}
			if err := cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err == nil {
				t.Error("it was ended and says that all is well")
			}
			if found := left(); len(found) > 0 {
				t.Errorf("left behind: %v", found)
			}
		})
	}
}
