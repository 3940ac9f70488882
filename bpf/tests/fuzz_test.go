// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"os"
	"testing"
)

// FuzzParse gives any bytes to all four programs, as they are shipped. They must
// end with a verdict of theirs; what the model says is not ours must not change by
// a byte; and what is changed keeps its checksums as right, or as wrong, as they were.
func FuzzParse(f *testing.F) {
	if os.Geteuid() != 0 {
		f.Skip("a network namespace and BPF need root")
	}
	fx := &fixture{node: newNode(f), programSet: mustLoad(f, loadOptions{}), kept: new([]uint32)}
	fx.cut = fx.cutting(f)
	var opts []option
	for _, family := range families {
		opts = append(opts, publishing(mapping(family, tcp, podA), mapping(family, udp, podA)))
	}
	opts = append(opts, masquerading(podA))
	w := fx.walk(f, mode{}, opts...)
	for _, raw := range fuzzSeeds(w) {
		f.Add(raw)
	}
	var shots uint64
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < ethLen || len(data) > 2048 {
			return
		}
		w.tb = t
		for h, dev := range map[hook]string{podEgress: podA.name, podIngress: podA.name, uplIngress: upl0.name, uplEgress: upl0.name} {
			r, err := w.run(h, dev, input{data: data})
			if err != nil {
				t.Fatalf("%s: %v", h, err)
			}
			if r.verdict == shot {
				shots++
				if got := w.readDrops(); got.total() != shots {
					n := shots
					shots = got.total() // or every input after this one would fail
					t.Fatalf("%s: %d packets dropped, counted %v", h, n, got)
				}
			}
			judge(t, h, data, r)
		}
	})
}

// judge compares what a program made of a packet with what the model allows.
func judge(t *testing.T, h hook, in []byte, r result) {
	t.Helper()
	before, after := read(in), read(r.out)
	changes := mayChange(h, before)
	switch {
	case r.verdict != pass && r.verdict != shot && r.verdict != redirect:
		t.Fatalf("%s: verdict %d", h, r.verdict)
	case r.verdict == shot && (h == podEgress || h == uplIngress) && (before.src.IsLoopback() || before.dst.IsLoopback()):
		return
	case r.verdict == shot && h == podEgress && bytes.Equal(in[12:14], []byte{8, 6}): // ARP for another
		return
	case r.verdict == shot && (before.depth == notIP || before.depth == onlyIP && h != podEgress && !changes && h != uplEgress),
		r.verdict == redirect && before.depth != whole && before.kind != failure:
		t.Fatalf("%s: verdict %d for a packet of depth %d", h, r.verdict, before.depth)
	case r.verdict == shot:
		return
	case !changes && !bytes.Equal(in, r.out):
		t.Fatalf("%s: changed what is not ours:\n%x\n%x", h, in, r.out)
	case len(in) != len(r.out):
		t.Fatalf("%s: %d bytes became %d", h, len(in), len(r.out))
	case !changes:
		return
	}
	if before.headerSum() == 0xffff && after.headerSum() != 0xffff {
		t.Fatalf("%s: IPv4 header checksum:\n%x\n%x", h, in, r.out)
	}
	if before.noChecksum() != after.noChecksum() && before.kind != later {
		t.Fatalf("%s: a UDP checksum of 0 comes or goes:\n%x\n%x", h, in, r.out)
	}
	if before.summed() && !before.noChecksum() && before.l4Sum() != after.l4Sum() {
		t.Fatalf("%s: sum %#x became %#x:\n%x\n%x", h, before.l4Sum(), after.l4Sum(), in, r.out)
	}
}

// mayChange says whether a hook may translate the packet: the pod's hooks leave to the
// uplinks' what the full parser has to read.
func mayChange(h hook, p packet) bool {
	return p.depth == whole || p.depth == onlyIP && p.kind != opaque && (h == uplIngress || h == uplEgress)
}

// fuzzSeeds are packets that the programs would translate, and all their oddities.
func fuzzSeeds(w *walk) (all [][]byte) {
	for _, family := range families {
		for _, p := range protocols {
			j, k := w.opens(family, p.proto, podA, movedPort, movedPort), w.toHostPort(family, p.proto, podA)
			for _, way := range ways(j, k) {
				all = append(all, way.raw)
				for _, odd := range oddities {
					if b := odd.make(way.raw); b != nil {
						all = append(all, b)
					}
				}
			}
		}
	}
	return all
}
