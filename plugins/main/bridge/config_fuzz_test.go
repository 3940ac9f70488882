// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
)

// A configuration that is accepted has every value within the limits of README.md, and its trunk is a sorted list
// without overlaps that covers exactly what was asked for.
func FuzzParseConfig(f *testing.F) {
	fuzztest.AddConfigurations(f, Name, `{"cniVersion":"1.0.0","name":"n","type":"bridge","bridge":"x","vlanTrunk":[{"minID":1,"maxID":4094},{"minID":1,"maxID":4094},{"id":9}],"ipam":{}}`)
	f.Add([]byte(`{"cniVersion":"1.0.0","name":"n","vlanTrunk":[`+strings.Repeat(`{"minID":1,"maxID":4094},`, 2000)+`{"id":7}]}`), "")
	f.Fuzz(func(t *testing.T, stdin []byte, args string) {
		a := &cniskel.Args{Log: log.NewNop(), CmdArgs: cniskel.CmdArgs{ContainerID: "c", IfName: "eth0", Netns: "/x", Args: args, StdinData: stdin}}
		var r *request
		var err error
		fuzztest.Bounded(t, len(stdin)+len(args), func() { r, err = parse(a) })
		_, _ = parseDel(stdin)
		if err != nil {
			fuzztest.Refused(t, err, len(stdin)+len(args))
			return
		}
		if why := cniconf.BadIfName(r.Bridge); why != "" || r.Bridge == "" {
			t.Errorf("bridge %q: %s", r.Bridge, why)
		}
		if r.IsGateway && r.VLAN != 0 && cniconf.BadIfName(r.vlanGatewayName()) != "" {
			t.Errorf("VLAN gateway %q", r.vlanGatewayName())
		}
		fuzztest.Between(t, "mtu", r.MTU, 68, 65535, 0)
		fuzztest.Between(t, "vlan", r.VLAN, 0, 4094)
		fuzztest.UnicastMAC(t, r.mac)
		checkTrunk(t, r)
	})
}

func checkTrunk(t *testing.T, r *request) {
	t.Helper()
	asked := func(id int) bool {
		for _, item := range r.VLANTrunk {
			if item.ID != nil && *item.ID == id || item.MinID != nil && *item.MinID <= id && id <= *item.MaxID {
				return true
			}
		}
		return false
	}
	has, last := map[int]bool{}, 0
	for _, v := range r.trunk {
		if int(v.From) <= last+1 && last != 0 || v.To < v.From {
			t.Errorf("trunk %v is not sorted and merged", r.trunk)
		}
		last = int(v.To)
		for id := int(v.From); id <= int(v.To); id++ {
			has[id] = true
		}
	}
	if len(r.VLANTrunk) > 16 { // the check below takes time for each item
		return
	}
	for id := range 4097 {
		if has[id] != asked(id) {
			t.Fatalf("trunk %v: VLAN %d: %t, asked for: %t", r.trunk, id, has[id], asked(id))
		}
	}
}
