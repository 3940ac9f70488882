// SPDX-License-Identifier: Apache-2.0

package sbr

import (
	"slices"
	"testing"

	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
)

// DEL of an attachment that was never made, with the name of another one's interface.
func TestPrivilegedDelOfOther(t *testing.T) {
	e := newEnv(t)
	e.mustAdd("")
	before := e.state()
	a := &cniskel.Args{Log: log.NewNop(), CmdArgs: cniskel.CmdArgs{ContainerID: "a", IfName: "net1", Netns: e.netns, StdinData: []byte(`{"cniVersion":"1.1.0","name":"othernet","type":"sbr"}`)}}
	if err := e.node.Do(func() error { return e.plugin.Del(t.Context(), a) }); err != nil {
		t.Fatal(err)
	}
	if after := e.state(); !slices.Equal(before, after) {
		t.Errorf("before: %q\nafter: %q", before, after)
	}
}
