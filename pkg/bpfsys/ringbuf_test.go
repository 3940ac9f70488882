// SPDX-License-Identifier: Apache-2.0

package bpfsys_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/test/bpftest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// Sizes of records: the kernel wants a packet longer than its header, and the verifier a bound.
const (
	shortest = 15
	longest  = 255 // a mask of it bounds the length
	dropped  = 44  // of a discarded record, with padding in the ring
)

// ring is a ring buffer with programs that write to it.
type ring struct {
	testing.TB
	*bpfsys.Ring
	size             int
	record, discards *ebpf.Program
}

func newRing(t testing.TB) *ring {
	t.Helper()
	size := os.Getpagesize()
	m := newMap(t, ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: uint32(size)})
	r, err := bpfsys.OpenRing(bpftest.View(t, m))
	ok(t, err)
	t.Cleanup(func() { ok(t, r.Close()) })
	return &ring{
		TB: t, Ring: r, size: size,
		record:   newProgram(t, ebpf.ProgramSpec{Name: "record", Type: ebpf.SchedCLS, Instructions: output(m)}),
		discards: newProgram(t, ebpf.ProgramSpec{Name: "discards", Type: ebpf.SchedCLS, Instructions: discard(m)}),
	}
}

// output makes a record of the packet. It returns what bpf_ringbuf_output does, or what went wrong before.
func output(m *ebpf.Map) asm.Instructions {
	const buffer = -256
	ins := asm.Instructions{
		asm.LoadMem(asm.R7, asm.R1, 0, asm.Word), // skb->len
		asm.And.Imm(asm.R7, longest),
	}
	for at := int16(buffer); at < 0; at += 4 { // the verifier does not follow which bytes are loaded
		ins = append(ins, asm.StoreImm(asm.RFP, at, 0, asm.Word))
	}
	return append(ins,
		asm.Mov.Imm(asm.R0, 1),
		asm.JLT.Imm(asm.R7, shortest, "end"),
		asm.Mov.Imm(asm.R2, 0), asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, buffer), asm.Mov.Reg(asm.R4, asm.R7),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, "end"),
		asm.LoadMapPtr(asm.R1, m.FD()), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, buffer), asm.Mov.Reg(asm.R3, asm.R7),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnRingbufOutput.Call(),
		asm.Return().WithSymbol("end"),
	)
}

// discard reserves room for a record, writes to it and discards it. It returns 1 when there is no room.
func discard(m *ebpf.Map) asm.Instructions {
	return asm.Instructions{
		asm.LoadMapPtr(asm.R1, m.FD()), asm.Mov.Imm(asm.R2, dropped), asm.Mov.Imm(asm.R3, 0),
		asm.FnRingbufReserve.Call(),
		asm.JNE.Imm(asm.R0, 0, "got"),
		asm.Mov.Imm(asm.R0, 1), asm.Return(),
		asm.StoreImm(asm.R0, 0, 0x5555, asm.Word).WithSymbol("got"),
		asm.Mov.Reg(asm.R1, asm.R0), asm.Mov.Imm(asm.R2, 0),
		asm.FnRingbufDiscard.Call(),
		asm.Mov.Imm(asm.R0, 0), asm.Return(),
	}
}

// write has the kernel write a record of b; false when there is no room.
func (r *ring) write(b []byte) bool {
	r.Helper()
	ret, err := r.record.Run(&ebpf.RunOptions{Data: b})
	ok(r, err)
	if full := -int32(unix.EAGAIN); ret != 0 && int32(ret) != full {
		r.Fatalf("write a record of %d bytes: got %d, want 0 or %d", len(b), int32(ret), full)
	}
	return ret == 0
}

// discard has the kernel write a record that no reader must see; false when there is no room.
func (r *ring) discard() bool {
	r.Helper()
	ret, err := r.discards.Run(&ebpf.RunOptions{Data: make([]byte, shortest)})
	ok(r, err)
	return ret == 0
}

// next wants the next record to be want.
func (r *ring) next(what string, want []byte) {
	r.Helper()
	got, has, err := r.Next(netlab.Patient(10 * time.Second))
	ok(r, err)
	if !has || !bytes.Equal(got, want) {
		r.Fatalf("%s: got %x, %t, want %x", what, got, has, want)
	}
}

// nothing wants no record to come, and the time to be waited for.
func (r *ring) nothing(what string) {
	r.Helper()
	const patience = 50 * time.Millisecond
	start := time.Now()
	got, has, err := r.Next(patience)
	ok(r, err)
	if took := time.Since(start); has || got != nil || took < patience || took > netlab.Patient(10*time.Second) {
		r.Fatalf("%s: got %x, %t after %s, want nothing after %s", what, got, has, took, patience)
	}
}

// Records come in order and as they were written, of every length, over many rounds of the ring, with discarded ones between them;
// what was read or discarded gives its room back.
func TestPrivilegedRing(t *testing.T) {
	t.Parallel()
	r := newRing(t)
	random := rand.New(rand.NewPCG(1, 2))
	var waiting [][]byte
	written, full := 0, 0
	drain := func() {
		for i, want := range waiting {
			r.next(fmt.Sprintf("byte %d, record %d of %d", written, i, len(waiting)), want)
		}
		waiting = nil
	}
	for n := 0; written < netlab.Fewer(100, 10)*r.size; n++ {
		if random.IntN(4) == 0 && r.discard() {
			written += 8 + (dropped+7)&^7
		}
		b := make([]byte, shortest+random.IntN(longest-shortest+1))
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		binary.NativeEndian.PutUint32(b, uint32(n))
		if !r.write(b) {
			if len(waiting) == 0 {
				t.Fatalf("byte %d: the ring is full, and all has been read", written)
			}
			full++
			drain()
			continue
		}
		waiting = append(waiting, b)
		written += 8 + (len(b)+7)&^7
		if random.IntN(12) == 0 {
			drain()
		}
	}
	drain()
	r.nothing("all has been read")
	t.Logf("%d bytes through a ring of %d, which was full %d times", written, r.size, full)
	if full == 0 {
		t.Error("the ring was never full: the test shows less than it should")
	}
}

func TestPrivilegedRingOnlyDiscarded(t *testing.T) {
	t.Parallel()
	r := newRing(t)
	r.nothing("empty")
	for round := range 3 {
		n := 0
		for ; r.discard(); n++ {
		}
		if n == 0 {
			t.Fatalf("round %d: there is no room", round)
		}
		r.nothing("only discarded ones")
	}
	want := bytes.Repeat([]byte{7}, shortest)
	equal(t, "room for a record", r.write(want), true)
	r.next("after discarded ones", want)
}

// Who waits is woken.
func TestPrivilegedRingWakes(t *testing.T) {
	t.Parallel()
	r := newRing(t)
	for n := range byte(5) {
		want, start := bytes.Repeat([]byte{n}, longest), time.Now()
		wrote := make(chan error, 1)
		go func() {
			time.Sleep(20 * time.Millisecond)
			_, err := r.record.Run(&ebpf.RunOptions{Data: want})
			wrote <- err
		}()
		got, has, err := r.Next(time.Minute)
		ok(t, err)
		ok(t, <-wrote)
		if took := time.Since(start); !has || !bytes.Equal(got, want) || took > 30*time.Second {
			t.Fatalf("got %x, %t after %s, want %x at once", got, has, took, want)
		}
	}
}

// What Next returned is the caller's: what comes after it does not change it.
func TestPrivilegedRingCopies(t *testing.T) {
	t.Parallel()
	r := newRing(t)
	kept := bytes.Repeat([]byte{1}, longest)
	equal(t, "room for a record", r.write(kept), true)
	got, _, err := r.Next(netlab.Patient(10 * time.Second))
	ok(t, err)
	for range 2 * r.size / longest {
		other := bytes.Repeat([]byte{2}, longest)
		equal(t, "room for another", r.write(other), true)
		r.next("another", other)
	}
	equal(t, "the first record", got, kept)
}

func TestPrivilegedRingOfHash(t *testing.T) {
	t.Parallel()
	_, v := hash.make(t)
	r, err := bpfsys.OpenRing(v)
	if errno := unix.Errno(0); err == nil || errors.As(err, &errno) {
		t.Errorf("a ring of a hash map: got %v, %v, want an error from before the system call", r, err)
	}
}
