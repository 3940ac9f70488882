// SPDX-License-Identifier: Apache-2.0

package static

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
)

// Addresses that are accepted can be given to an interface, each once, and a gateway is of the family of its address.
func FuzzParseConfig(f *testing.F) {
	fuzztest.AddConfigurations(f, "static", `{"name":"n","ipam":{"type":"static","addresses":[{"address":"10.0.0.2/24"}]},"args":{"cni":{"ips":["10.0.0.3/24"]}},"runtimeConfig":{"ips":["10.0.0.4/24","fd00::4/64"]}}`)
	var many strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&many, `"fd00::%x/64",`, i+1)
	}
	f.Add([]byte(`{"cniVersion":"1.0.0","name":"n","ipam":{},"args":{"cni":{"ips":[`+strings.TrimSuffix(many.String(), ",")+`]}}}`), "")
	f.Fuzz(func(t *testing.T, stdin []byte, args string) {
		a := &cniskel.Args{Log: log.NewNop(), CmdArgs: cniskel.CmdArgs{ContainerID: "c", IfName: "eth0", Netns: "/x", StdinData: stdin, Args: args}}
		var c *config
		var err error
		fuzztest.Bounded(t, len(stdin)+len(args), func() { c, err = load(a) })
		if err != nil {
			fuzztest.Refused(t, err, len(stdin)+len(args), "CNI version ")
			return
		}
		seen := map[netip.Addr]bool{}
		for _, e := range c.addrs {
			addr := e.prefix.Addr()
			if seen[addr] || addr.IsUnspecified() || addr.IsMulticast() || addr.Is4In6() || addr.Zone() != "" {
				t.Errorf("accepted %s", e.prefix)
			}
			seen[addr] = true
			if e.gateway.IsValid() && e.gateway.Is4() != addr.Is4() {
				t.Errorf("accepted %s with the gateway %s", e.prefix, e.gateway)
			}
		}
	})
}
