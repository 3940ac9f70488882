// SPDX-License-Identifier: Apache-2.0

package ebpfload

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/sluice-cni/sluice/pkg/bpfgen/objects"
)

// csumPlace is where sk_buff says what checksum of a packet is still to be made (bpf/lib/packet/csum_place.h), in bytes.
type csumPlace struct {
	part  uint32 // of sk_buff: the byte that has ip_summed
	mask  uint32 // of ip_summed in it; 0: unknown
	start uint32 // of csum_start, from there; csum_offset follows
	mac   uint32 // of mac_header, from there
}

// csumPart is how many bytes the programs read from there (SL_CSUM_PART).
const csumPart = 64

// findCsumPlace asks the kernel's BTF. An error says why the programs cannot see the place, for the same reasons as findNfOffsets.
func findCsumPlace(cache *btf.Cache) (csumPlace, error) {
	spec, err := cache.Kernel()
	if err != nil {
		return csumPlace{}, fmt.Errorf("read the kernel's BTF: %w", err)
	}
	var skb *btf.Struct
	if err := spec.TypeByName("sk_buff", &skb); err != nil {
		return csumPlace{}, fmt.Errorf("read the kernel's BTF: struct sk_buff: %w", err)
	}
	summed, ok := memberOffset(skb.Members, "ip_summed")
	if !ok {
		return csumPlace{}, errors.New("struct sk_buff of this kernel has no ip_summed")
	}
	start, errStart := memberOf(spec, "sk_buff", "csum_start")
	offset, errOffset := memberOf(spec, "sk_buff", "csum_offset")
	mac, errMAC := memberOf(spec, "sk_buff", "mac_header")
	if err := errors.Join(errStart, errOffset, errMAC); err != nil {
		return csumPlace{}, err
	}
	p := csumPlace{part: uint32(summed / 8), mask: 3 << (summed % 8)}
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 { // bits count from the other end there
		p.mask = 0xc0 >> (summed % 8)
	}
	p.start, p.mac = start-p.part, mac-p.part
	if offset != start+2 || start < p.part || mac < p.part || p.start > csumPart-4 || p.mac > csumPart-2 || p.mask > 0xff {
		return csumPlace{}, fmt.Errorf("struct sk_buff of this kernel has another form: ip_summed at bit %d, csum_start at %d, csum_offset at %d, mac_header at %d", summed, start, offset, mac)
	}
	if err := askReadKernel(p.part); err != nil {
		return csumPlace{}, err
	}
	return p, nil
}

// set tells the programs of spec.
func (p csumPlace) set(spec *ebpf.CollectionSpec) error {
	return errors.Join(
		spec.Variables[objects.FromPodVarCfgCsumPart].Set(p.part),
		spec.Variables[objects.FromPodVarCfgCsumMask].Set(p.mask),
		spec.Variables[objects.FromPodVarCfgCsumStart].Set(p.start),
		spec.Variables[objects.FromPodVarCfgCsumMac].Set(p.mac),
	)
}
