// SPDX-License-Identifier: Apache-2.0

package bpfsys_test

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/test/bpftest"
)

// What the kernel says about a map is what the library reads, whatever its type.
func TestPrivilegedMapInfo(t *testing.T) {
	t.Parallel()
	page := uint32(os.Getpagesize())
	for typ, want := range map[bpfsys.MapType]ebpf.MapSpec{
		bpfsys.Hash:        {Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: 3},
		bpfsys.Array:       {Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 4},
		bpfsys.PerCPUHash:  {Type: ebpf.PerCPUHash, KeySize: 4, ValueSize: 8, MaxEntries: 5},
		bpfsys.PerCPUArray: {Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: 6},
		bpfsys.LRUHash:     {Type: ebpf.LRUHash, KeySize: 4, ValueSize: 8, MaxEntries: 1024},
		bpfsys.LRUCPUHash:  {Type: ebpf.LRUCPUHash, KeySize: 4, ValueSize: 8, MaxEntries: 2048},
		bpfsys.LPMTrie:     {Type: ebpf.LPMTrie, KeySize: 8, ValueSize: 8, MaxEntries: 7, Flags: unix.BPF_F_NO_PREALLOC},
		bpfsys.DevMapHash:  {Type: ebpf.DevMapHash, KeySize: 4, ValueSize: 4, MaxEntries: 8},
		bpfsys.RingBuf:     {Type: ebpf.RingBuf, MaxEntries: 4 * page},
	} {
		m := newMap(t, want)
		i, err := m.Info()
		ok(t, err)
		id, _ := i.ID()
		v := bpftest.View(t, m)
		equal(t, "type", v.Type(), typ)
		equal(t, "number of the type", uint32(v.Type()), uint32(i.Type))
		equal(t, "name of the type", v.Type().String(), i.Type.String())
		equal(t, i.Type.String()+": ID", v.ID(), uint32(id))
		equal(t, i.Type.String()+": room", v.MaxEntries(), i.MaxEntries)
	}
	equal(t, "name of another type", bpfsys.MapType(77).String(), "MapType(77)")
}

// A ring buffer has no keys to walk.
func TestPrivilegedKeysOfRing(t *testing.T) {
	t.Parallel()
	v := bpftest.View(t, newMap(t, ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: uint32(os.Getpagesize())}))
	for what, err := range map[string]error{"Keys": err2(bpfsys.Keys[struct{}](v)), "CountKeys": err2(bpfsys.CountKeys(v))} {
		if !errors.Is(err, bpfsys.ErrNotSupported) {
			t.Errorf("%s: got %v, want %v", what, err, bpfsys.ErrNotSupported)
		}
	}
}

func TestPrivilegedOpenMap(t *testing.T) {
	t.Parallel()
	dir := newBPFFS(t)
	m, v := hash.make(t)
	path := filepath.Join(dir, "map")
	ok(t, m.Pin(path))
	opened, err := bpfsys.OpenMap(path)
	ok(t, err)
	equal(t, "ID", opened.ID(), v.ID())
	ok(t, bpfsys.Put(opened, uint32(1), valueOf(1)))
	equal(t, "contents", contents[uint32, value](t, m), map[uint32]value{1: valueOf(1)})
	flags, err := unix.FcntlInt(uintptr(opened.FD()), unix.F_GETFD, 0)
	ok(t, err)
	equal(t, "close on exec", flags&unix.FD_CLOEXEC, unix.FD_CLOEXEC)
	ok(t, opened.Close())
	hash.check(t, "closed", m, v, map[uint32]value{1: valueOf(1)})

	for _, open := range []func(string) error{
		func(p string) error { return err2(bpfsys.OpenMap(p)) },
		func(p string) error { return err2(bpfsys.OpenProgram(p)) },
		func(p string) error { return err2(bpfsys.OpenLink(p)) },
	} {
		none := filepath.Join(dir, "none")
		if err := open(none); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), none) {
			t.Errorf("a pin that is not there: got %v, want %v with its path", err, fs.ErrNotExist)
		}
		if err := open(dir + "\x00"); !errors.Is(err, unix.EINVAL) {
			t.Errorf("a path that is none: got %v, want %v", err, unix.EINVAL)
		}
	}
}

// What is no map is an error, and the descriptor is closed.
func TestPrivilegedMapFromOtherFD(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "file")
	fd, err := unix.Open(name, unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	ok(t, err)
	if m, err := bpfsys.MapFromFD(fd); err == nil {
		t.Errorf("a map of a file: got %+v, want an error", m)
	}
	if to, _ := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)); to == name { // another test may have the number by now
		t.Error("the descriptor is open still")
	}
	if _, err := bpfsys.MapFromFD(math.MaxInt32); !errors.Is(err, unix.EBADF) {
		t.Errorf("a map of no descriptor: got %v, want %v", err, unix.EBADF)
	}
}
