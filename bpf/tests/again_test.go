// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/maps/codec"
)

// The two words of the control block, and those of a packet that its uplink's ingress has translated and gets once more
// (bpf/lib/fastpath/cb_mark.h).
var (
	cbWords    = [2]uint32{0x5eed, 0xcafe}
	againWords = [2]uint32{0xcafe, 0x5eed}
)

// onBridge makes a bridge of upl0, whose ingress gets frames up to longest once more.
func onBridge(longest int) option {
	return func(w *walk) {
		w.put("sl_uplinks", uint32(w.index(upl0.name)), &bpfgen.TypesSlUplink{
			Src4: codec.Addr(upl0.addr4), Src6: codec.Addr(upl0.addr6), AgainMax: uint16(longest),
		})
	}
}

// arrives gives a packet to upl0's ingress, which must translate it, and gives it there once more if again: it must stay as it is then.
func (w *walk) arrives(in input, translated []byte, again bool) {
	w.tb.Helper()
	r, err := w.run(uplIngress, upl0.name, in)
	if err != nil || !bytes.Equal(r.out, translated) {
		w.tb.Fatalf("not translated: %v", err)
	}
	if !again {
		if r.verdict != pass || r.word != [2]uint32{} || r.kind != redirectNone {
			w.tb.Errorf("verdict %d, word %x, redirect kind %d: want none", r.verdict, r.word, r.kind)
		}
		return
	}
	if r.verdict != redirect || r.kind != redirectLink || int(r.ifindex) != w.index(upl0.name) || r.word != againWords {
		w.tb.Fatalf("verdict %d, word %x, redirect kind %d to device %d", r.verdict, r.word, r.kind, r.ifindex)
	}
	// A program of a third party may have wiped the words. The packet must not go round then.
	wiped, err := w.run(uplIngress, upl0.name, input{data: r.out, mark: r.mark, gsoSize: in.gsoSize})
	if err != nil || wiped.verdict != pass || !bytes.Equal(wiped.out, translated) {
		w.tb.Errorf("once more, without the words: verdict %d: %v", wiped.verdict, err)
	}
	before := w.wholeTable()
	r, err = w.run(uplIngress, upl0.name, input{data: r.out, mark: r.mark, gsoSize: in.gsoSize, word: r.word})
	if err != nil || r.verdict != pass || r.word != [2]uint32{} || !bytes.Equal(r.out, translated) {
		w.tb.Errorf("once more: verdict %d, word %x: %v", r.verdict, r.word, err)
	}
	if got := w.wholeTable(); got != before {
		w.tb.Errorf("once more: the table has changed:\n%s\nwas\n%s", got, before)
	}
}

// wholeTable is the table of connections with all that it counts.
func (w *walk) wholeTable() (s string) {
	w.tb.Helper()
	for _, name := range []string{proven, unproven} {
		w.eachFlow(name, func(k bpfgen.TypesSlTuple, f bpfgen.TypesSlCtEntry) { s += fmt.Sprintf("%s %+v\n", tupleText(k), f) })
	}
	return s
}

// received is a packet from outside, before and after its translation.
func (j *journey) received(kind string) (arrived, translated []byte) {
	j.tb.Helper()
	a, b := j.dress(j.outside.rx(kind)), j.dress(j.inside.rx(kind))
	for _, f := range []*frame{&a, &b} {
		f.srcMAC, f.dstMAC = j.up.router, j.up.mac
	}
	return a.bytes(j.tb), b.bytes(j.tb)
}

// On a bridge netfilter sees a packet before it is translated. So what takes the slow path is given to it again: the first packet
// through a hostPort, answers to a masqueraded connection, errors and fragments.
func TestPrivilegedBridgeAgain(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_cb_cookie1": cbWords[0], "cfg_cb_cookie2": cbWords[1]})
	for _, longest := range []int{0, 1514} {
		again := longest > 0
		hostPortCases(t, fx, func(w *walk, family, proto int) {
			onBridge(longest)(w)
			arrived, translated := w.toHostPort(family, proto, podA).received("S")
			w.arrives(input{data: arrived}, translated, again)
		})
		eachProtocol(t, fx, func(w *walk, family, proto int) {
			w.rolls(5)
			j := w.opens(family, proto, podA, movedPort, rolled(5))
			j.out("S")
			before, after := j.toNode(icmpKinds[0], 0, "S")
			w.arrives(input{data: before.bytes(t)}, after.bytes(t), again)
			arrived, translated := j.received("SA")
			w.arrives(input{data: arrived}, translated, again)
			j.size = 201
			arrived, translated = j.received("PA")
			parts := fragments(translated, 3)
			for i, b := range fragments(arrived, 3) {
				w.arrives(input{data: b}, parts[i], again)
			}
		}, masquerading(podA), onBridge(longest))
	}
}

// What netfilter has put together of fragments is longer than the MTU, and is not given again. What the card or the sender has put
// together is split where it leaves, so it is.
func TestPrivilegedBridgeAgainLong(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_cb_cookie1": cbWords[0], "cfg_cb_cookie2": cbWords[1]})
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		w.rolls(5)
		j := w.opens(family, proto, podA, movedPort, rolled(5))
		j.out("S")
		j.size = 1001
		arrived, translated := j.received("SA")
		for _, longest := range []int{len(arrived) - 1, len(arrived)} {
			onBridge(longest)(w)
			w.arrives(input{data: arrived}, translated, longest == len(arrived))
		}
		if proto != echo {
			onBridge(len(arrived) - 1)(w)
			w.arrives(input{data: arrived, gsoSize: 500}, translated, true)
		}
	}, masquerading(podA))
}

// What was not translated is not given again, nor is anything without words that nobody can guess.
func TestPrivilegedBridgeAgainNot(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_cb_cookie1": cbWords[0], "cfg_cb_cookie2": cbWords[1]})
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		j := w.inbound(family, proto, podA)
		j.size = 201
		j.in("S")
		j.slowPath(func(raw []byte) [][]byte { return fragments(raw, 3) }, "PA", "PA")
		j = w.opens(family, proto, podA, keptPort, keptPort)
		j.ignored("SA")
		arrived, _ := j.received("SA")
		w.stepInput(uplIngress, upl0.name, input{data: arrived, word: [2]uint32{againWords[0], againWords[1] + 1}}, untouched(arrived))
	}, onBridge(1514))
	fx = newFixture(t, nil)
	hostPortCases(t, fx, func(w *walk, family, proto int) {
		onBridge(1514)(w)
		w.toHostPort(family, proto, podA).in("S")
	})
}

// The fast path goes into the pod by the host veth: bpf_redirect_peer of older kernels does not take off what netfilter has noted at the
// bridge's port, and netfilter in the pod would believe it.
func TestPrivilegedBridgeFast(t *testing.T) {
	fx := newFixture(t, map[string]uint32{"cfg_cb_cookie1": cbWords[0], "cfg_cb_cookie2": cbWords[1]})
	for _, longest := range []int{0, 1514} {
		hostPortCases(t, fx, func(w *walk, family, proto int) {
			onBridge(longest)(w)
			r := w.toHostPort(family, proto, podA).untilFast()
			want := redirectPeer
			if longest > 0 {
				want = redirectLink
			}
			if int(r.kind) != want || int(r.ifindex) != w.index(podA.name) {
				t.Errorf("redirect kind %d to device %d, want %d to %d", r.kind, r.ifindex, want, w.index(podA.name))
			}
		})
	}
}

// untilFast talks until a packet from outside is redirected to the pod's device, and returns what became of that one.
func (j *journey) untilFast() result {
	j.tb.Helper()
	run := func(h hook, dev string, data []byte) result {
		j.tb.Helper()
		r, err := j.run(h, dev, input{data: data})
		if err != nil || r.verdict == shot {
			j.tb.Fatalf("%s: verdict %d: %v", h, r.verdict, err)
		}
		return r
	}
	for _, kind := range []string{"S", "A", "PA", "PA", "PA", "PA"} {
		arrived, translated := j.received(kind)
		r := run(uplIngress, j.up.name, arrived)
		if r.kind != redirectNone && int(r.ifindex) != j.index(j.up.name) {
			return r
		}
		run(podIngress, j.pod.name, route(translated, j.pod.gwMAC, j.pod.mac))
		answer := map[bool]string{true: "SA", false: "PA"}[kind == "S"]
		sent := j.dress(j.inside.tx(answer))
		sent.srcMAC, sent.dstMAC = j.pod.mac, j.pod.gwMAC
		if r := run(podEgress, j.pod.name, sent.bytes(j.tb)); r.verdict == pass {
			run(uplEgress, j.up.name, route(r.out, j.up.mac, j.up.router))
		}
	}
	j.tb.Fatal("no packet has taken the fast path")
	return result{}
}
