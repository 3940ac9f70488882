// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// static behind a main plugin, with the addresses that a runtime gives to ADD
// only: the pod has them, also for CHECK, and STATUS works without them.
func TestPrivilegedStaticBehindBridge(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	conf := object{
		"cniVersion": "1.1.0", "name": "fixed", "type": "bridge", "bridge": "cni0", "isGateway": true,
		"ipam": object{"type": "static", "routes": []object{{"dst": "198.51.100.0/24", "gw": "10.1.0.9", "mtu": 1300}}},
	}
	if _, err := n.call("bridge", "STATUS", nil, conf); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	_, err := n.call("bridge", "ADD", nil, conf)
	wantCode(t, "ADD without an address", err, 7)
	conf["runtimeConfig"] = object{"ips": []string{"10.1.0.77/16", "fd00:10:1::77/64"}}
	out, err := n.call("bridge", "ADD", map[string]string{"CNI_ARGS": "IgnoreUnknown=1;IP=10.2.0.5/16"}, conf)
	if err != nil {
		t.Fatal(err)
	}
	got := decode(t, "1.1.0", out)
	if text := fmt.Sprint(got["ips"]); !strings.Contains(text, "10.1.0.77/16") || !strings.Contains(text, "fd00:10:1::77/64") || strings.Contains(text, "10.2.0.5") {
		t.Errorf("addresses %s", text)
	}
	conf["prevResult"] = got
	for _, verb := range []string{"CHECK", "DEL", "DEL"} {
		out, err := n.call("bridge", verb, nil, conf)
		assertSilent(t, "bridge", verb, "1.1.0", out, err)
	}
}

// GATEWAY of CNI_ARGS, and the sources of addresses beside it: upstream's own program is asked the same.
func TestPrivilegedStaticGatewayAsUpstream(t *testing.T) {
	t.Parallel()
	dir, err := testbin.Reference(t.Context(), "static")
	if err != nil {
		t.Fatal(err)
	}
	n := newNode(t)
	upstream := &node{Lab: n.Lab, pod: n.pod, programs: &testbin.Set{Dir: dir}}
	configured := []object{{"address": "10.1.0.5/16", "gateway": "10.1.0.1"}, {"address": "fd00:1::5/64"}}
	tests := []struct {
		name, args string
		addresses  []object
		more       object
	}{
		{name: "to an address of IP", args: "IP=10.2.0.7/24;GATEWAY=10.2.0.1"},
		{name: "before IP", args: "GATEWAY=10.2.0.1;IP=10.2.0.7/24"},
		{name: "both families, spaces", args: "IP=10.2.0.7/24, fd02::7/64;GATEWAY=10.2.0.1, fd02::1"},
		{name: "not to an address of the configuration", args: "GATEWAY=10.1.0.254,fd00:1::1", addresses: configured},
		{name: "beside an address of the configuration", args: "IP=10.1.9.7/16;GATEWAY=10.1.0.254", addresses: configured},
		{name: "of no subnet", args: "IP=10.2.0.7/24;GATEWAY=10.9.0.1", addresses: configured},
		{name: "two of one subnet", args: "IP=10.2.0.7/24;GATEWAY=10.2.0.1,10.2.0.2"},
		{name: "two addresses of one subnet", args: "IP=10.2.0.7/24,10.2.0.8/24;GATEWAY=10.2.0.1"},
		{name: "replaced by args.cni.ips", args: "IP=10.2.0.7/24;GATEWAY=10.3.0.1", more: object{"args": object{"cni": object{"ips": []string{"10.3.0.2/24"}}}}},
		{name: "replaced by runtimeConfig.ips", args: "IP=10.2.0.7/24;GATEWAY=10.4.0.1", more: object{"runtimeConfig": object{"ips": []string{"10.4.0.2/24"}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			conf := object{"cniVersion": "1.1.0", "name": "fixed", "type": "bridge", "ipam": object{"type": "static", "addresses": tt.addresses}}
			for k, v := range tt.more {
				conf[k] = v
			}
			ips := func(n *node) any {
				out, err := n.call("static", "ADD", map[string]string{"CNI_ARGS": tt.args}, conf)
				if err != nil {
					t.Fatal(err)
				}
				return decode(t, "1.1.0", out)["ips"]
			}
			if d := cmp.Diff(ips(upstream), ips(n)); d != "" {
				t.Errorf("addresses (-upstream +Sluice):\n%s", d)
			}
		})
	}
}
