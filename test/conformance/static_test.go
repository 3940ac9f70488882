// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"strings"
	"testing"
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
