// SPDX-License-Identifier: Apache-2.0

package bpfsys

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MapType is an enum bpf_map_type.
type MapType uint32

// The types that are in use here.
const (
	Hash        MapType = unix.BPF_MAP_TYPE_HASH
	Array       MapType = unix.BPF_MAP_TYPE_ARRAY
	PerCPUHash  MapType = unix.BPF_MAP_TYPE_PERCPU_HASH
	PerCPUArray MapType = unix.BPF_MAP_TYPE_PERCPU_ARRAY
	LRUHash     MapType = unix.BPF_MAP_TYPE_LRU_HASH
	LRUCPUHash  MapType = unix.BPF_MAP_TYPE_LRU_PERCPU_HASH
	LPMTrie     MapType = unix.BPF_MAP_TYPE_LPM_TRIE
	RingBuf     MapType = unix.BPF_MAP_TYPE_RINGBUF
	DevMapHash  MapType = unix.BPF_MAP_TYPE_DEVMAP_HASH
)

// String returns the name that bpftool uses too, in Go's spelling.
func (t MapType) String() string {
	switch t {
	case Hash:
		return "Hash"
	case Array:
		return "Array"
	case PerCPUHash:
		return "PerCPUHash"
	case PerCPUArray:
		return "PerCPUArray"
	case LRUHash:
		return "LRUHash"
	case LRUCPUHash:
		return "LRUCPUHash"
	case LPMTrie:
		return "LPMTrie"
	case RingBuf:
		return "RingBuf"
	case DevMapHash:
		return "DevMapHash"
	}
	return "MapType(" + strconv.Itoa(int(t)) + ")"
}

// perCPU reports whether each CPU has a value of its own.
func (t MapType) perCPU() bool { return t == PerCPUHash || t == PerCPUArray || t == LRUCPUHash }

// Map is an open map. It is safe for concurrent use, but for Close.
type Map struct {
	readOnlyPin bool
	file
	i mapInfo
}

// mapInfo is the beginning of struct bpf_map_info.
type mapInfo struct {
	typ        MapType
	id         uint32
	keySize    uint32
	valueSize  uint32
	maxEntries uint32
}

// OpenMap opens the map that is pinned at path. fs.ErrNotExist: nothing is.
func OpenMap(path string) (*Map, error) {
	f, err := open(path)
	if errors.Is(err, unix.EROFS) {
		return openReadOnly(path)
	}
	if err != nil {
		return nil, err
	}
	return newMap(f)
}

// openReadOnly opens a map on a bpffs that is mounted read-only. The kernel then gives a descriptor for reading alone; the map's number
// leads to one for writing: the map itself is not read-only.
func openReadOnly(path string) (*Map, error) {
	f, err := openWith(path, unix.BPF_F_RDONLY)
	if err != nil {
		return nil, err
	}
	m, err := newMap(f)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	fd, err := call(unix.BPF_MAP_GET_FD_BY_ID, &idAttr{id: m.ID()})
	if err != nil {
		return nil, fmt.Errorf("open map %d of a read-only bpffs: %w", m.ID(), err)
	}
	w, err := newMap(file{fd})
	if err == nil {
		w.readOnlyPin = true
	}
	return w, err
}

// ReadOnlyPin reports whether the map's pin is on a bpffs that is mounted read-only.
func (m *Map) ReadOnlyPin() bool { return m.readOnlyPin }

// MapFromFD makes a Map of a descriptor of one, which it owns from now on.
func MapFromFD(fd int) (*Map, error) { return newMap(file{fd}) }

func newMap(f file) (*Map, error) {
	m := &Map{file: f}
	if err := info(f, &m.i); err != nil {
		return nil, errors.Join(fmt.Errorf("ask about map: %w", err), f.Close())
	}
	return m, nil
}

// Type is what kind of map it is.
func (m *Map) Type() MapType { return m.i.typ }

// ID is the kernel's number of it.
func (m *Map) ID() uint32 { return m.i.id }

// ValueSize returns the size of a value in bytes; of a per-CPU map, for one CPU.
func (m *Map) ValueSize() uint32 { return m.i.valueSize }

// MaxEntries is how many entries it has room for; of a ring buffer, how many bytes.
func (m *Map) MaxEntries() uint32 { return m.i.maxEntries }

// wrongSize is about K or V where the map has another size: the kernel would read or write past them.
func wrongSize(what string, ours uintptr, kernel uint32) error {
	return fmt.Errorf("the map has %ss of %d bytes, not %d", what, kernel, ours)
}

func checkKey[K any](m *Map) error {
	var k K
	if unsafe.Sizeof(k) != uintptr(m.i.keySize) {
		return wrongSize("key", unsafe.Sizeof(k), m.i.keySize)
	}
	return nil
}

func check[K, V any](m *Map) error {
	var v V
	if unsafe.Sizeof(v) != uintptr(m.i.valueSize) {
		return wrongSize("value", unsafe.Sizeof(v), m.i.valueSize)
	}
	if m.i.typ.perCPU() {
		return fmt.Errorf("each CPU has a value of the map's (%s)", m.i.typ)
	}
	return checkKey[K](m)
}

type elemAttr struct {
	fd    uint32
	_     uint32
	key   pointer
	value pointer // or the next key
	flags uint64
}

func (m *Map) elem(cmd int, key, value unsafe.Pointer, flags uint64) error {
	_, err := call(cmd, &elemAttr{fd: uint32(m.fd), key: pointer{p: key}, value: pointer{p: value}, flags: flags})
	return err
}

// found takes ENOENT for a no.
func found(err error) (bool, error) {
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// Lookup reads the value of k; false when there is none. K and V are key and value of the map as C has them.
func Lookup[V, K any](m *Map, k K) (v V, ok bool, err error) {
	if err := check[K, V](m); err != nil {
		return v, false, err
	}
	ok, err = found(m.elem(unix.BPF_MAP_LOOKUP_ELEM, unsafe.Pointer(&k), unsafe.Pointer(&v), 0))
	return v, ok, err
}

// Put writes the value of k, whether there is one or not. E2BIG, or ENOSPC for a trie: the map is full.
func Put[K, V any](m *Map, k K, v V) error {
	if err := check[K, V](m); err != nil {
		return err
	}
	return m.elem(unix.BPF_MAP_UPDATE_ELEM, unsafe.Pointer(&k), unsafe.Pointer(&v), unix.BPF_ANY)
}

// Replace writes the value of k if there is one; false when there is none.
func Replace[K, V any](m *Map, k K, v V) (bool, error) {
	if err := check[K, V](m); err != nil {
		return false, err
	}
	return found(m.elem(unix.BPF_MAP_UPDATE_ELEM, unsafe.Pointer(&k), unsafe.Pointer(&v), unix.BPF_EXIST))
}

// Delete removes k; false when it is not there.
func Delete[K any](m *Map, k K) (bool, error) {
	if err := checkKey[K](m); err != nil {
		return false, err
	}
	return found(m.elem(unix.BPF_MAP_DELETE_ELEM, unsafe.Pointer(&k), nil, 0))
}

// Remove is Delete, but a key that is not there is success.
func Remove[K any](m *Map, k K) error {
	_, err := Delete(m, k)
	return err
}

// NextKey returns the key after previous, the first one for nil; false after the last. What comes after a key that has gone
// in between is the first one, in a hash map.
func NextKey[K any](m *Map, previous *K) (next K, ok bool, err error) {
	if err := checkKey[K](m); err != nil {
		return next, false, err
	}
	ok, err = found(m.elem(unix.BPF_MAP_GET_NEXT_KEY, unsafe.Pointer(previous), unsafe.Pointer(&next), 0))
	return next, ok, err
}

// Keys returns the keys of m, no more than it has room for: a map that changes all the time can lead the walk in circles.
func Keys[K any](m *Map) ([]K, error) {
	var keys []K
	var previous *K
	for range m.i.maxEntries {
		next, ok, err := NextKey(m, previous)
		if err != nil || !ok {
			return keys, err
		}
		keys = append(keys, next)
		previous = &keys[len(keys)-1]
	}
	return keys, nil
}

// CountKeys returns how many entries m has, whatever its keys are, with the bounds of Keys. ErrNotSupported: a ring buffer has no
// keys.
func CountKeys(m *Map) (int, error) {
	key, next := make([]byte, m.i.keySize), make([]byte, m.i.keySize)
	var previous unsafe.Pointer
	for n := range int(m.i.maxEntries) {
		ok, err := found(m.elem(unix.BPF_MAP_GET_NEXT_KEY, previous, unsafe.Pointer(unsafe.SliceData(next)), 0))
		if err != nil || !ok {
			return n, err
		}
		key, next = next, key
		previous = unsafe.Pointer(unsafe.SliceData(key))
	}
	return int(m.i.maxEntries), nil
}

// checkPerCPU returns how many values an entry has. Those are 8 bytes apart or a multiple of it; V must be so long.
func checkPerCPU[K, V any](m *Map) (int, error) {
	var v V
	if !m.i.typ.perCPU() {
		return 0, fmt.Errorf("the map has one value for all CPUs (%s)", m.i.typ)
	}
	if unsafe.Sizeof(v) != uintptr(m.i.valueSize) || m.i.valueSize%8 != 0 {
		return 0, wrongSize("value", unsafe.Sizeof(v), m.i.valueSize)
	}
	if err := checkKey[K](m); err != nil {
		return 0, err
	}
	return PossibleCPUs()
}

// LookupPerCPU reads the values of k, one for each CPU; nil when there are none.
func LookupPerCPU[V, K any](m *Map, k K) ([]V, error) {
	n, err := checkPerCPU[K, V](m)
	if err != nil {
		return nil, err
	}
	values := make([]V, n)
	if ok, err := found(m.elem(unix.BPF_MAP_LOOKUP_ELEM, unsafe.Pointer(&k), unsafe.Pointer(&values[0]), 0)); !ok {
		return nil, err
	}
	return values, nil
}

// PutPerCPU writes v as the value of k on every CPU.
func PutPerCPU[K, V any](m *Map, k K, v V) error {
	n, err := checkPerCPU[K, V](m)
	if err != nil {
		return err
	}
	return putPerCPU(m, k, slices.Repeat([]V{v}, n))
}

// PutEachCPU writes values as those of k, one for each possible CPU, as LookupPerCPU returns them.
func PutEachCPU[K, V any](m *Map, k K, values []V) error {
	n, err := checkPerCPU[K, V](m)
	if err != nil {
		return err
	}
	if len(values) != n {
		return fmt.Errorf("%d values for %d CPUs", len(values), n)
	}
	return putPerCPU(m, k, values)
}

func putPerCPU[K, V any](m *Map, k K, values []V) error {
	return m.elem(unix.BPF_MAP_UPDATE_ELEM, unsafe.Pointer(&k), unsafe.Pointer(&values[0]), unix.BPF_ANY)
}

type batchAttr struct {
	in     pointer
	out    pointer
	keys   pointer
	values pointer
	count  uint32
	fd     uint32
	_      [2]uint64 // flags
}

// Batch walks a map many entries at a time.
type Batch[K, V any] struct {
	m       *Map
	cursor  []byte
	started bool
}

// NewBatch begins a walk.
func NewBatch[K, V any](m *Map) (*Batch[K, V], error) {
	if err := check[K, V](m); err != nil {
		return nil, err
	}
	// The kernel's place in the map: a key, or a number of 32 bits.
	return &Batch[K, V]{m: m, cursor: make([]byte, max(4, m.i.keySize))}, nil
}

// Next reads the next entries into keys and values, of one length, and returns how many; last says that there are no more.
// ErrNotSupported, with the first: the kernel has no such command for this type of map. ENOSPC: a bucket of the hash table holds more
// than fit; the walk goes on with larger slices.
func (b *Batch[K, V]) Next(keys []K, values []V) (n int, last bool, err error) {
	a := batchAttr{
		out: pointer{p: unsafe.Pointer(&b.cursor[0])}, keys: pointer{p: unsafe.Pointer(&keys[0])}, values: pointer{p: unsafe.Pointer(&values[0])},
		count: uint32(min(len(keys), len(values))), fd: uint32(b.m.fd),
	}
	if b.started {
		a.in = a.out
	}
	_, err = call(unix.BPF_MAP_LOOKUP_BATCH, &a)
	switch {
	case errors.Is(err, unix.ENOENT):
		last = true
	case errors.Is(err, unix.EINTR): // of a trie, before 6.14: entries went under its hands, after the a.count that it has read
		if a.count == 0 {
			return 0, false, nil
		}
	case err != nil:
		return 0, false, err
	}
	b.started = true
	return int(a.count), last, nil
}

// PossibleCPUs is how many CPUs the kernel has room for: so many values has an entry of a per-CPU map.
var PossibleCPUs = sync.OnceValues(func() (int, error) {
	raw, err := os.ReadFile("/sys/devices/system/cpu/possible")
	if err != nil {
		return 0, err
	}
	return parseCPUs(string(raw))
})

// parseCPUs reads a list like "0-3"; it has no holes, Documentation/admin-guide/cputopology.rst.
func parseCPUs(list string) (int, error) {
	list = strings.TrimSpace(list)
	if list == "0" {
		return 1, nil
	}
	last, ok := strings.CutPrefix(list, "0-")
	n, err := strconv.ParseUint(last, 10, 16)
	if !ok || err != nil {
		return 0, fmt.Errorf("possible CPUs: %q is no list from 0 on", list)
	}
	return int(n) + 1, nil
}
