// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"testing"

	"github.com/sluice-cni/sluice/pkg/policy"
)

// netkitWord is the mark of the fast path in these tests.
var netkitWord = [2]uint32{0x5eed, 0xcafe}

// netkitFixture is a node whose kernel has netkit. No packet of it came in by a device at from_pod, as in a pod's own transmission.
func netkitFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixture(t, map[string]uint32{"cfg_netkit": 1, "cfg_cb_cookie1": netkitWord[0], "cfg_cb_cookie2": netkitWord[1]})
}

// What a pod behind netkit sends to another pod by the fast path leaves by the egress of that pod's host end: bpf_redirect_peer() works at
// tc ingress only. There sl_to_pod takes the mark off, and counts the packet.
func TestPrivilegedNetkitPodToPod(t *testing.T) {
	fx := netkitFixture(t)
	pairCases(t, fx, func(p *pair) {
		p.slow("S")
		p.back().slow("SA")
		f := p.sent("A")
		r, err := p.run(podEgress, p.a.name, input{data: f.bytes(t)})
		if err != nil || r.verdict != redirect {
			t.Fatalf("verdict %d: %v", r.verdict, err)
		}
		if r.kind != redirectLink || int(r.ifindex) != p.index(p.b.name) {
			t.Errorf("redirect kind %d to device %d, want a plain one to %s (%d)", r.kind, r.ifindex, p.b.name, p.index(p.b.name))
		}
		if r.word != netkitWord {
			t.Errorf("word %x, want %x", r.word, netkitWord)
		}
		got, err := p.run(podIngress, p.b.name, input{data: r.out, word: r.word})
		if err != nil || got.verdict != pass || !bytes.Equal(got.out, p.arrived(f).bytes(t)) {
			t.Errorf("at the other pod: verdict %d: %v", got.verdict, err)
		}
		if got.word != [2]uint32{} {
			t.Errorf("the pod gets the word %x", got.word)
		}
		if e := p.wantFlow(proven, p.conn, flowPodOpened|flowTXFirst|flowTXConfirm|flowRXFirst|flowRXConfirm|flowLocalPeer|flowReplied|flowAssured); e.TxPackets != 2 {
			t.Errorf("the sender's entry counts %d packets, want 2", e.TxPackets)
		}
		e, ok := p.lookup(proven, p.back().conn)
		if !ok {
			e, _ = p.lookup(unproven, p.back().conn)
		}
		if e.RxPackets != 2 {
			t.Errorf("the receiver's entry counts %d packets, want 2", e.RxPackets)
		}
	}, masquerading(podA), oneNetwork)
}

// A marked packet without an ingress device is a pod's. One without the mark is of a process of the node, which a policy always admits.
func TestPrivilegedNetkitIsNotTheNode(t *testing.T) {
	fx := netkitFixture(t)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		w.police(podB, 7, policy.ModeOpen, `{"ingressDefault":"deny"}`)
		p := w.talk(family, proto, podA, podB)
		f := p.arrived(p.sent("S")).bytes(t)
		if r, err := w.run(podIngress, podB.name, input{data: f, word: netkitWord}); err != nil || r.verdict != shot {
			t.Errorf("from a pod: verdict %d: %v", r.verdict, err)
		}
		if r, err := w.run(podIngress, podB.name, input{data: f}); err != nil || r.verdict != pass {
			t.Errorf("from the node: verdict %d: %v", r.verdict, err)
		}
	})
}

// The host takes a priority tag off and looks at the header behind it, after the programs of a netkit pair have run.
func TestPrivilegedNetkitTag(t *testing.T) {
	const tagged, other = 0x8100, 0x88b5
	fx := netkitFixture(t)
	eachProtocol(t, fx, func(w *walk, family, proto int) {
		f := w.talk(family, proto, podA, podB).sent("S").bytes(t)
		with := func(proto, tci uint16) []byte {
			return append(append(append([]byte{}, f[:12]...), byte(proto>>8), byte(proto), byte(tci>>8), byte(tci)), f[12:]...)
		}
		for _, x := range []struct {
			name string
			data []byte
			want int32
		}{
			{"a priority tag", with(tagged, 0), shot},
			{"a priority tag with a priority", with(tagged, 0xe000), shot},
			{"a priority tag of a service", with(0x88a8, 0), shot},
			{"a tag of a VLAN", with(tagged, 5), pass},
			{"another protocol", with(other, 0), pass},
		} {
			r, err := w.run(podEgress, podA.name, input{data: x.data})
			if err != nil || r.verdict != x.want {
				t.Errorf("%s: verdict %d, want %d: %v", x.name, r.verdict, x.want, err)
			}
		}
	})
}
