// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
)

// Whatever a node writes into its own object, each podCIDR is a network or named as bad, and no address has a zone.
func FuzzConvert(f *testing.F) {
	for _, s := range []string{
		`{"metadata":{"name":"a","annotations":{"x":"y"}},"spec":{"podCIDRs":["10.1.0.0/24","fd00::/64"]},"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}}`,
		`{"metadata":{"name":"a"},"spec":{"podCIDR":"10.1.0.0/24","podCIDRs":["10.1.0.1/24","::ffff:10.0.0.0/120","x","10.0.0.0/33","/","fe80::%a/64"]},"status":{"addresses":[{"type":"InternalIP","address":"fe80::1%eth0"},{"type":"InternalIP","address":"::ffff:192.0.2.1"},{"type":"Hostname","address":"a"}]}}`,
		`{"metadata":{"creationTimestamp":null},"spec":{"podCIDRs":[""]}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var n corev1.Node
		if json.Unmarshal(text, &n) != nil {
			return
		}
		trim(&n)
		fuzztest.Bounded(t, len(text), func() {
			out, bad := convert(&n)
			if len(out.PodCIDRs)+len(bad) != len(n.Spec.PodCIDRs) {
				t.Errorf("%d podCIDRs, of them %d networks and %d bad", len(n.Spec.PodCIDRs), len(out.PodCIDRs), len(bad))
			}
			for _, p := range out.PodCIDRs {
				if p != p.Masked() || p.Addr().Is4In6() {
					t.Errorf("accepted %s", p)
				}
			}
			for _, a := range out.InternalIPs {
				if a.Zone() != "" || a.Is4In6() {
					t.Errorf("accepted %s", a)
				}
			}
		})
	})
}
