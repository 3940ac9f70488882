// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// Poll returns when ask succeeds. It asks at least once, and no longer than an ordinary machine should need.
func Poll(ctx context.Context, limit time.Duration, what string, ask func(context.Context) error) error {
	late := time.Now().Add(netlab.Patient(limit))
	for {
		once, cancel := context.WithTimeout(ctx, 10*time.Second)
		err := ask(once)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || time.Now().After(late) {
			return fmt.Errorf("waiting until %s: %w", what, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// command runs a program of the real machine.
func command(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), err
}

func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	// Not over what is there: a program that runs cannot be written, and another name may be linked to it.
	if err := os.Remove(to); err != nil && !os.IsNotExist(err) {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, st.Mode().Perm())
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		_ = out.Close()
		return err
	}
	return out.Close()
}
