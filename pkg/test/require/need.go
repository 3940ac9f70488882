// SPDX-License-Identifier: Apache-2.0

// Package require lets a test leave out what the running kernel cannot do, and
// what another make target runs (Asked). Each other function asks the kernel
// itself, in a network namespace made for the question, and skips the test with
// the text "missing feature: NAME" when the answer is a definite no. An answer
// that is neither yes nor no ends the test: no privileges, an unexpected errno.
//
// The kernel matrix (test/vm) compares the names with a list of what each
// kernel is known to lack. A skip for any other reason fails there, and so does
// a test that ran although the list says it cannot.
//
// The package imports nothing of ours, so tests of any package may use it.
package require

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Prefix starts the text of every skip; the feature's name follows.
const Prefix = "missing feature: "

// ErrMissing is what a probe returns, wrapped or not, when the kernel
// definitely lacks the feature.
var ErrMissing = errors.New("the kernel lacks it")

// Feature runs probe in a fresh network namespace with lo down, on a thread of
// its own. nil: the test goes on. ErrMissing: the test is skipped for the
// feature's name, which is a few words without a version ("qdisc fq"). Any
// other error ends the test.
func Feature(t testing.TB, name string, probe func() error) {
	t.Helper()
	skipWithout(t, name, inFreshNetns(probe))
}

// skipWithout is Feature with the probe's answer.
func skipWithout(t testing.TB, name string, err error) {
	t.Helper()
	switch {
	case errors.Is(err, ErrMissing):
		t.Skip(Prefix + name)
	case err != nil:
		t.Fatalf("ask the kernel for %s: %v", name, err)
	}
}

// LeftTo is the text of a skip by Asked; the target follows.
const LeftTo = "left to: "

// Asked skips a test that takes what an ordinary run does not have: hours, the
// network, programs built from source. target is the command that runs it
// ("make runtimes"), and asked says that this is such a run.
func Asked(t testing.TB, asked bool, target string) {
	t.Helper()
	if !asked {
		t.Skip(LeftTo + target)
	}
}

// Has is Feature for a test that wants to know and goes on either way.
func Has(t testing.TB, name string, probe func() error) bool {
	t.Helper()
	err := inFreshNetns(probe)
	if err != nil && !errors.Is(err, ErrMissing) {
		t.Fatalf("ask the kernel for %s: %v", name, err)
	}
	return err == nil
}

// inFreshNetns runs f on a thread that ends with it, and the namespace with the
// thread. The process's first thread cannot end, so it is never taken.
func inFreshNetns(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			err := inFreshNetns(f)
			runtime.UnlockOSThread()
			done <- err
			return
		}
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("make a network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}
