// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"testing"

	"github.com/sluice-cni/sluice/loader/loadertest"
	"github.com/sluice-cni/sluice/pkg/test/plugintest"
)

// node is the plugin on a datapath in memory, with a real attachment store.
type node struct {
	*plugintest.Caller
	dp *loadertest.Datapath
}

func newNode(t testing.TB) *node {
	dp := &loadertest.Datapath{Fail: map[string]error{}}
	n := &node{plugintest.NewCaller(t, Name, dp), dp}
	open, existing := plugintest.Openers(dp)
	n.Plugin = New(Deps{Opener: Opener{Open: open, OpenExisting: existing}, Resolve: plugintest.Resolve, Records: n.Records})
	return n
}
