// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfgen/objects"
)

// macCheckFrames are frames with that source MAC, by what they carry.
func macCheckFrames(src []byte) map[string][]byte {
	frame := func(etherType ...byte) []byte {
		f := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, src...)
		return append(append(f, etherType...), make([]byte, 50)...)
	}
	arp := frame(0x08, 0x06)
	copy(arp[22:], podB.mac) // the sender's hardware address within ARP is not looked at, as by upstream's rule
	return map[string][]byte{
		"IPv4": frame(0x08, 0x00), "IPv6": frame(0x86, 0xdd), "ARP": arp,
		"802.1Q": frame(0x81, 0x00, 0, 5, 0x08, 0x00), "802.1ad": frame(0x88, 0xa8, 0, 5, 0x81, 0x00), "PPPoE": frame(0x88, 0x63),
		"LLC": frame(0, 3), "unknown": frame(0x88, 0xb5), "header only": frame(0x88, 0xb5)[:14],
	}
}

// Every frame with the pod's source MAC passes as it is, every other is dropped and counted, whatever it carries.
func TestPrivilegedMACCheck(t *testing.T) {
	spec, err := objects.LoadMACCheck()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
	}
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatalf("%s", verifierText(err))
	}
	defer coll.Close()
	prog, macs := coll.Programs["sl_mac_check"], coll.Maps["sl_pod_macs"]
	const device = uint32(1) // the loopback device, which test runs take
	run := func(what string, data []byte, want uint32) {
		t.Helper()
		out := make([]byte, 256)
		opts := ebpf.RunOptions{Data: data, DataOut: out}
		got, err := prog.Run(&opts)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if got != want || !slices.Equal(opts.DataOut, data) {
			t.Errorf("%s: verdict %d, want %d; the frame is %x, was %x", what, int32(got), int32(want), opts.DataOut, data)
		}
	}
	const next, shot = ^uint32(0), 2
	for what, data := range macCheckFrames(podA.mac) {
		run(what+" without an entry", data, shot)
	}
	if err := macs.Put(device, &bpfgen.TypesSlPodMac{Owner: podA.owner, Mac: [6]uint8(podA.mac)}); err != nil {
		t.Fatal(err)
	}
	dropped := 0
	for what, data := range macCheckFrames(podA.mac) {
		run(what, data, next)
	}
	for i := range 48 { // each bit of the address
		other := slices.Clone(podA.mac)
		other[i/8] ^= 1 << (i % 8)
		for what, data := range macCheckFrames(other) {
			run(what+" from another MAC", data, shot)
			dropped++
		}
	}
	if dropped != 48*9 {
		t.Errorf("%d frames were tried", dropped)
	}
}
