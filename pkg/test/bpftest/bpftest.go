// SPDX-License-Identifier: Apache-2.0

// Package bpftest lets a test that makes its maps by cilium/ebpf look at them through pkg/bpfsys: the library remains the witness of
// what is in them.
package bpftest

import (
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfsys"
)

// View returns m as pkg/bpfsys has maps. It has a descriptor of its own, which goes with the test.
func View(t testing.TB, m *ebpf.Map) *bpfsys.Map {
	t.Helper()
	fd, err := unix.FcntlInt(uintptr(m.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("duplicate the descriptor of %s: %v", m, err)
	}
	v, err := bpfsys.MapFromFD(fd) // closes fd when it fails
	if err != nil {
		t.Fatalf("view of %s: %v", m, err)
	}
	t.Cleanup(func() { _ = v.Close() })
	return v
}

// NewMap makes a map that goes with the test. Before Linux 5.11, maps are charged to RLIMIT_MEMLOCK, which it lifts.
func NewMap(t testing.TB, spec *ebpf.MapSpec) *ebpf.Map {
	t.Helper()
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	_ = unix.Prlimit(0, unix.RLIMIT_MEMLOCK, &unlimited, nil) // without it, the error of a map says so
	m, err := ebpf.NewMap(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}
