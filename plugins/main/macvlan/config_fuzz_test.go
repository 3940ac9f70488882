// SPDX-License-Identifier: Apache-2.0

package macvlan

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
	"github.com/sluice-cni/sluice/plugins/main/internal/sublink"
)

// An accepted mode is one of the four, and an accepted MAC address one that the kernel takes.
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
		switch r.Spec.MacvlanMode {
		case rtnl.MacvlanBridge, rtnl.MacvlanPrivate, rtnl.MacvlanVEPA, rtnl.MacvlanPassthru:
		default:
			t.Errorf("mode %d", r.Spec.MacvlanMode)
		}
		fuzztest.UnicastMAC(t, r.Spec.MAC)
	})
}
