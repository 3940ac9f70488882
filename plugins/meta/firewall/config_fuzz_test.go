// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
)

// An accepted configuration names a backend that exists, a chain that iptables can have, and has a policy.
func FuzzParseConfig(f *testing.F) {
	fuzztest.AddStdin(f, Name,
		`{"cniVersion":"1.1.0","name":"n","type":"firewall","ingressPolicy":"isolated","rules":[{"from":["10.0.0.0/8","fd00::/8"],"ports":["80","443/tcp","1000-2000/udp"],"action":"allow"},{"action":"deny"}]}`,
		`{"cniVersion":"1.0.0","name":"n","type":"firewall","backend":"iptables","iptablesAdminChainName":"CNI-ADMIN","firewalldZone":"trusted","ingressPolicy":"same-bridge"}`)
	f.Fuzz(func(t *testing.T, stdin []byte) {
		var c *Conf
		var err error
		fuzztest.Bounded(t, len(stdin), func() { c, err = parse(stdin) })
		if err != nil {
			fuzztest.Refused(t, err, len(stdin))
			return
		}
		if c.policy == nil {
			t.Error("accepted without a policy")
		}
		if chain := c.IptablesAdminChainName; chain != "" && !netfilter.ValidChainName(chain) {
			t.Errorf("accepted the chain %q", chain)
		}
		if validateBackend(c.Backend) != nil {
			t.Errorf("accepted the backend %q", c.Backend)
		}
	})
}
