// SPDX-License-Identifier: Apache-2.0

package ipvlan

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
	"github.com/sluice-cni/sluice/plugins/main/internal/sublink"
)

// An accepted mode is one of the three, and a master that comes with prevResult is an interface of it.
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
		if m := r.Spec.IPVLANMode; m != rtnl.IPVLANL2 && m != rtnl.IPVLANL3 && m != rtnl.IPVLANL3S {
			t.Errorf("mode %d", m)
		}
		if r.Given != nil && len(r.Given.IPs) == 0 {
			t.Error("a result without addresses is given")
		}
	})
}
