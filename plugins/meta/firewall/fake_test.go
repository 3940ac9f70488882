// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/chaintest"
)

// node is the plugin on a datapath in memory, with a real attachment store.
type node struct {
	*chaintest.Node
	dp *chaintest.Datapath
}

func newNode(t testing.TB) *node {
	dp := chaintest.NewDatapath()
	n := &node{chaintest.NewNode(t, Name, dp), dp}
	open, existing := chaintest.Openers[Datapath](dp, dp)
	n.Plugin = New(Deps{Opener: Opener{Open: open, OpenExisting: existing}, Resolve: chaintest.Resolve, Records: n.Records})
	return n
}
