// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// cases are all of them, in the order of the document.
func cases() []parityCase {
	always := func(a e2etest.Attributes) func(*stage) e2etest.Attributes {
		return func(*stage) e2etest.Attributes { return a }
	}
	return []parityCase{
		hostPorts(),
		hostIPs(),
		bridges(),
		portmapKeys("snat false", always(e2etest.Attributes{"snat": false}), nil),
		portmapKeys("masqAll", always(e2etest.Attributes{"masqAll": true}), nil),
		portmapKeys("conditionsV4 and conditionsV6, all but the first client", notClient, nil),
		portmapKeys("markMasqBit", always(e2etest.Attributes{"markMasqBit": 5}), nil),
		portmapKeys("externalSetMarkChain", func(s *stage) e2etest.Attributes {
			if s.column.isNFT() { // both say that it is for iptables only
				return nil
			}
			return e2etest.Attributes{"externalSetMarkChain": "MARK-IT"}
		}, markChain),
		marks(),
		plainClients("without a policy", ""),
		plainClients("a network with ingressPolicy same-bridge", "same-bridge"),
		plainClients("a network with ingressPolicy isolated", "isolated"),
		lives(),
		verbs(),
		sources(),
		masquerading(),
		transfers(),
		admission(),
		policies("same-bridge"),
		policies("isolated"),
		zones(),
		rates(),
		sourceRoutes(),
	}
}
