// SPDX-License-Identifier: Apache-2.0

package conf

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
)

// A configuration that is accepted has ranges with a first and a last offset, in a network.
func FuzzParseConfig(f *testing.F) {
	for _, seed := range []string{
		`{"cniVersion":"1.1.0","name":"n","type":"bridge","ipam":{"type":"whereabouts","range":"10.0.0.5-10.0.0.9/24","exclude":["10.0.0.6/32"],"gateway":"10.0.0.1"}}`,
		`{"cniVersion":"1.1.0","name":"n","type":"bridge","ipam":{"type":"whereabouts","ipRanges":[{"range":"10.0.0.0/24"},{"range":"fd00::/64","range_start":"fd00::9"}],"block_size":1}}`,
	} {
		f.Add([]byte(seed), "IgnoreUnknown=1;K8S_POD_NAME=p;K8S_POD_NAMESPACE=n;IP=10.0.0.7/24")
		for _, odd := range fuzztest.Odd(f, seed) {
			f.Add([]byte(odd), "")
		}
	}
	f.Fuzz(func(t *testing.T, stdin []byte, args string) {
		a := &cniskel.Args{Log: log.NewNop(), CmdArgs: cniskel.CmdArgs{ContainerID: "c", IfName: "eth0", Netns: "/x", StdinData: stdin, Args: args}}
		var c *Config
		var err error
		fuzztest.Bounded(t, len(stdin)+len(args), func() { c, err = Load(a) })
		if err != nil {
			fuzztest.Refused(t, err, len(stdin)+len(args), "CNI version ")
			return
		}
		for _, r := range c.Ranges {
			if first, last, ok := r.Bounds(); !ok || first > last {
				t.Errorf("the range %+v has offsets %d to %d", r, first, last)
			}
		}
	})
}
