// SPDX-License-Identifier: Apache-2.0

package helperproc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var errOdd = errors.New("odd")

// TestMain lets this test binary be the helper.
func TestMain(m *testing.M) {
	if os.Getenv("TEST_SLUICE_HELPER") == "" {
		os.Setenv("TEST_SLUICE_HELPER", "1") // of what the tests start
		os.Exit(m.Run())
	}
	if err := Serve(context.Background(), jobs, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var jobs = map[string]Job{
	"double": {ErrorCodes: ErrorCodes{"odd": errOdd}, Do: func(_ context.Context, in json.RawMessage) (any, error) {
		var n int
		if err := json.Unmarshal(in, &n); err != nil {
			return nil, err
		}
		if n%2 == 1 {
			return nil, fmt.Errorf("%d is %w", n, errOdd)
		}
		return 2 * n, nil
	}},
	"read": {Do: func(_ context.Context, in json.RawMessage) (any, error) {
		var path string
		if err := json.Unmarshal(in, &path); err != nil {
			return nil, err
		}
		b, err := os.ReadFile(path)
		return string(b), err
	}},
	"wait": {Do: func(_ context.Context, in json.RawMessage) (any, error) {
		var fifo string
		if err := json.Unmarshal(in, &fifo); err != nil {
			return nil, err
		}
		b, err := os.ReadFile(fifo) // until the writer has closed it
		return len(b), err
	}},
	"noise": {Do: func(context.Context, json.RawMessage) (any, error) {
		fmt.Fprint(os.Stdout, "what? ")
		return 1, nil
	}},
}

func self(t *testing.T) Program {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Program{Path: exe}
}

func TestAsk(t *testing.T) {
	t.Parallel()
	var n int
	if err := self(t).Call(t.Context(), "double", 21*2, &n, nil, nil); err != nil || n != 84 {
		t.Errorf("%d, %v", n, err)
	}
}

// An error keeps its words, and what it is.
func TestError(t *testing.T) {
	t.Parallel()
	n := 0
	err := self(t).Call(t.Context(), "double", 3, &n, nil, jobs["double"].ErrorCodes)
	if !errors.Is(err, errOdd) || err.Error() != "3 is odd" {
		t.Errorf("%v", err)
	}
	err = self(t).Call(t.Context(), "double", "x", &n, nil, jobs["double"].ErrorCodes)
	if err == nil || errors.Is(err, errOdd) {
		t.Errorf("%v", err)
	}
}

func TestFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("inside"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var got string
	if err := self(t).Call(t.Context(), "read", File0, &got, f, nil); err != nil || got != "inside" {
		t.Errorf("%q, %v", got, err)
	}
}

// What goes wrong with the program itself says which, and what.
func TestProgramFails(t *testing.T) {
	t.Parallel()
	var n int
	missing := Program{Path: filepath.Join(t.TempDir(), Name)}
	if err := missing.Call(t.Context(), "double", 2, &n, nil, nil); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), missing.Path) {
		t.Errorf("missing: %v", err)
	}
	if err := (Program{}).Call(t.Context(), "double", 2, &n, nil, nil); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "/"+Name+":") {
		t.Errorf("missing beside this one: %v", err)
	}
	if err := self(t).Call(t.Context(), "nonesuch", 2, &n, nil, nil); err == nil || !strings.Contains(err.Error(), `"nonesuch"`) {
		t.Errorf("unknown job: %v", err)
	}
	if err := self(t).Call(t.Context(), "noise", nil, &n, nil, nil); err == nil || !strings.Contains(err.Error(), "what?") {
		t.Errorf("no JSON: %v", err)
	}
	if err := Serve(t.Context(), jobs, strings.NewReader("{"), io.Discard); err == nil {
		t.Error("half a request is served")
	}
}

// A helper whose caller has gone holds the caller's lock until it is done.
func TestLockOutlivesCaller(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	lock, fifo := filepath.Join(dir, "lock"), filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	take := func() (*os.File, error) {
		f, err := os.OpenFile(lock, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.Close()
			return nil, err
		}
		return f, nil
	}
	held, err := take()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		var n int
		done <- self(t).Call(t.Context(), "wait", fifo, &n, held, nil)
	}()
	w, err := os.OpenFile(fifo, os.O_WRONLY, 0) // until the helper reads
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	// As when the caller is killed. Not Close: Call has the file too.
	if err := unix.Dup3(int(null.Fd()), int(held.Fd()), unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	if f, err := take(); err == nil {
		f.Close()
		t.Error("the lock is free while the helper works")
	}
	w.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
	held.Close()
	if f, err := take(); err != nil {
		t.Errorf("after the helper's end: %v", err)
	} else {
		f.Close()
	}
}

// A caller that gives up takes the helper with it.
func TestCancel(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	var n int
	if err := self(t).Call(ctx, "wait", fifo, &n, nil, nil); err == nil {
		t.Error("it has an answer")
	}
}
