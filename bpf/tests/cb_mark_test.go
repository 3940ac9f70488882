// SPDX-License-Identifier: Apache-2.0

package tests

import "testing"

// wordCb is the first of two words of the control block by which the fast path tells the uplink's egress that it has been
// there (bpf/lib/fastpath/cb_mark.h).
const wordCb = 3

// What the fast path sends is not looked at again where it leaves, and only that.
func TestPrivilegedCBMark(t *testing.T) {
	word := [2]uint32{0x5eed, 0xcafe}
	fx := newFixture(t, map[string]uint32{"cfg_cb_cookie1": word[0], "cfg_cb_cookie2": word[1]})
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		j := w.opens(family, proto, podA, keptPort, keptPort)
		j.answered()
		sent := j.inside.tx("PA")
		sent.srcMAC, sent.dstMAC = podA.mac, podA.gwMAC
		r, err := w.run(podEgress, podA.name, input{data: sent.bytes(t)})
		if err != nil || r.verdict != redirect || r.word != word {
			t.Fatalf("verdict %d, word %x: %v", r.verdict, r.word, err)
		}
		// A packet that has yet to be translated shows whether the hook has looked.
		look := func(word [2]uint32, looks bool) {
			t.Helper()
			f := j.inside.tx("PA")
			f.srcMAC, f.dstMAC = upl0.mac, upl0.router
			r, err := w.run(uplEgress, upl0.name, input{data: f.bytes(t), word: word})
			if err != nil || r.verdict != pass || (read(r.out).src != f.src.Addr()) != looks {
				t.Errorf("word %x: verdict %d, from %s: %v", word, r.verdict, read(r.out).src, err)
			}
		}
		look(word, false)
		look([2]uint32{}, true)
		look([2]uint32{word[0], word[1] + 1}, true)
		look([2]uint32{word[0] + 1, word[1]}, true)
	}, masquerading(podA))
}

// What takes the slow path carries no word: the egress hook has work to do.
func TestPrivilegedNoCBMark(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_cb_cookie1": 1, "cfg_cb_cookie2": 2})
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		j := w.opens(family, proto, podA, keptPort, keptPort)
		f := j.inside.tx("S")
		f.srcMAC, f.dstMAC = podA.mac, podA.gwMAC
		if r, err := w.run(podEgress, podA.name, input{data: f.bytes(t)}); err != nil || r.verdict != pass || r.word != [2]uint32{} {
			t.Errorf("verdict %d, word %x: %v", r.verdict, r.word, err)
		}
	}, masquerading(podA))
}
