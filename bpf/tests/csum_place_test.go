// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
)

const reasonCsum = drops.Reason(bpfgen.TypesSlDropReasonSL_DROP_CSUM_PLACE)

// csumPart is how many bytes of sk_buff the programs read, and csumSeam is where they find what there: a byte with both bits of ip_summed,
// csum_start, csum_offset and mac_header, as halfMadeAt writes them.
const csumPart = 64

var csumSeam = map[string]uint32{"cfg_csum_part": 1, "cfg_csum_mask": 0x60, "cfg_csum_start": 2, "cfg_csum_mac": 6}

// halfMadeAt is what sk_buff says of a packet into which the kernel will write at a place, from the Ethernet header on.
func halfMadeAt(place int) uint64 {
	const mac, offset = 200, 6
	b := []byte{0x60, 0, 0, 0, 0, 0, 0, 0}
	binary.NativeEndian.PutUint16(b[2:], uint16(mac+place-offset))
	binary.NativeEndian.PutUint16(b[4:], offset)
	binary.NativeEndian.PutUint16(b[6:], mac)
	return binary.NativeEndian.Uint64(b)
}

// withTag puts a VLAN tag into a frame.
func withTag(raw []byte, etherType, tci uint16) []byte {
	tag := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, etherType), tci)
	return slices.Concat(raw[:12], tag, raw[12:])
}

// The kernel writes the checksum of the packet's L4 header, or behind it, and nowhere else: at every hook where a pod's packet comes in, and
// for what the fast parser cannot read too.
func TestPrivilegedCsumPlaces(t *testing.T) {
	fx := newFixture(t, nil)
	shapes := []struct {
		name  string
		proto int
		make  func(raw []byte) []byte
		right func(at, l4 int) bool
	}{
		{"TCP", tcp, nil, func(at, l4 int) bool { return at == l4+16 || at >= l4+20 }},
		{"UDP", udp, nil, func(at, l4 int) bool { return at == l4+6 || at >= l4+8 }},
		{"echo", echo, nil, func(int, int) bool { return false }},
		{"SCTP", udp, func(raw []byte) []byte { return bare(protoSCTP)(raw)[0] }, func(at, l4 int) bool { return at == l4+8 || at >= l4+12 }},
		{"GRE", udp, func(raw []byte) []byte { return bare(47)(raw)[0] }, func(at, l4 int) bool { return at >= l4 }},
		{"fragment", udp, func(raw []byte) []byte { return fragments(raw, 3)[0] }, func(int, int) bool { return false }},
		{"later fragment", udp, func(raw []byte) []byte { return fragments(raw, 3)[1] }, func(int, int) bool { return false }},
		{"ARP", udp, func(raw []byte) []byte { return slices.Concat(raw[:12], []byte{8, 6}, make([]byte, len(raw)-14)) }, func(at, _ int) bool { return at >= 42 }},
	}
	for _, family := range families {
		for _, s := range shapes {
			fx.each(t, fmt.Sprintf("%s%d", s.name, family), func(w *walk) {
				const number = 9
				w.number = number
				w.put("sl_ns_devices", uint32(number), &bpfgen.TypesSlPodnsDevice{})
				defer w.remove("sl_ns_devices", uint32(number))
				f := w.plain(family, s.proto, podA, keptPort).inside.tx("S")
				f.srcMAC, f.dstMAC, f.payload = podA.mac, podA.gwMAC, make([]byte, 40)
				raw := f.bytes(t)
				l4 := read(raw).l4
				if s.make != nil {
					raw = s.make(raw)
				}
				for at := -20; at < 100; at++ {
					w.csum = halfMadeAt(at)
					for h, dev := range map[hook]string{podEgress: podA.name, ownEgress: podA.name} {
						r, err := w.run(h, dev, input{data: raw, badSums: true})
						if err != nil {
							t.Fatal(err)
						}
						if (r.verdict == shot) == s.right(at, l4) {
							t.Errorf("%s: verdict %d for a checksum at %d; the L4 header is at %d", h, r.verdict, at, l4)
						}
					}
				}
				w.csum = 0
				if r, err := w.run(podEgress, podA.name, input{data: raw}); err != nil || r.verdict == shot {
					t.Errorf("verdict %d for one that is made, %v", r.verdict, err)
				}
			})
		}
	}
}

// A priority tag that the sender wrote into the frame does not hide what is behind it from the rules of a device without a host veth.
func TestPrivilegedPodnsPriorityTag(t *testing.T) {
	fx := newFixture(t, nil)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		const number = 9
		w.number = number
		w.put("sl_ns_devices", uint32(number), &bpfgen.TypesSlPodnsDevice{})
		defer w.remove("sl_ns_devices", uint32(number))
		f := w.plain(family, proto, podA, keptPort).inside.tx("S")
		f.srcMAC, f.dstMAC = podA.mac, podA.gwMAC
		for _, etherType := range []uint16{0x8100, 0x88a8} {
			for tci, want := range map[uint16]int32{0: shot, 5 << 13: shot, 0x1000: shot, 5: pass, 5<<13 | 0xfff: pass} {
				r, err := w.run(ownEgress, podA.name, input{data: withTag(f.bytes(t), etherType, tci)})
				if err != nil || r.verdict != want {
					t.Errorf("%#x with %#x: verdict %d, want %d (%v)", etherType, tci, r.verdict, want, err)
				}
			}
		}
	})
}
