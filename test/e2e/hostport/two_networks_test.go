// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"net/netip"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// Multus gives the portMappings of a pod to every network that has the capability, and podman publishes a container's
// ports again for each network that it joins. The first attachment keeps a port until it goes. Then the next one has it.
func TestPrivilegedTwoNetworks(t *testing.T) {
	t.Parallel()
	ports := []e2etest.PortMapping{e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)}
	for _, b := range append([]e2etest.Backend{{Name: "ebpf", Conf: `{"backend":"ebpf"}`}}, e2etest.NetfilterBackends()...) {
		t.Run(b.Name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			w.SetBackend(b)
			net1, net2 := w.Runtime(unrouted("net1", "cni1", "2")), w.Runtime(unrouted("net2", "cni2", "3"))
			w.NodeAfterPod(net1, ports...)
			w.NodeAfterPod(net2, ports...)
			before := w.NodeAfterPod(w.Runtime(e2etest.Net0()), ports...)
			first := w.AddPod(w.Runtime(e2etest.Net0()), "web", ports...)
			e2etest.ServeOwn(t, first, "first")
			second := w.Join(first, net1, "net1", ports...)
			e2etest.ServeOwn(t, second, "second")
			third := w.Join(first, net2, "net2", ports...)
			e2etest.ServeOwn(t, third, "third")
			has := func(want string, rest ...*e2etest.Pod) {
				t.Helper()
				e2etest.AssertHostPort(t, w, want)
				for _, p := range rest {
					e2etest.AssertChecked(t, p)
				}
			}
			has("first", first, second, third)
			first.MustDel()
			has("second", second, third)
			first.IP4, first.IP6 = netip.Addr{}, netip.Addr{}
			first.MustAdd() // it is the last of the three now
			has("second", first, second, third)
			third.MustDel()
			has("second", first, second)
			second.MustDel()
			e2etest.ServeOwn(t, first, "again")
			has("again", first)

			other := w.AddPod(w.Runtime(e2etest.Net0()), "other", ports...)
			e2etest.ServeOwn(t, other, "other")
			has("other", other) // another container
			other.MustDel()
			has("again", first)
			first.MustDel()
			for _, p := range []*e2etest.Pod{first, other} {
				if err := p.Delete(); err != nil {
					t.Fatal(err)
				}
			}
			w.AssertUnchanged(before, "after all")
		})
	}
}

// The same where the second network's interface has no host veth: eBPF publishes for the first, netfilter for the second.
func TestPrivilegedSecondNetworkWithoutHostVeth(t *testing.T) {
	t.Parallel()
	ports := []e2etest.PortMapping{e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)}
	w := e2etest.NewWorld(t)
	first := w.AddPod(w.Runtime(e2etest.Net0()), "web", ports...)
	e2etest.ServeOwn(t, first, "first")
	lan := e2etest.LANNetwork("macvlan", nil)
	lan.Name, lan.Plugins = "lan", []string{"portmap"}
	second := w.Join(first, w.Runtime(lan), "net1", ports...)
	e2etest.AssertHostPort(t, w, "first")
	for _, p := range []*e2etest.Pod{first, second} {
		e2etest.AssertChecked(t, p)
	}
	first.MustDel()
	e2etest.AssertChecked(t, second)
	if got := published(t, w); got == "" {
		t.Error("the second attachment has no claim of the port")
	}
	second.MustDel()
	if got := published(t, w); got != "" {
		t.Errorf("left: %s", got)
	}
}

// unrouted is a network whose pods get no default route by it.
func unrouted(name, bridge, third string) e2etest.Network {
	return e2etest.Network{
		Name: name, Bridge: bridge, Subnets: []string{"10." + third + ".0.0/16", "fd00:10:" + third + "::/64"},
		IPAM: e2etest.Attributes{"routes": []any{}},
	}
}
