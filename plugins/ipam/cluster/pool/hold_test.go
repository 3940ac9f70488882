// SPDX-License-Identifier: Apache-2.0

package pool

import "testing"

// Each form of a hold is read as it was written, and no other ID is taken for one.
func TestHold(t *testing.T) {
	t.Parallel()
	for _, owner := range []string{
		HoldFor(HeldPod, "ns", "web-0", "net1"), HoldFor(HeldPod, "ns", "web-0", "eth0@x"), HoldFor(HeldClaim, "ns", "c.net"), HoldFor(HeldVM, "ns", "vm.net", "vm"),
	} {
		for _, node := range []NodeID{{}, {Node: "n.example.org", Machine: "0a", Boot: "0b"}} {
			h := Hold{Owner: owner, Nonce: "0123", Node: node}
			got, ok := ParseHold(h.String())
			if !ok || got != h || got.Taken() != (node.Node != "") || got.IsMirror() {
				t.Errorf("%s: %+v %v", h, got, ok)
			}
			if _, ok := ParseNodeID(h.String()); ok {
				t.Errorf("%s is taken for a node's", h)
			}
		}
		m, ok := ParseHold(Hold{Owner: owner, Nonce: "0123"}.Mirror().String())
		if !ok || !m.IsMirror() || m.Owner != owner {
			t.Errorf("mirror of %s: %+v %v", owner, m, ok)
		}
	}
	for _, id := range []string{
		"", "sluice/n/a.b.c", "sluice-held/", "sluice-held/1/pod/ns/web-0", "sluice-held/1/pod/ns//net1", "sluice-held//claim/ns/c", "sluice-held/1/other/ns/c",
		"sluice-held/1/claim/ns/c@n/machine", "sluice-held/1/claim/ns/c@/m.b", "sluice-held/1/claim/ns/c/d", "0123456789abcdef",
	} {
		if h, ok := ParseHold(id); ok {
			t.Errorf("%q is %+v", id, h)
		}
	}
	for id, want := range map[string]string{
		"sluice-held/1/pod/ns/web-0/net1":               "pod ns/web-0, kept",
		"sluice-held/1/claim/ns/c@n/m.b":                "IPAMClaim ns/c on node n",
		"sluice-held/1/vm/ns/vm.net/vm":                 "IPAMClaim ns/vm.net",
		"sluice-held/1/pod/ns/web-0/net1@n.example/m.b": "pod ns/web-0, kept on node n.example",
	} {
		if got := (Entry{ID: id}).Holder(); got != want {
			t.Errorf("%s: %q, want %q", id, got, want)
		}
	}
}
