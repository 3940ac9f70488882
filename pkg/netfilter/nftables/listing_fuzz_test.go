// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
)

// Tables hold rules of everybody, and each release of nft writes JSON of its own. Of any listing, what is found has a
// name, and rules or elements that are in the listing.
func FuzzListing(f *testing.F) {
	seed := `{"nftables":[{"metainfo":{"version":"1.0.6"}},{"chain":{"family":"inet","table":"` + portTable + `","name":"` + chainHostPorts + `"}},` +
		`{"rule":{"family":"inet","table":"` + portTable + `","chain":"` + chainHostPorts + `","handle":7,"comment":"ctr1","expr":[{"match":{"op":"==","left":{"payload":{"protocol":"tcp","field":"dport"}},"right":8080}},{"dnat":{"addr":"10.1.0.2","port":80}}]}},` +
		`{"rule":{"family":"inet","table":"` + masqTable + `","chain":"` + masqChain + `","handle":8,"comment":"0123456789abcdef-0123456789abcdef, net: n, if: eth0, id: c","expr":[{"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"saddr"}},"right":"10.1.0.2"}},{"jump":{"target":"x"}},{"masquerade":null}]}},` +
		`{"set":{"family":"inet","table":"` + firewallTable + `","name":"` + podSet(false) + `","elem":["10.1.0.9",{"elem":{"val":"10.1.0.2","comment":"0123456789abcdef-0123456789abcdef, net: n, if: eth0, id: c"}},{"concat":["cni0","cni0"]}]}},` +
		`{"set":{"family":"inet","table":"` + firewallTable + `","name":"` + setBridges + `","elem":["cni0"]}}]}`
	f.Add([]byte(seed))
	for _, odd := range fuzztest.Odd(f, seed) {
		f.Add([]byte(odd))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var l list
		if json.Unmarshal(text, &l) != nil || l.compact() != nil {
			return
		}
		var all []found
		fuzztest.Bounded(t, len(text), func() {
			all = slices.Concat(portSets(l), masqSets(l), firewallSets(l))
			_ = acceptsMark(string(text), 0x4000)
			for _, o := range l.Objects {
				if o.Rule != nil {
					_ = o.Rule.jump()
				}
			}
		})
		for _, x := range all {
			if x.What == "" || len(x.seen.rules)+len(x.seen.elems) == 0 {
				t.Errorf("%+v of %s", x, text)
			}
			for _, a := range x.Addrs {
				if !a.IsValid() {
					t.Errorf("an address that is none: %+v", x)
				}
			}
		}
	})
}
