// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
)

const portWords = 1 << 16 / 64

// PortBitmap has one bit for each port, as the elements of sl_rsvd_ports.
type PortBitmap [portWords]uint64

// Add sets the bits of the ports from first to last.
func (b *PortBitmap) Add(first, last uint16) {
	for p := int(first); p <= int(last); p++ {
		b[p/64] |= 1 << (p % 64)
	}
}

// Has reports whether the bit of port is set.
func (b *PortBitmap) Has(port uint16) bool { return b[port/64]>>(port%64)&1 == 1 }

// ParseReserved reads the kernel's notation of net.ipv4.ip_local_reserved_ports, such as "8080,9000-9010"; empty is none.
func ParseReserved(s string) (*PortBitmap, error) {
	b := new(PortBitmap)
	for part := range strings.SplitSeq(strings.TrimSpace(s), ",") {
		if part == "" {
			continue
		}
		lo, hi, isRange := strings.Cut(part, "-")
		if !isRange {
			hi = lo
		}
		first, errFirst := strconv.ParseUint(lo, 10, 16)
		last, errLast := strconv.ParseUint(hi, 10, 16)
		if errFirst != nil || errLast != nil || first > last {
			return nil, fmt.Errorf("%q is not a range of ports", part)
		}
		b.Add(uint16(first), uint16(last))
	}
	return b, nil
}

// ReservedPorts is the view of sl_rsvd_ports: the ports of net.ipv4.ip_local_reserved_ports, which SNAT does not use as source.
type ReservedPorts struct{ m *bpfsys.Map }

// NewReservedPorts returns a view of m.
func NewReservedPorts(m *bpfsys.Map) ReservedPorts { return ReservedPorts{m} }

// Replace makes want the set and reports whether anything had to be written. It writes only elements that differ.
func (r ReservedPorts) Replace(want *PortBitmap) (bool, error) {
	changed := make([]uint32, 0, 4)
	err := codec.Each(r.m, func(i *uint32, v *uint64) bool {
		if int(*i) < len(want) && want[*i] != *v {
			changed = append(changed, *i)
		}
		return true
	})
	if err != nil {
		return false, err
	}
	for _, i := range changed {
		if err := bpfsys.Put(r.m, i, want[i]); err != nil {
			return true, err
		}
	}
	return len(changed) > 0, nil
}
