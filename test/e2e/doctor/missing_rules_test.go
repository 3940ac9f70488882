// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// Another program may flush the tables while pods run. The doctor names each pod that lost its rules, and what it lost, until
// the pod is made again.
func TestPrivilegedDoctorNamesMissingRules(t *testing.T) {
	t.Parallel()
	for _, b := range e2etest.NetfilterBackends() {
		t.Run(b.Name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			w.SetBackend(b)
			rt := w.Runtime(e2etest.Net0())
			p := w.AddPod(rt, "web", e2etest.TCP(8080, 80))
			assertDoctorSays(t, w, "netfilter-rules", false)
			flush := "nft flush ruleset"
			if b.Name == "iptables-legacy" {
				flush = "for t in nat filter; do for f in iptables ip6tables; do $f-legacy -t $t -F; done; done"
			}
			e2etest.RunScript(t, w, flush)
			for _, what := range []string{"hostPorts", "masquerade", "admission"} {
				assertDoctorSays(t, w, what+" of net0/web/eth0 has no rules of "+b.Name, true)
			}
			p.MustDel()
			p.MustAdd()
			assertDoctorSays(t, w, "netfilter-rules", false)
		})
	}
}
