// SPDX-License-Identifier: Apache-2.0

// Package vmtest runs things under other kernels, by the command of test/vm. It needs the go command and the module's source.
package vmtest

import (
	"context"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// Run runs the kernel matrix' command with these arguments; it prints where this process does. Its machine ends with ctx, and with this process however it ends.
func Run(ctx context.Context, args ...string) error {
	// "go run" hands no signal on, so the command watches it, as it is watched itself.
	c := exec.CommandContext(ctx, "go", append([]string{"run", "-exec", "setpriv --pdeathsig TERM", "github.com/sluice-cni/sluice/test/vm"}, args...)...)
	c.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	runtime.LockOSThread() // to the kernel, the parent is a thread
	defer runtime.UnlockOSThread()
	return c.Run()
}
