// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
)

func TestPrivilegedDelOfFailedAdd(t *testing.T) {
	e := newEnv(t, "")
	e.mustAdd()
	a := &cniskel.Args{Log: log.NewNop(), CmdArgs: cniskel.CmdArgs{ContainerID: "a", IfName: "eth0", Netns: e.netns,
		StdinData: []byte(`{"cniVersion":"1.1.0","name":"othernet","type":"tap"}`)}}
	if err := e.node.Do(func() error { _, err := e.plugin.Add(t.Context(), a); return err }); err == nil {
		t.Fatal("ADD of othernet should fail")
	}
	if err := e.node.Do(func() error { return e.plugin.Del(t.Context(), a) }); err != nil {
		t.Fatal(err)
	}
	if len(e.links()) != 2 {
		t.Errorf("the first network's tap is gone: %+v", e.links())
	}
}
