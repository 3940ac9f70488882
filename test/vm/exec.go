// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/sluice-cni/sluice/test/vm/qemu"
)

// runExec runs a command in a machine of each kernel, one after the other, and prints what it says.
func (o *options) runExec(ctx context.Context) (err error) {
	kernels, err := o.prepareKernels(ctx, o.kernels)
	if err != nil {
		return err
	}
	e, err := o.emulator(ctx)
	if err != nil {
		return err
	}
	w, err := o.prepare(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := w.accelerate(ctx, e, kernels[0]); err != nil {
		return err
	}
	var errs []error
	for _, k := range kernels {
		if err := w.execIn(ctx, e, k); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", k.Series, err))
		}
	}
	return errors.Join(errs...)
}

func (w *work) execIn(ctx context.Context, e *qemu.Emulator, k kernel) error {
	initrd, err := w.initrd(k, k.Series, w.set(k.Series, nil), nil)
	if err != nil {
		return err
	}
	defer os.Remove(initrd)
	fmt.Fprintf(os.Stderr, "kernel %s, %s\n", k.Release, e.Accel)
	m := &qemu.Machine{Kernel: k.Vmlinux, Initrd: initrd, Mode: "exec", Dir: filepath.Join(w.dir, "logs", k.Series), Timeout: w.timeout, Memory: w.memory}
	defer w.keepLogs(k)
	stop := tail(m.Results())
	out, err := e.Run(ctx, m)
	stop()
	switch {
	case err != nil:
		return err
	case !out.Finished:
		return fmt.Errorf("the machine ended without an exit status; see %s: %w", filepath.Join(w.logs(k), "console.log"), out.Err)
	case out.Status != 0:
		return fmt.Errorf("exit status %d", out.Status)
	}
	return nil
}

// tail prints what is written to a file, until it is stopped.
func tail(file string) (stop func()) {
	done, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		var seen int64
		for last := false; ; {
			if f, err := os.Open(file); err == nil {
				if _, err := f.Seek(seen, io.SeekStart); err == nil {
					n, _ := io.Copy(os.Stdout, f) // what it cannot print is in the file
					seen += n
				}
				_ = f.Close()
			}
			if last {
				return
			}
			select {
			case <-done:
				last = true
			case <-time.After(time.Second):
			}
		}
	}()
	return func() { close(done); <-gone }
}
