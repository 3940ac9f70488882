// SPDX-License-Identifier: Apache-2.0

package e2e

// scenes are all of them, in the order of the document.
func scenes() []scene {
	always := func(a attributes) func(*stage) attributes { return func(*stage) attributes { return a } }
	return []scene{
		hostPorts(),
		hostIPs(),
		portmapKeys("snat false", always(attributes{"snat": false}), nil),
		portmapKeys("masqAll", always(attributes{"masqAll": true}), nil),
		portmapKeys("conditionsV4 and conditionsV6, all but the first client", notClient, nil),
		portmapKeys("markMasqBit", always(attributes{"markMasqBit": 5}), nil),
		portmapKeys("externalSetMarkChain", func(s *stage) attributes {
			if s.column.isNFT() { // both say that it is for iptables only
				return nil
			}
			return attributes{"externalSetMarkChain": "MARK-IT"}
		}, markChain),
		marks(),
		lives(),
		verbs(),
		masquerading(),
		transfers(),
		admission(),
		policies("same-bridge"),
		policies("isolated"),
		zones(),
		rates(),
	}
}
