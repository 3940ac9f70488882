// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// Rules of the firewall hold in both directions and families, by programs inside
// the pod's namespace. DEL takes them out, and does not need the namespace.
func TestPrivilegedInsideFirewall(t *testing.T) {
	t.Parallel()
	e2etest.EachPodnsKind(t, func(t *testing.T, k e2etest.PodnsKind) {
		w := k.NewWorld(t)
		n := k.Network("firewall")
		n.Firewall = e2etest.Attributes{"backend": "ebpf", "rules": e2etest.Attributes{
			"ingress":        []e2etest.Attributes{{"action": "allow", "ports": []int{80}}},
			"ingressDefault": "deny",
			"egress":         []e2etest.Attributes{{"action": "deny", "ports": []int{9001}}},
		}}
		rt := w.Runtime(n)
		a := w.AddPod(rt, "a")
		for _, port := range []string{":80", ":81"} {
			e2etest.Serve(t, a, "a", port)
		}
		for _, port := range []string{":9000", ":9001"} {
			e2etest.Serve(t, w.Client(), "client", port)
		}
		e2etest.AssertChecked(t, a)
		e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
			if got := e2etest.Ask(t, w.Client(), proto, e2etest.At(fam.Pod(a), 80)); got.Server != "a" || got.Peer.Addr() != k.ClientAddr(w, fam) {
				t.Errorf("%s saw %s, want a to see the client", got.Server, got.Peer)
			}
			e2etest.AssertDenied(t, w.Client(), proto, e2etest.At(fam.Pod(a), 81))
			if got := e2etest.Ask(t, a, proto, e2etest.At(k.ClientAddr(w, fam), 9000)); got.Server != "client" || got.Peer.Addr() != fam.Pod(a) {
				t.Errorf("%s saw %s, want the client to see a", got.Server, got.Peer)
			}
			e2etest.AssertDenied(t, a, proto, e2etest.At(k.ClientAddr(w, fam), 9001))
		})
		a.MustDel()
		if out := e2etest.MustRun(t, w.Node, e2etest.Programs.Path("sluice")+" endpoints -w"); strings.Contains(out, "admit") {
			t.Errorf("left by DEL:\n%s", out)
		}
		if strings.HasPrefix(k.Name, "host-device") && !w.Has("nic0") {
			t.Error("DEL did not give the device back")
		}
		if k.Name == "host-device" { // a veth ends with the namespace
			return
		}
		b := w.AddPod(rt, "b")
		if err := b.Delete(); err != nil {
			t.Fatal(err)
		}
		b.MustDel()
		if out := e2etest.MustRun(t, w.Node, e2etest.Programs.Path("sluice")+" endpoints -w"); strings.Contains(out, "admit") {
			t.Errorf("left by DEL without the namespace:\n%s", out)
		}
	})
}
