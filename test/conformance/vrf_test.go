// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/test/require"
)

// vrf behind ptp, in every version and verb. It is not in the chain of
// matrix_test.go, since not every kernel has VRFs.
func TestPrivilegedVRF(t *testing.T) {
	require.Link(t, "vrf")
	t.Parallel()
	first := step{"ptp", object{"ipam": ipam()}}
	second := step{"vrf", object{"vrfname": "blue"}}
	for _, v := range versions() {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			out, err := n.call(first.plugin, "ADD", nil, first.conf(v, nil))
			if err != nil {
				t.Fatal(err)
			}
			prev := decode(t, v, out)
			out, err = n.call(second.plugin, "ADD", nil, second.conf(v, prev))
			if !atLeast(t, v, since(second.plugin)) {
				wantCode(t, "ADD", err, 1)
				return
			}
			if err != nil {
				t.Fatalf("ADD: %v", err)
			}
			if d := cmp.Diff(prev, decode(t, v, out)); d != "" {
				t.Errorf("vrf changed the result (- before, + after):\n%s", d)
			}
			verbs(t, n, second, v, prev)
			for range 2 {
				var p any
				if atLeast(t, v, "0.4.0") {
					p = prev
				}
				out, err := n.call(second.plugin, "DEL", nil, second.conf(v, p))
				assertSilent(t, second.plugin, "DEL", v, out, err)
			}
		})
	}
}
