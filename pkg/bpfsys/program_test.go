// SPDX-License-Identifier: Apache-2.0

package bpfsys_test

import (
	"errors"
	"math"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfsys"
)

func TestPrivilegedProgram(t *testing.T) {
	t.Parallel()
	dir := newBPFFS(t)
	for _, name := range []string{"a", "fifteen_letters"} {
		p := newProgram(t, ebpf.ProgramSpec{Name: name, Type: ebpf.SchedCLS, Instructions: verdict(0)})
		want := bpfsys.ProgramInfo{ID: programID(t, p), Name: name}
		equal(t, "the library's name", programInfo(t, p).Name, name)

		byPin := pinned(t, dir, p)
		got, err := byPin.Info()
		ok(t, err)
		equal(t, "by its pin", got, want)

		byID, err := bpfsys.ProgramFromID(want.ID)
		ok(t, err)
		got, err = byID.Info()
		ok(t, err)
		equal(t, "by its number", got, want)
		ok(t, byID.Close())
	}
}

func TestPrivilegedNoProgram(t *testing.T) {
	t.Parallel()
	if p, err := bpfsys.ProgramFromID(math.MaxInt32); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a number that no program has: got %v, %v, want %v", p, err, unix.ENOENT)
	}
	p := newProgram(t, ebpf.ProgramSpec{Name: "gone", Type: ebpf.SchedCLS, Instructions: verdict(0)})
	id := programID(t, p)
	ok(t, p.Close())
	eventually(t, "ENOENT of a program that has gone", func() bool {
		p, err := bpfsys.ProgramFromID(id)
		if err == nil {
			_ = p.Close()
		}
		return errors.Is(err, unix.ENOENT)
	})
}
