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

	"github.com/sluice-cni/sluice/loader/internal/programs"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

// memoryGoal is what all maps of a node may take at the largest defaults, bytes.
const memoryGoal = 77 << 20

// All pinned maps at the sizes of a large node, as kernels before 6.4 charge them: full. Later ones charge what is there, which is
// never more.
func TestPrivilegedMapMemory(t *testing.T) {
	e := newEnv(t)
	e.o.Config.MapSizes = nodeconf.MapSizes{
		Conntrack: programs.MaxConntrack, ConntrackUnassured: programs.MaxConntrack / programs.AssuredPerNew, Endpoints: programs.MaxEndpoints,
	}
	d := e.open()
	entries, err := os.ReadDir(d.tree.Paths.Maps())
	e.ok(err)
	var total, kernel uint64
	for _, entry := range entries {
		m, err := ebpf.LoadPinnedMap(d.tree.Paths.MapPin(entry.Name()), nil)
		e.ok(err)
		defer m.Close()
		n, full := charged(t, m), fullSize(m)
		t.Logf("%-16s %10d bytes, %10d in the kernel's books", entry.Name(), full, n)
		total += max(n, full)
		kernel += n
	}
	t.Logf("%-16s %10d bytes, %10d in the kernel's books", "all", total, kernel)
	if total == 0 || total > memoryGoal {
		t.Errorf("the maps take %d bytes, want at most %d", total, memoryGoal)
	}
}

// fullSize is what a map with all its entries takes without per-CPU values, whose number is the machine's (htab_map_alloc,
// trie_alloc, array_map_alloc, dev_map_alloc of Linux 5.10).
func fullSize(m *ebpf.Map) uint64 {
	round := func(n uint32) uint64 { return (uint64(n) + 7) &^ 7 }
	n := uint64(m.MaxEntries())
	value := round(m.ValueSize())
	switch m.Type() {
	case ebpf.PerCPUHash, ebpf.LRUCPUHash:
		value = 8
	case ebpf.PerCPUArray, ebpf.RingBuf:
		return 0
	case ebpf.Array:
		return n * value
	case ebpf.DevMapHash: // dev_map_init_map, struct bpf_dtab_netdev
		return 8*roundUpPow2(n) + n*96
	case ebpf.LPMTrie:
		return n * (40 + round(m.KeySize()-4+m.ValueSize()))
	}
	return 16*roundUpPow2(n) + n*(48+round(m.KeySize())+value)
}

// roundUpPow2 returns the lowest power of two that is at least n.
func roundUpPow2(n uint64) uint64 {
	p := uint64(1)
	for p < n {
		p *= 2
	}
	return p
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
