// SPDX-License-Identifier: Apache-2.0

package sbr

import (
	"math"
	"testing"

	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
)

// An accepted table can be one of rules, a gateway stands under its family, and each address of prevResult is one that
// a rule can have.
func FuzzParseConfig(f *testing.F) {
	fuzztest.AddConfigurations(f, Name,
		`{"cniVersion":"1.1.0","name":"n","type":"sbr","table":500,"gateways":["10.0.0.1","fd00::1"],"addSourceHints":true,"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{"address":"10.0.0.7/24","gateway":"10.0.0.1","interface":0},{"address":"fd00::7/64","interface":0}]}}`,
		`{"cniVersion":"0.3.1","name":"n","type":"sbr","prevResult":{"interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{"version":"4","address":"10.0.0.7/24","gateway":"fd00::1"}]}}`)
	f.Fuzz(func(t *testing.T, stdin []byte, args string) {
		a := &cniskel.Args{Log: log.NewNop(), CmdArgs: cniskel.CmdArgs{ContainerID: "c", IfName: "eth0", Netns: "/x", Args: args, StdinData: stdin}}
		var r *request
		var err error
		fuzztest.Bounded(t, len(stdin), func() { r, err = parse(a) })
		if err != nil {
			fuzztest.Refused(t, err, len(stdin))
			return
		}
		if r.Table != nil {
			fuzztest.Between(t, "table", *r.Table, 1, math.MaxUint32)
			if *r.Table == localTable {
				t.Error("accepted the kernel's own table")
			}
		}
		for is4, gw := range r.gateways {
			if gw.Is4() != is4 || gw.Is4In6() {
				t.Errorf("the gateway %s stands for IPv4: %v", gw, is4)
			}
		}
		if r.prev, err = r.Chained(); err != nil {
			fuzztest.Refused(t, err, len(stdin), "prevResult", "required prevResult")
			return
		}
		addrs, err := r.addresses()
		for _, addr := range addrs {
			if err == nil && (!addr.prefix.IsValid() || addr.prefix.Addr().Is4In6()) {
				t.Errorf("accepted the address %s", addr.prefix)
			}
		}
	})
}
