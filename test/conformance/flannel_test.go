// SPDX-License-Identifier: Apache-2.0

package conformance

import "testing"

// flannel in every version and verb, with what flanneld writes. It is not in the
// chain of matrix_test.go, since it comes first, as bridge does.
func TestPrivilegedFlannel(t *testing.T) {
	t.Parallel()
	s := step{"flannel", object{"delegate": object{"isDefaultGateway": true}}}
	for _, v := range versions() {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			n := exampleNode(t)
			out, err := n.call(s.plugin, "ADD", nil, s.conf(v, nil))
			if err != nil {
				t.Fatalf("ADD: %v", err)
			}
			got := decode(t, v, out)
			if got["cniVersion"] != v {
				t.Errorf("cniVersion is %v, want %s", got["cniVersion"], v)
			}
			if atLeast(t, v, "0.3.0") {
				assertInterfaces(t, got)
			}
			verbs(t, n, s, v, got)
			for range 2 {
				out, err := n.call(s.plugin, "DEL", nil, s.conf(v, nil))
				assertSilent(t, s.plugin, "DEL", v, out, err)
			}
			// A GC that does not list an attachment ends it.
			if _, err := n.call(s.plugin, "ADD", nil, s.conf(v, nil)); err != nil {
				t.Fatalf("ADD: %v", err)
			}
			gc := s.conf("1.1.0", nil)
			gc["cni.dev/valid-attachments"] = []object{}
			out, err = n.call(s.plugin, "GC", nil, gc)
			assertSilent(t, s.plugin, "GC", "1.1.0", out, err)
			if _, err := n.call(s.plugin, "ADD", nil, s.conf(v, nil)); err != nil {
				t.Errorf("ADD after GC: %v", err)
			}
		})
	}
}
