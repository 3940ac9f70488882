// SPDX-License-Identifier: Apache-2.0

package interfaces

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// A main plugin that is not ours, and whose result names nothing but a device of the node.
func TestPrivilegedStrangersResult(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t, netlab.Options{ForwardIPv4: true, ForwardIPv6: true})
	p := w.Node.PodT(t, "odd")
	e2etest.MustRun(t, w.Node, "ip link add odd0 type veth peer name eth0 netns odd")
	for _, line := range []string{"ip link set odd0 up", "ip addr add 10.9.0.1/24 dev odd0", "ip addr add fd00:9::1/64 dev odd0 nodad"} {
		e2etest.MustRun(t, w.Node, line)
	}
	for _, line := range []string{
		"ip link set lo up", "ip link set eth0 up", "ip addr add 10.9.0.2/24 dev eth0", "ip addr add fd00:9::2/64 dev eth0 nodad",
		"ip route add default via 10.9.0.1", "ip -6 route add default via fd00:9::1",
	} {
		e2etest.MustRun(t, p, line)
	}
	e2etest.Serve(t, p, "odd", ":80")
	env := map[string]string{"CNI_CONTAINERID": "odd", "CNI_NETNS": p.Path}
	stdin := e2etest.ConfJSON(e2etest.Attributes{
		"cniVersion": "1.1.0", "name": "odd", "type": "portmap",
		"prevResult": e2etest.Attributes{
			"cniVersion": "1.1.0", "interfaces": []e2etest.Attributes{{"name": "odd0"}},
			"ips": []e2etest.Attributes{{"address": "10.9.0.2/24", "gateway": "10.9.0.1"}, {"address": "fd00:9::2/64", "gateway": "fd00:9::1"}},
		},
		"runtimeConfig": e2etest.Attributes{"portMappings": []e2etest.PortMapping{e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)}},
	}, nil)
	if out, err := w.CallPlugin("portmap", "ADD", env, stdin); err != nil {
		t.Fatalf("ADD: %v\n%s", err, out)
	}
	if out, err := w.CallPlugin("portmap", "CHECK", env, stdin); err != nil {
		t.Errorf("CHECK: %v\n%s", err, out)
	}
	e2etest.AssertHostPort(t, w, "odd")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		for _, from := range []e2etest.Place{w.Node, p} {
			if got := e2etest.Ask(t, from, proto, e2etest.At(fam.Node(w.Client()), 8080)); got.Server != "odd" {
				t.Errorf("answered by %s", got.Server)
			}
		}
	})
	if out, err := w.CallPlugin("portmap", "DEL", env, stdin); err != nil {
		t.Errorf("DEL: %v\n%s", err, out)
	}
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		e2etest.AssertNoAnswer(t, w.Client(), proto, e2etest.At(fam.Node(w.Client()), 8080))
	})
}
