// SPDX-License-Identifier: Apache-2.0

package bpfsys_test

import (
	"encoding/binary"
	"errors"
	"strconv"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/test/bpftest"
)

type value struct{ A, B uint64 }

func valueOf(i uint32) value { return value{uint64(i)*3 + 1, ^uint64(i)} }

// trieKey is a struct bpf_lpm_trie_key for IPv4.
type trieKey struct {
	Bits uint32
	Addr [4]byte
}

// kind is a type of map with keys to use it with.
type kind[K comparable] struct {
	spec  ebpf.MapSpec
	key   func(i uint32) K
	array bool  // every key is there from the beginning to the end
	full  error // of writing one more than fit; nil: another one goes
}

func number(i uint32) uint32 { return i }

func host(i uint32) trieKey {
	k := trieKey{Bits: 32}
	binary.BigEndian.PutUint32(k.Addr[:], i)
	return k
}

const (
	room  = 64
	ample = 1 << 14 // of an LRU map, so that it evicts nothing: each CPU sets more than a hundred entries aside
	each  = 20      // how many entries are written by each side
)

var (
	hash  = kind[uint32]{spec: ebpf.MapSpec{Type: ebpf.Hash, MaxEntries: room}, key: number, full: unix.E2BIG}
	array = kind[uint32]{spec: ebpf.MapSpec{Type: ebpf.Array, MaxEntries: room}, key: number, full: unix.E2BIG, array: true}
	lru   = kind[uint32]{spec: ebpf.MapSpec{Type: ebpf.LRUHash, MaxEntries: ample}, key: number}
	trie  = kind[trieKey]{
		spec: ebpf.MapSpec{Type: ebpf.LPMTrie, MaxEntries: room, Flags: unix.BPF_F_NO_PREALLOC}, key: host, full: unix.ENOSPC,
	}
)

func TestPrivilegedHash(t *testing.T)    { testPlain(t, hash) }
func TestPrivilegedArray(t *testing.T)   { testPlain(t, array) }
func TestPrivilegedLRUHash(t *testing.T) { testPlain(t, lru) }
func TestPrivilegedTrie(t *testing.T)    { testPlain(t, trie) }

func (k kind[K]) make(t testing.TB) (*ebpf.Map, *bpfsys.Map) {
	t.Helper()
	k.spec.KeySize, k.spec.ValueSize = uint32(binary.Size(k.key(0))), uint32(binary.Size(value{}))
	m := newMap(t, k.spec)
	return m, bpftest.View(t, m)
}

// missing is a key that no test writes, and that no array has.
func (k kind[K]) missing() K { return k.key(k.spec.MaxEntries) }

// contents are what the library finds in m.
func contents[K comparable, V any](t testing.TB, m *ebpf.Map) map[K]V {
	t.Helper()
	all := map[K]V{}
	var key K
	var v V
	for walk := m.Iterate(); ; {
		if !walk.Next(&key, &v) {
			ok(t, walk.Err())
			return all
		}
		all[key] = v
		v = *new(V) // slices of per-CPU values would be used again
	}
}

// testPlain holds what pkg/bpfsys does with a map against what the library sees.
func testPlain[K comparable](t *testing.T, k kind[K]) {
	t.Parallel()
	m, v := k.make(t)
	want := contents[K, value](t, m) // zeros, of an array
	for i := range uint32(each) {
		ok(t, bpfsys.Put(v, k.key(i), valueOf(i)))
		ok(t, m.Put(k.key(each+i), valueOf(each+i)))
		want[k.key(i)], want[k.key(each+i)] = valueOf(i), valueOf(each+i)
	}
	ok(t, bpfsys.Put(v, k.key(0), valueOf(99)))
	want[k.key(0)] = valueOf(99)
	k.check(t, "written", m, v, want)

	was, err := bpfsys.Replace(v, k.key(1), valueOf(98))
	equal(t, "replace", was, true)
	ok(t, err)
	want[k.key(1)] = valueOf(98)
	was, err = bpfsys.Replace(v, k.missing(), valueOf(97))
	equal(t, "replace what is not there", was, false)
	if k.array && !errors.Is(err, unix.E2BIG) || !k.array && err != nil {
		t.Errorf("replace what is not there: got %v", err)
	}
	k.check(t, "replaced", m, v, want)

	k.testDelete(t, m, v, want)
	testWrongSize(t, k, v)
	k.check(t, "after wrong sizes", m, v, want)
	for what, err := range map[string]error{
		"LookupPerCPU": err2(bpfsys.LookupPerCPU[value](v, k.key(0))), "PutPerCPU": bpfsys.PutPerCPU(v, k.key(0), value{}),
	} {
		if err == nil {
			t.Errorf("%s of a map with one value for all CPUs: got no error", what)
		}
	}
	k.check(t, "after the wrong calls", m, v, want)
	if k.full != nil {
		k.testFull(t, m, v, want, func(key K, x value) error { return bpfsys.Put(v, key, x) })
	}
}

// check compares every way of reading v with want, and want with what the library sees.
func (k kind[K]) check(t testing.TB, when string, m *ebpf.Map, v *bpfsys.Map, want map[K]value) {
	t.Helper()
	equal(t, when+": the library's contents", contents[K, value](t, m), want)
	got := map[K]value{}
	for key := range want {
		x, has, err := bpfsys.Lookup[value](v, key)
		ok(t, err)
		if !has {
			t.Errorf("%s: %v: got nothing", when, key)
		}
		got[key] = x
	}
	equal(t, when+": contents", got, want)
	x, has, err := bpfsys.Lookup[value](v, k.missing())
	ok(t, err)
	equal(t, when+": what is not there", x, value{})
	equal(t, when+": what is not there is", has, false)
	if err := m.Lookup(k.missing(), &x); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("%s: the library, of what is not there: got %v, want %v", when, err, ebpf.ErrKeyNotExist)
	}
	k.checkKeys(t, when, m, v, len(want))
	k.checkBatch(t, when, m, v, want)
}

// checkKeys compares the walk over n keys with the library's.
func (k kind[K]) checkKeys(t testing.TB, when string, m *ebpf.Map, v *bpfsys.Map, n int) {
	t.Helper()
	var want []K
	var previous any
	for key := new(K); ; key = new(K) {
		err := m.NextKey(previous, key)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			break
		}
		ok(t, err)
		want = append(want, *key)
		previous = *key
	}
	equal(t, when+": keys the library walks", len(want), n)
	keys, err := bpfsys.Keys[K](v)
	ok(t, err)
	equal(t, when+": keys", keys, want)
	count, err := bpfsys.CountKeys(v)
	ok(t, err)
	equal(t, when+": count", count, n)
	if n == 0 {
		return
	}
	first, has, err := bpfsys.NextKey[K](v, nil)
	ok(t, err)
	equal(t, when+": there is a first key", has, true)
	equal(t, when+": first key", first, want[0])
	_, has, err = bpfsys.NextKey(v, &want[n-1])
	ok(t, err)
	equal(t, when+": a key after the last", has, false)
	missing := k.missing()
	first, has, err = bpfsys.NextKey(v, &missing)
	ok(t, err)
	equal(t, when+": there is a key after one that is not there", has, true)
	equal(t, when+": key after one that is not there", first, want[0])
}

// checkBatch compares batches of several sizes with want.
func (k kind[K]) checkBatch(t testing.TB, when string, m *ebpf.Map, v *bpfsys.Map, want map[K]value) {
	t.Helper()
	for _, size := range []int{3, len(want) + 1, 1024} {
		var cursor ebpf.MapBatchCursor
		_, libraryErr := m.BatchLookup(&cursor, make([]K, 1024), make([]value, 1024), nil)
		got, _, err := batches[K, value](v, size)
		if errors.Is(libraryErr, ebpf.ErrNotSupported) {
			if !errors.Is(err, bpfsys.ErrNotSupported) {
				t.Errorf("%s: batches: got %v, want %v", when, err, bpfsys.ErrNotSupported)
			}
			return
		}
		ok(t, err)
		once := map[K][]value{}
		for key, x := range want {
			once[key] = []value{x}
		}
		equal(t, when+": batches of "+strconv.Itoa(size), got, once)
	}
}

// batches reads v by slices of that length, as pkg/maps/codec does, and returns what it has read and how often a bucket did not fit.
func batches[K comparable, V any](v *bpfsys.Map, least int) (map[K][]V, int, error) {
	walk, err := bpfsys.NewBatch[K, V](v)
	if err != nil {
		return nil, 0, err
	}
	all, tooSmall, size := map[K][]V{}, 0, least
	for range 100 * ample {
		keys, values := make([]K, size), make([]V, size)
		n, last, err := walk.Next(keys, values)
		if errors.Is(err, unix.ENOSPC) {
			tooSmall++
			size *= 4
			continue
		}
		if err != nil {
			return all, tooSmall, err
		}
		for i := range n {
			all[keys[i]] = append(all[keys[i]], values[i])
		}
		if last {
			return all, tooSmall, nil
		}
		size = least
	}
	return all, tooSmall, errors.New("the walk does not end")
}

// testDelete removes the entry before last, by each of the ways, from m and want.
func (k kind[K]) testDelete(t testing.TB, m *ebpf.Map, v *bpfsys.Map, want map[K]value) {
	t.Helper()
	if k.array {
		if was, err := bpfsys.Delete(v, k.key(2)); was || !errors.Is(err, unix.EINVAL) {
			t.Errorf("delete of an array's: got %t, %v, want %v", was, err, unix.EINVAL)
		}
		if err := bpfsys.Remove(v, k.key(2)); !errors.Is(err, unix.EINVAL) {
			t.Errorf("remove of an array's: got %v, want %v", err, unix.EINVAL)
		}
		k.check(t, "not deleted", m, v, want)
		return
	}
	for _, there := range []bool{true, false} {
		was, err := bpfsys.Delete(v, k.key(2))
		ok(t, err)
		equal(t, "delete", was, there)
	}
	for range 2 {
		ok(t, bpfsys.Remove(v, k.key(3)))
	}
	delete(want, k.key(2))
	delete(want, k.key(3))
	k.check(t, "deleted", m, v, want)
}

// testFull writes until nothing fits any more. want is what is in the map.
func (k kind[K]) testFull(t testing.TB, m *ebpf.Map, v *bpfsys.Map, want map[K]value, put func(K, value) error) {
	t.Helper()
	for i := uint32(0); len(want) < room; i++ {
		if _, has := want[k.key(i)]; !has {
			ok(t, put(k.key(i), valueOf(i)))
			want[k.key(i)] = valueOf(i)
			k.checkKeys(t, "filling", m, v, len(want))
		}
	}
	if err := put(k.missing(), valueOf(1)); !errors.Is(err, k.full) {
		t.Errorf("one more than fit: got %v, want %v", err, k.full)
	}
	err := put(k.key(1), valueOf(1)) // one that is there has its room, but not in an old kernel's trie
	if m.Type() == ebpf.LPMTrie && errors.Is(m.Put(k.key(1), valueOf(1)), k.full) {
		equal(t, "one that is there, which the library may not write either", errors.Is(err, k.full), true)
	} else {
		ok(t, err)
	}
	n, err := bpfsys.CountKeys(v)
	ok(t, err)
	equal(t, "keys of a full map", n, room)
	if err := m.Put(k.missing(), make([]byte, m.ValueSize())); m.Type() == ebpf.Hash && !errors.Is(err, k.full) {
		t.Errorf("the library, one more than fit: got %v, want %v", err, k.full)
	}
}

func err2[A any](_ A, err error) error         { return err }
func err3[A, B any](_ A, _ B, err error) error { return err }

// testWrongSize: a key or value of another size than the map's never reaches the kernel, which would read or write past it.
func testWrongSize[K comparable](t testing.TB, k kind[K], v *bpfsys.Map) {
	t.Helper()
	type larger struct {
		K    K
		More [4]byte
	}
	key, big := k.key(4), larger{K: k.key(4)}
	for what, err := range map[string]error{
		"Lookup of a smaller value":  err3(bpfsys.Lookup[uint64](v, key)),
		"Lookup of a larger value":   err3(bpfsys.Lookup[[24]byte](v, key)),
		"Lookup of a smaller key":    err3(bpfsys.Lookup[value](v, uint16(4))),
		"Lookup of a larger key":     err3(bpfsys.Lookup[value](v, big)),
		"Put of a smaller value":     bpfsys.Put(v, key, uint64(1)),
		"Put of a larger value":      bpfsys.Put(v, key, [24]byte{1}),
		"Put of a smaller key":       bpfsys.Put(v, uint16(4), value{1, 1}),
		"Put of a larger key":        bpfsys.Put(v, big, value{1, 1}),
		"Replace by a smaller value": err2(bpfsys.Replace(v, key, uint64(1))),
		"Replace by a larger value":  err2(bpfsys.Replace(v, key, [24]byte{1})),
		"Replace of a smaller key":   err2(bpfsys.Replace(v, uint16(4), value{1, 1})),
		"Replace of a larger key":    err2(bpfsys.Replace(v, big, value{1, 1})),
		"Delete of a smaller key":    err2(bpfsys.Delete(v, uint16(4))),
		"Delete of a larger key":     err2(bpfsys.Delete(v, big)),
		"Remove of a smaller key":    bpfsys.Remove(v, uint16(4)),
		"Remove of a larger key":     bpfsys.Remove(v, big),
		"NextKey of a smaller key":   err3(bpfsys.NextKey[uint16](v, nil)),
		"NextKey of a larger key":    err3(bpfsys.NextKey(v, &big)),
		"Keys of a smaller key":      err2(bpfsys.Keys[uint16](v)),
		"Keys of a larger key":       err2(bpfsys.Keys[larger](v)),
		"batch of a smaller value":   err2(bpfsys.NewBatch[K, uint64](v)),
		"batch of a larger value":    err2(bpfsys.NewBatch[K, [24]byte](v)),
		"batch of a smaller key":     err2(bpfsys.NewBatch[uint16, value](v)),
		"batch of a larger key":      err2(bpfsys.NewBatch[larger, value](v)),

		"LookupPerCPU of a smaller value": err2(bpfsys.LookupPerCPU[uint64](v, key)),
		"LookupPerCPU of a larger value":  err2(bpfsys.LookupPerCPU[[24]byte](v, key)),
		"LookupPerCPU of a smaller key":   err2(bpfsys.LookupPerCPU[value](v, uint16(4))),
		"LookupPerCPU of a larger key":    err2(bpfsys.LookupPerCPU[value](v, big)),
		"PutPerCPU of a smaller value":    bpfsys.PutPerCPU(v, key, uint64(1)),
		"PutPerCPU of a larger value":     bpfsys.PutPerCPU(v, key, [24]byte{1}),
		"PutPerCPU of a smaller key":      bpfsys.PutPerCPU(v, uint16(4), value{1, 1}),
		"PutPerCPU of a larger key":       bpfsys.PutPerCPU(v, big, value{1, 1}),
	} {
		if errno := unix.Errno(0); err == nil || errors.As(err, &errno) {
			t.Errorf("%s: got %v, want an error from before the system call", what, err)
		}
	}
}

// A full LRU map takes more, and has what was written last.
func TestPrivilegedLRUEvicts(t *testing.T) {
	t.Parallel()
	for _, typ := range []ebpf.MapType{ebpf.LRUHash, ebpf.LRUCPUHash} {
		v := bpftest.View(t, newMap(t, ebpf.MapSpec{Type: typ, KeySize: 4, ValueSize: 16, MaxEntries: room}))
		for i := range uint32(10 * room) {
			var has bool
			var err error
			if typ == ebpf.LRUHash {
				ok(t, bpfsys.Put(v, i, valueOf(i)))
				_, has, err = bpfsys.Lookup[value](v, i)
			} else {
				ok(t, bpfsys.PutPerCPU(v, i, valueOf(i)))
				var values []value
				values, err = bpfsys.LookupPerCPU[value](v, i)
				has = values != nil
			}
			ok(t, err)
			if !has {
				t.Fatalf("%s: entry %d is not there", typ, i)
			}
		}
		if n, err := bpfsys.CountKeys(v); err != nil || n == 0 || n > room {
			t.Errorf("%s: got %d keys, %v, want some, at most %d", typ, n, err, room)
		}
	}
}

// The buckets of a hash map of 1000 entries hold several often, and slices of one entry only a bucket of one: the walk goes on with
// longer ones, where it is and from the beginning, and loses nothing.
func TestPrivilegedBatchSmallerThanBucket(t *testing.T) {
	t.Parallel()
	const n = 1000
	for typ, size := range map[ebpf.MapType]uint32{ebpf.Hash: n, ebpf.LRUHash: ample} {
		m := newMap(t, ebpf.MapSpec{Type: typ, KeySize: 4, ValueSize: 16, MaxEntries: size})
		want := map[uint32][]value{}
		for i := range uint32(n) {
			ok(t, m.Put(i, valueOf(i)))
			want[i] = []value{valueOf(i)}
		}
		got, tooSmall, err := batches[uint32, value](bpftest.View(t, m), 1)
		ok(t, err)
		equal(t, typ.String(), got, want)
		t.Logf("%s: %d buckets did not fit", typ, tooSmall)
		if typ == ebpf.Hash && tooSmall < 10 {
			t.Errorf("%d buckets did not fit: the test shows nothing", tooSmall)
		}
	}
}

// Of slices of different lengths the shorter one counts.
func TestPrivilegedBatchShorterSlice(t *testing.T) {
	t.Parallel()
	_, v := array.make(t)
	for _, size := range [][2]int{{10, 3}, {3, 10}} {
		walk, err := bpfsys.NewBatch[uint32, value](v)
		ok(t, err)
		if n, last, err := walk.Next(make([]uint32, size[0]), make([]value, size[1])); n != 3 || last || err != nil {
			t.Errorf("slices of %v: got %d, %t, %v, want 3, false, nil", size, n, last, err)
		}
	}
}

func TestPrivilegedEmptyMaps(t *testing.T) {
	t.Parallel()
	m, v := hash.make(t)
	hash.check(t, "empty hash", m, v, map[uint32]value{})
	n, w := trie.make(t)
	trie.check(t, "empty trie", n, w, map[trieKey]value{})
}
