// SPDX-License-Identifier: Apache-2.0

package bandwidth

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
)

// An accepted limit has a rate and a burst, and each network is in its shortest form.
func FuzzParseConfig(f *testing.F) {
	fuzztest.AddStdin(f, Name,
		`{"cniVersion":"1.1.0","name":"n","type":"bandwidth","runtimeConfig":{"bandwidth":{"ingressRate":1000000,"ingressBurst":2147483647,"egressRate":8,"egressBurst":34359738360,"unshapedSubnets":["10.0.0.0/8","fd00::/8"]}}}`,
		`{"cniVersion":"1.0.0","name":"n","type":"bandwidth","backend":"edt","ingressRate":123,"ingressBurst":456,"shapedSubnets":["192.0.2.1/24"]}`)
	f.Fuzz(func(t *testing.T, stdin []byte) {
		var r *request
		var err error
		fuzztest.Bounded(t, len(stdin), func() { r, err = parse(stdin, BackendAuto) })
		if err != nil {
			fuzztest.Refused(t, err, len(stdin))
			return
		}
		for _, l := range []*Limit{r.ingress, r.egress} {
			if l != nil && (l.Rate == 0 || l.Burst == 0) {
				t.Errorf("accepted the limit %+v", l)
			}
		}
		if len(r.subnets.Shaped) > maxSubnets || len(r.subnets.Unshaped) > maxSubnets || len(r.subnets.Shaped) > 0 && len(r.subnets.Unshaped) > 0 {
			t.Errorf("accepted %+v", r.subnets)
		}
		for _, p := range append(r.subnets.Shaped, r.subnets.Unshaped...) {
			if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() {
				t.Errorf("accepted the network %s", p)
			}
		}
	})
}
