// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
)

// An accepted configuration has an MTU, a MAC address and names that the kernel takes.
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
		fuzztest.UnicastMAC(t, r.mac)
		if why := cniconf.BadIfName(r.Bridge); why != "" {
			t.Errorf("bridge %q: %s", r.Bridge, why)
		}
		if strings.ContainsAny(r.SELinuxContext, "\x00\n") {
			t.Errorf("selinuxContext %q", r.SELinuxContext)
		}
	})
}
