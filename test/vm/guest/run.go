// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/test/vm/result"
	"github.com/sluice-cni/sluice/test/vm/suite"
)

// runMain runs the suites of a file one after the other. As a stream, standard
// output gets the frames of package result; otherwise it is for a person. The
// error says that something failed.
func runMain(file string, stream bool) error {
	set, err := suite.ReadSet(file)
	if err != nil {
		return err
	}
	for k, v := range set.Env {
		if err := os.Setenv(k, v); err != nil {
			return err
		}
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return err
	}
	release := unix.ByteSliceToString(uts.Release[:])
	if stream {
		result.Kernel(os.Stdout, release)
	} else {
		fmt.Printf("kernel %s\n", release)
	}
	var failed []string
	for _, s := range set.Suites {
		r, err := runSuite(set, s, stream)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Package, err)
		}
		if !r.OK() {
			failed = append(failed, s.Package)
		}
	}
	if stream {
		result.Done(os.Stdout)
	}
	if len(failed) > 0 {
		return fmt.Errorf("failed: %s", strings.Join(failed, ", "))
	}
	return nil
}

// runSuite runs one test binary and reports on it.
func runSuite(set *suite.Set, s suite.Suite, stream bool) (*result.Suite, error) {
	ctx, cancel := context.WithTimeout(context.Background(), set.Timeout.Duration+time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.Binary, append([]string{"-test.v=test2json", "-test.timeout=" + set.Timeout.String()}, slices.Concat(set.Args, s.Args)...)...)
	cmd.Dir = s.Dir
	cmd.WaitDelay = 5 * time.Second // a child that keeps the pipe must not hold us up
	read, write := io.Pipe()
	cmd.Stdout, cmd.Stderr = write, write
	r := result.NewSuite(s.Package)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewReader(read); ; {
			line, err := lines.ReadString('\n')
			if stream {
				_, _ = io.WriteString(os.Stdout, line)
			}
			r.Line(strings.TrimRight(line, "\n"))
			if err != nil {
				return
			}
		}
	}()
	if stream {
		result.Begin(os.Stdout, s.Package)
	}
	start := time.Now()
	err := cmd.Run()
	_ = write.Close()
	<-done
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		return nil, err
	}
	r.Exit, r.Seconds = exitStatus(cmd.ProcessState), time.Since(start).Seconds()
	if stream {
		result.End(os.Stdout, r.Exit, r.Seconds)
		return r, nil
	}
	return r, result.Print(os.Stdout, r)
}

// exitStatus is what a shell makes of it: ExitCode has -1 for a process that a
// signal ended, which in a report is one that never ended.
func exitStatus(p *os.ProcessState) int {
	if status, ok := p.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return p.ExitCode()
}
