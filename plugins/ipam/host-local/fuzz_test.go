// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/jsonobj"
	"github.com/sluice-cni/sluice/pkg/log"
)

// Whatever the runtime sends, load neither panics nor lets through a set that
// cannot be allocated from, and its errors have a code.
func FuzzLoad(f *testing.F) {
	f.Add([]byte(onePool), "")
	f.Add([]byte(`{"name":"n","ipam":{"subnet":"10.0.0.0/24","rangeStart":"::ffff:10.0.0.9","routes":[{"dst":"::/0"}]},"args":{"cni":{"ips":["10.0.0.7/8"]}}}`), "IP=10.0.0.9;IgnoreUnknown=1")
	f.Add([]byte(`{"name":"n","ipam":{"ranges":[[{"subnet":"fd00::/126"}]]},"runtimeConfig":{"ipRanges":[[{"subnet":"10.0.0.0/30"}]],"ips":["fd00::2"]}}`), "")
	f.Fuzz(func(t *testing.T, stdin []byte, cniArgs string) {
		c, err := load(&cniskel.Args{Log: log.NewNop(), CmdArgs: cniskel.CmdArgs{StdinData: jsonobj.NewDocument(stdin), Args: cniArgs}})
		if err != nil {
			if code := cnierr.From(err).Code; code == cnierr.CodeKernel {
				t.Errorf("error without a code: %v", err)
			}
			return
		}
		if _, err := c.distribute(); err != nil && cnierr.From(err).Code != cnierr.CodeConfig {
			t.Errorf("distribute: %v", err)
		}
		for _, s := range c.sets {
			if err := s.Validate(); err != nil {
				t.Errorf("set %s: %v", s, err)
			}
		}
	})
}
