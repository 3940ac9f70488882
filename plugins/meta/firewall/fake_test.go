// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/chainedtest"
)

// node is the plugin on a datapath in memory, with a real attachment store.
type node struct {
	*chainedtest.Node
	dp *chainedtest.Datapath
}

func newNode(t testing.TB) *node {
	dp := chainedtest.NewDatapath()
	n := &node{chainedtest.NewNode(t, Name, dp), dp}
	open, existing := chainedtest.Openers[Datapath](dp, dp)
	n.Plugin = New(Deps{Open: open, OpenExisting: existing, Resolve: chainedtest.Resolve, Records: n.Records})
	return n
}
