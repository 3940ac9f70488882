// SPDX-License-Identifier: Apache-2.0

package loadapi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-cni/sluice/pkg/helperproc"
)

// fake answers with what it was asked.
type fake struct{}

var someAnswers = []ProbeResult{{Name: TCX, No: "too old"}, {Name: LRU}, {Name: FIBSrc, Unclear: "EPERM"}}

func someOrder() LoadRequest {
	return LoadRequest{
		Build: "b1", Objects: []string{"sl_from_pod", SockLB}, Dir: "/d", Maps: "/m", Sizes: map[string]uint32{"sl_ct": 7},
		Constants: Constants{
			FastPath: 1, AntiSpoof: true, AdmitMark: 1 << 31, FIBSrc: true, Coarse: true, SkNetns: true, Netkit: true, NetnsCookie: 1<<63 + 1,
			SNAT: [2][2]uint16{{61000, 65535}, {1024, 32767}}, SNATSecret: 5, CBCookie: [2]uint32{6, 1<<32 - 1},
		},
	}
}

func (fake) Probe(context.Context) ([]ProbeResult, error) { return someAnswers, nil }

func (fake) NetnsCookie(_ context.Context, cgroup string) (uint64, error) {
	b, err := os.ReadFile(filepath.Join(cgroup, "cookie"))
	return 1<<63 + uint64(len(b)), err
}

func (fake) Pin(_ context.Context, o LoadRequest) (LoadResult, error) {
	switch o.Dir {
	case "refuse":
		return LoadResult{}, fmt.Errorf("%w: %s", ErrRefused, o.Maps)
	case "layout":
		return LoadResult{}, ErrIncompatible
	}
	return LoadResult{NoSockLB: cmp.Diff(someOrder(), o, cmpopts.IgnoreFields(LoadRequest{}, "Lock"))}, nil
}

// TestMain lets this test binary be the helper.
func TestMain(m *testing.M) {
	if os.Getenv("TEST_SLUICE_HELPER") == "" {
		os.Setenv("TEST_SLUICE_HELPER", "1") // of what the tests start
		os.Exit(m.Run())
	}
	if err := helperproc.Serve(context.Background(), Jobs(fake{}), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// What is asked of the program and answered by it comes across whole.
func TestProgram(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := Subprocess{helperproc.Program{Path: exe}}
	got, err := p.Probe(t.Context())
	if diff := cmp.Diff(someAnswers, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "cookie"), []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, path := range []string{dir, fmt.Sprintf("/proc/self/fd/%d", root.Fd())} { // the latter is no path of another process
		if cookie, err := p.NetnsCookie(t.Context(), path); err != nil || cookie != 1<<63+3 {
			t.Errorf("%s: %d, %v", path, cookie, err)
		}
	}
	o := someOrder()
	if done, err := p.Pin(t.Context(), o); err != nil || done.NoSockLB != "" {
		t.Error(done, err)
	}
	o.Dir, o.Maps = "refuse", "why"
	if _, err := p.Pin(t.Context(), o); !errors.Is(err, ErrRefused) || errors.Is(err, ErrIncompatible) || err.Error() != ErrRefused.Error()+": why" {
		t.Error(err)
	}
	o.Dir = "layout"
	if _, err := p.Pin(t.Context(), o); !errors.Is(err, ErrIncompatible) {
		t.Error(err)
	}
}
