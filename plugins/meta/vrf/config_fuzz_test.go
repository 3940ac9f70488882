// SPDX-License-Identifier: Apache-2.0

package vrf

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
)

// An accepted VRF has a name that a link can have, other than the pod's, and a table that is not the pod's own.
func FuzzParseConfig(f *testing.F) {
	fuzztest.AddConfigurations(f, Name, `{"cniVersion":"1.1.0","name":"n","type":"vrf","vrfname":"blue","table":500}`)
	f.Fuzz(func(t *testing.T, stdin []byte, args string) {
		a := &cniskel.Args{Log: log.NewNop(), CmdArgs: cniskel.CmdArgs{ContainerID: "c", IfName: "eth0", Netns: "/x", Args: args, StdinData: stdin}}
		var r *request
		var err error
		fuzztest.Bounded(t, len(stdin), func() { r, err = parse(a) })
		if err != nil {
			fuzztest.Refused(t, err, len(stdin))
			return
		}
		if cniconf.BadIfName(r.VRFName) != "" || r.VRFName == "eth0" || r.Table == rtnl.TableLocal || r.Table == rtnl.TableMain {
			t.Errorf("accepted %q, table %d", r.VRFName, r.Table)
		}
	})
}
