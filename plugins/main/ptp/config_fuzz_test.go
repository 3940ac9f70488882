// SPDX-License-Identifier: Apache-2.0

package ptp

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
)

// An accepted configuration has an IPAM plugin, an MTU that the kernel takes, and a backend that exists.
func FuzzParseConfig(f *testing.F) {
	fuzztest.AddConfigurations(f, Name)
	f.Fuzz(func(t *testing.T, stdin []byte, args string) {
		a := &cniskel.Args{Log: log.NewNop(), CmdArgs: cniskel.CmdArgs{ContainerID: "c", IfName: "eth0", Netns: "/x", Args: args, StdinData: stdin}}
		var r *request
		var err error
		fuzztest.Bounded(t, len(stdin)+len(args), func() { r, err = parse(a) })
		if err != nil {
			fuzztest.Refused(t, err, len(stdin)+len(args))
			return
		}
		fuzztest.Between(t, "mtu", r.MTU, 68, 65535, 0)
		if r.ipamType == "" {
			t.Error("no IPAM plugin")
		}
		if err := r.Validate(); err != nil {
			t.Error(err)
		}
	})
}
