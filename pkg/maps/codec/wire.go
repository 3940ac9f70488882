// SPDX-License-Identifier: Apache-2.0

// Package codec holds what the typed map views share: how addresses and ports are written in keys and values, and how a map is
// walked. Addresses are 16 bytes, IPv4 as v4-mapped IPv6 (::ffff:a.b.c.d, RFC 4291 2.5.5.2); ports are in network byte order.
package codec

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfsys"
)

// Addr returns the form of a in maps. A zone is dropped, an invalid address is all zero.
func Addr(a netip.Addr) [16]byte {
	if !a.IsValid() {
		return [16]byte{}
	}
	return a.As16()
}

// FromAddr undoes Addr. All zero is "::".
func FromAddr(b [16]byte) netip.Addr { return netip.AddrFrom16(b).Unmap() }

// PrefixLen returns the length of p in the v4-mapped form: 96 + n for IPv4.
func PrefixLen(p netip.Prefix) uint8 {
	if p.Addr().Is4() {
		return uint8(96 + p.Bits())
	}
	return uint8(p.Bits())
}

// FromPrefix undoes PrefixLen for the address a as FromAddr returns it.
func FromPrefix(a netip.Addr, length uint8) netip.Prefix {
	n := int(length)
	if a.Is4() {
		n -= 96
	}
	return netip.PrefixFrom(a, n)
}

// Port converts a port between host and network byte order; it is its own inverse.
func Port(p uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], p)
	return binary.NativeEndian.Uint16(b[:])
}

// chunk is how many entries one batch call asks for. A bucket of a hash map must fit.
const chunk = 1024

// Each calls f with every entry of m, a hash, LRU or array map, until f returns false. K and V must be the exact types of
// key and value. Entries that come or go during the call may be missed. It reads many entries per system call where the kernel can
// (5.6) and one by one where it cannot.
func Each[K, V any](m *bpfsys.Map, f func(*K, *V) bool) error {
	walk, err := bpfsys.NewBatch[K, V](m)
	if err != nil {
		return err
	}
	size := min(chunk, int(m.MaxEntries()))
	keys, values := make([]K, size), make([]V, size)
	for first := true; ; first = false {
		n, last, err := walk.Next(keys, values)
		switch {
		case err == nil:
		case errors.Is(err, bpfsys.ErrNotSupported) && first:
			return eachSlow(m, f)
		case errors.Is(err, unix.ENOSPC): // a bucket holds more than size entries
			size *= 4
			keys, values = make([]K, size), make([]V, size)
			continue
		default:
			return fmt.Errorf("read map: %w", err)
		}
		for i := range n {
			if !f(&keys[i], &values[i]) {
				return nil
			}
		}
		if last {
			return nil
		}
	}
}

func eachSlow[K, V any](m *bpfsys.Map, f func(*K, *V) bool) error {
	var previous *K
	for range m.MaxEntries() { // a map that changes all the time can lead the walk in circles: what was seen is good
		k, ok, err := bpfsys.NextKey(m, previous)
		if err != nil {
			return fmt.Errorf("read map: %w", err)
		}
		if !ok {
			break
		}
		v, ok, err := bpfsys.Lookup[V](m, k)
		if err != nil {
			return fmt.Errorf("read map: %w", err)
		}
		if ok && !f(&k, &v) {
			break
		}
		previous = &k
	}
	return nil
}

// Count returns the number of entries of m, whose key and value are K and V.
func Count[K, V any](m *bpfsys.Map) (int, error) {
	n := 0
	err := Each(m, func(*K, *V) bool {
		n++
		return true
	})
	return n, err
}
