// SPDX-License-Identifier: Apache-2.0

package bpfsys_test

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/test/bpftest"
)

var (
	cpuHash  = kind[uint32]{spec: ebpf.MapSpec{Type: ebpf.PerCPUHash, MaxEntries: room}, key: number, full: unix.E2BIG}
	cpuArray = kind[uint32]{spec: ebpf.MapSpec{Type: ebpf.PerCPUArray, MaxEntries: room}, key: number, full: unix.E2BIG, array: true}
	cpuLRU   = kind[uint32]{spec: ebpf.MapSpec{Type: ebpf.LRUCPUHash, MaxEntries: ample}, key: number}
)

func TestPrivilegedPerCPUHash(t *testing.T)  { testPerCPU(t, cpuHash) }
func TestPrivilegedPerCPUArray(t *testing.T) { testPerCPU(t, cpuArray) }
func TestPrivilegedLRUCPUHash(t *testing.T)  { testPerCPU(t, cpuLRU) }

// everywhere is x on each CPU.
func everywhere(x value) []value {
	values := make([]value, ebpf.MustPossibleCPU())
	for i := range values {
		values[i] = x
	}
	return values
}

// different has another value on each CPU.
func different(i uint32) []value {
	values := everywhere(valueOf(i))
	for cpu := range values {
		values[cpu].A += uint64(cpu) << 32
	}
	return values
}

// testPerCPU holds what pkg/bpfsys does with a per-CPU map against what the library sees.
func testPerCPU(t *testing.T, k kind[uint32]) {
	t.Parallel()
	m, v := k.make(t)
	want := contents[uint32, []value](t, m)
	for i := range uint32(each) {
		ok(t, bpfsys.PutPerCPU(v, i, valueOf(i)))
		ok(t, m.Put(each+i, different(i)))
		want[i], want[each+i] = everywhere(valueOf(i)), different(i)
	}
	ok(t, bpfsys.PutPerCPU(v, uint32(each), valueOf(99)))
	want[uint32(each)] = everywhere(valueOf(99))
	k.checkPerCPU(t, "written", m, v, want)

	if !k.array {
		for _, there := range []bool{true, false} {
			was, err := bpfsys.Delete(v, uint32(2))
			ok(t, err)
			equal(t, "delete", was, there)
		}
		ok(t, bpfsys.Remove(v, uint32(3)))
		ok(t, bpfsys.Remove(v, uint32(3)))
		delete(want, 2)
		delete(want, 3)
		k.checkPerCPU(t, "deleted", m, v, want)
	}

	testWrongSize(t, k, v)
	for what, err := range map[string]error{ // each would take one value where the kernel reads or writes one for each CPU
		"Lookup": err3(bpfsys.Lookup[value](v, uint32(1))), "Put": bpfsys.Put(v, uint32(1), value{}),
		"Replace": err2(bpfsys.Replace(v, uint32(1), value{})), "NewBatch": err2(bpfsys.NewBatch[uint32, value](v)),
	} {
		if errno := unix.Errno(0); err == nil || errors.As(err, &errno) {
			t.Errorf("%s of a per-CPU map: got %v, want an error from before the system call", what, err)
		}
	}
	k.checkPerCPU(t, "after the wrong calls", m, v, want)

	if k.full != nil {
		all := map[uint32]value{}
		for key := range want {
			all[key] = value{}
		}
		k.testFull(t, m, v, all, func(key uint32, x value) error { return bpfsys.PutPerCPU(v, key, x) })
	}
}

func (k kind[K]) checkPerCPU(t testing.TB, when string, m *ebpf.Map, v *bpfsys.Map, want map[K][]value) {
	t.Helper()
	equal(t, when+": the library's contents", contents[K, []value](t, m), want)
	got := map[K][]value{}
	for key := range want {
		values, err := bpfsys.LookupPerCPU[value](v, key)
		ok(t, err)
		got[key] = values
	}
	equal(t, when+": contents", got, want)
	values, err := bpfsys.LookupPerCPU[value](v, k.missing())
	ok(t, err)
	equal(t, when+": what is not there", values, nil)
	k.checkKeys(t, when, m, v, len(want))
}

// Values that are not a multiple of 8 bytes lie apart in what the kernel writes: no slice of them would be right.
func TestPrivilegedPerCPUOddSize(t *testing.T) {
	t.Parallel()
	m := newMap(t, ebpf.MapSpec{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	v := bpftest.View(t, m)
	for what, err := range map[string]error{
		"LookupPerCPU": err2(bpfsys.LookupPerCPU[uint32](v, uint32(0))), "PutPerCPU": bpfsys.PutPerCPU(v, uint32(0), uint32(7)),
	} {
		if err == nil {
			t.Errorf("%s: got no error", what)
		}
	}
	var values []uint32
	ok(t, m.Lookup(uint32(0), &values))
	equal(t, "values", values, make([]uint32, ebpf.MustPossibleCPU()))
}

func TestPossibleCPUs(t *testing.T) {
	t.Parallel()
	want, err := ebpf.PossibleCPU()
	ok(t, err)
	got, err := bpfsys.PossibleCPUs()
	ok(t, err)
	equal(t, "CPUs", got, want)
}
