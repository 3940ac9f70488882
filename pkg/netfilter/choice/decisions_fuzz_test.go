// SPDX-License-Identifier: Apache-2.0

package choice

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/netfilter/internal/tooltest"
	"github.com/sluice-cni/sluice/pkg/nodeid"
	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
)

// Whatever the file of decisions holds, a choice is one of the tables that there are. Another boot's file counts for nothing, and a
// choice that is kept is read again.
func FuzzDecisions(f *testing.F) {
	file := func(boot, choices string) []byte {
		return []byte(`{"version":1,"bootID":"` + boot + `","choices":` + choices + `}`)
	}
	const kept = `{"auto":{"name":"iptables-legacy","reason":"why","fact":true,"seen":"2999-01-01T00:00:00Z"},"iptables":{"name":"nftables"}}`
	f.Add(file(nodeid.BootID(), kept))
	f.Add(file("another", kept))
	f.Add(file(nodeid.BootID(), `{"auto":{"name":"../x","fact":true},"iptables":null}`))
	f.Add(file(nodeid.BootID(), `null`))
	f.Add([]byte(`{"choices":[]}`))
	f.Add([]byte(``))
	f.Fuzz(func(t *testing.T, text []byte) {
		n := newTestNode(t, tooltest.NewTools(), tooltest.Kernel{})
		path, err := decisionFile(n.env.RunDir)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		var d struct{ BootID string }
		if (json.Unmarshal(text, &d) != nil || d.BootID != nodeid.BootID()) && n.kept("auto") != (netfilter.Choice{}) {
			t.Errorf("taken from the file of another boot: %+v", n.kept("auto"))
		}
		for _, asked := range []string{"auto", netfilter.NameIPTables} {
			fuzztest.Bounded(t, len(text), func() {
				tables, c, err := n.Select(t.Context(), asked)
				if err != nil {
					t.Errorf("%s: %v", asked, err)
					return
				}
				if tables.Name() != c.Name || asked == netfilter.NameIPTables && !strings.HasPrefix(c.Name, netfilter.NameIPTables) {
					t.Errorf("%s: chose %s, which is called %s", asked, tables.Name(), c.Name)
				}
			})
		}
		if c := n.keep("auto", netfilter.Choice{Name: netfilter.NameNFTables, Fact: true}); n.kept("auto").Name != c.Name {
			t.Errorf("kept %+v, read %+v", c, n.kept("auto"))
		}
	})
}
