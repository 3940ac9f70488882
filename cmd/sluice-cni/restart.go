// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader"
)

const (
	// restarted is the variable by which a process knows since when it begins again: milliseconds of CLOCK_MONOTONIC.
	restarted = "SLUICE_RESTARTED"
	// restartFor is how long it does: more than an installer or a package manager needs for the other files.
	restartFor   = 5 * time.Second
	restartPause = 50 * time.Millisecond
)

// restarter begins the process again after an error that an upgrade causes: its files are replaced one after the other, so a plugin
// that has started may meet the helper of the next release. The file under this name is then the next release's too, or soon will be.
// args are the process's as it was started.
func restarter(args []string) func(err error, config []byte) {
	return func(err error, config []byte) {
		now := monotonic()
		since, perr := strconv.ParseInt(os.Getenv(restarted), 10, 64)
		if perr != nil || since > now {
			since = now
		}
		if !errors.Is(err, loader.ErrOtherRelease) || now-since > restartFor.Milliseconds() {
			return
		}
		time.Sleep(restartPause)
		_ = again(args, config, since) // if that fails, the error is printed
	}
}

// again executes the file of this process with the configuration on standard input. It returns only if that fails.
func again(args []string, config []byte, since int64) error {
	path, err := os.Executable()
	if err != nil {
		return err
	}
	fd, err := unix.MemfdCreate("config", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "config")
	defer f.Close()
	if _, err := f.Write(config); err != nil {
		return err
	}
	if _, err := f.Seek(0, 0); err != nil {
		return err
	}
	if err := unix.Dup3(fd, 0, 0); err != nil {
		return err
	}
	if err := os.Setenv(restarted, strconv.FormatInt(since, 10)); err != nil {
		return err
	}
	return unix.Exec(path, args, os.Environ())
}

func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // it knows that clock
	return t.Nano() / int64(time.Millisecond)
}
