// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/programs"
)

// memoryGoal is what all maps of a node may take at the largest defaults, bytes.
const memoryGoal = 64 << 20

// All pinned maps at the sizes of a large node and without entries, as the kernel charges them. Before 6.4 it charges maps that
// take memory with their entries as if they were full.
func TestPrivilegedMapMemory(t *testing.T) {
	e := newEnv(t)
	e.o.Config.MapSizes.Conntrack, e.o.Config.MapSizes.ConntrackUnassured = programs.MaxFlows, programs.MaxFlows/programs.FlowsPerNew
	d := e.open()
	entries, err := os.ReadDir(d.tree.Paths.Maps())
	e.ok(err)
	var total uint64
	asFull := chargesAsFull(t)
	for _, entry := range entries {
		m, err := ebpf.LoadPinnedMap(d.tree.Paths.MapPin(entry.Name()), nil)
		e.ok(err)
		defer m.Close()
		n := charged(t, m)
		if asFull && m.Flags()&unix.BPF_F_NO_PREALLOC != 0 {
			n = emptySize(m)
		}
		t.Logf("%-16s %10d bytes", entry.Name(), n)
		total += n
	}
	if total == 0 || total > memoryGoal {
		t.Errorf("the maps take %d bytes, want at most %d", total, memoryGoal)
	}
}

// chargesAsFull reports whether the kernel charges entries that are not there.
func chargesAsFull(t *testing.T) bool {
	t.Helper()
	const entries, size = 1024, 1024
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: size, MaxEntries: entries, Flags: unix.BPF_F_NO_PREALLOC})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	return charged(t, m) >= entries*size
}

// emptySize is what a map without entries takes: the heads of a hash map's lists, 16 bytes each, and what each CPU keeps ready.
func emptySize(m *ebpf.Map) uint64 {
	ready := uint64(ebpf.MustPossibleCPU()) * uint64(m.KeySize()+m.ValueSize()+64)
	if m.Type() == ebpf.LPMTrie {
		return 4096
	}
	buckets := uint64(1)
	for buckets < uint64(m.MaxEntries()) {
		buckets *= 2
	}
	return 16*buckets + ready
}

// charged is the memory the kernel accounts for a map (bpf_map_show_fdinfo).
func charged(t *testing.T, m *ebpf.Map) uint64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", m.FD()))
	if err != nil {
		t.Fatal(err)
	}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		if v, ok := strings.CutPrefix(s.Text(), "memlock:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(v), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("the kernel does not say what the map takes")
	return 0
}
