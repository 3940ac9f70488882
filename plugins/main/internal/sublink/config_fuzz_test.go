// SPDX-License-Identifier: Apache-2.0

package sublink

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
)

// What all kinds have in common is within its limits: MTU, name of the master, an IPAM plugin where one is needed.
func FuzzParseRequest(f *testing.F) {
	fuzztest.AddConfigurations(f, "macvlan")
	fuzztest.AddConfigurations(f, "vlan")
	p := &plugin{Kind: Kind{Name: "vlan", Parse: func(a *cniskel.Args) (*Request, error) {
		r := &Request{HasMaster: true, NeedIPAM: true}
		if err := cniconf.Load(a.StdinData, &r.Master); err != nil {
			return nil, err
		}
		return r, cniconf.Load(a.StdinData, &r.Conf)
	}}}
	f.Fuzz(func(t *testing.T, stdin []byte, args string) {
		a := &cniskel.Args{Log: log.NewNop(), CmdArgs: cniskel.CmdArgs{ContainerID: "c", IfName: "eth0", Netns: "/x", Args: args, StdinData: stdin}}
		var r *Request
		var err error
		fuzztest.Bounded(t, len(stdin), func() { r, err = p.parse(a, false) })
		if err != nil {
			fuzztest.Refused(t, err, len(stdin))
			return
		}
		fuzztest.Between(t, "mtu", r.MTU, 68, 65535, 0)
		if why := cniconf.BadLinkName(r.Master.Master); why != "" {
			t.Errorf("master %q: %s", r.Master.Master, why)
		}
		if r.ipamType == "" {
			t.Error("no IPAM plugin")
		}
	})
}
