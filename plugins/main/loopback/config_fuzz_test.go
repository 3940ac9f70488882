// SPDX-License-Identifier: Apache-2.0

package loopback

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
)

// The result of an ADD is prevResult as it came. So what parse accepts can be written in the version of the
// configuration, or the version has no room for it.
func FuzzParseConfig(f *testing.F) {
	fuzztest.AddConfigurations(f, Name, `{"cniVersion":"0.4.0","name":"lo","type":"loopback","prevResult":{"interfaces":[{"name":"lo","sandbox":"/x"}],"ips":[{"version":"4","address":"127.0.0.1/8","interface":0}]}}`)
	f.Fuzz(func(t *testing.T, stdin []byte, args string) {
		a := &cniskel.Args{Log: log.NewNop(), CmdArgs: cniskel.CmdArgs{ContainerID: "c", IfName: "lo", Netns: "/x", Args: args, StdinData: stdin}}
		var c *call
		var err error
		fuzztest.Bounded(t, len(stdin), func() { c, err = parse(a) })
		if err != nil {
			fuzztest.Refused(t, err, len(stdin))
			return
		}
		if c.prev == nil {
			return
		}
		if _, err := cniconf.Convert(c.prev, c.Version()); err != nil {
			fuzztest.Refused(t, err, len(stdin))
		}
		for _, ip := range c.prev.IPs {
			_ = onLoopback(c.prev, ip)
		}
	})
}
