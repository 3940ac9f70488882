// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
	"github.com/sluice-cni/sluice/plugins/main/internal/sublink"
)

// An accepted VLAN has a master and a number from 0 to 4094, which the request carries unchanged.
func FuzzParseConfig(f *testing.F) {
	fuzztest.AddConfigurations(f, Name)
	f.Fuzz(func(t *testing.T, stdin []byte, args string) {
		a := &cniskel.Args{Log: log.NewNop(), CmdArgs: cniskel.CmdArgs{ContainerID: "c", IfName: "eth0", Netns: "/x", Args: args, StdinData: stdin}}
		var r *sublink.Request
		var err error
		fuzztest.Bounded(t, len(stdin)+len(args), func() { r, err = parse(a) })
		if err != nil {
			fuzztest.Refused(t, err, len(stdin)+len(args))
			return
		}
		if r.Master.Master == "" {
			t.Error("no master")
		}
		fuzztest.Between(t, "vlanId", int(r.Spec.VLANID), 0, 4094)
		var c conf
		if err := cniconf.Load(stdin, &c); err != nil || c.VLANID != int(r.Spec.VLANID) {
			t.Errorf("vlanId %d became %d: %v", c.VLANID, r.Spec.VLANID, err)
		}
	})
}
