// SPDX-License-Identifier: Apache-2.0

package uplinks

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// A device that comes later carries pod traffic too, once a verb has run.
func TestPrivilegedNewUplink(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Net0())
	e2etest.Serve(t, w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)), "web", ":80")
	app := w.AddPod(rt, "app")
	c := &lateClient{w: w}
	c.join(t)
	e2etest.MustRun(t, w.Node, e2etest.Programs.Path("sluice")+" resync")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		addr := map[string]string{"4": "203.0.113.1:8080", "6": "[2001:db8:3::1]:8080"}[fam.Suffix]
		if got := e2etest.Ask(t, c.ns, proto, addr); got.Server != "web" {
			t.Errorf("answered by %s", got.Server)
		}
		peer := map[string]string{"4": "203.0.113.2:9000", "6": "[2001:db8:3::2]:9000"}[fam.Suffix]
		want := map[string]string{"4": "203.0.113.1", "6": "2001:db8:3::1"}[fam.Suffix]
		if got := e2etest.Ask(t, app, proto, peer); got.Peer.Addr().String() != want {
			t.Errorf("the new client saw %s, want %s", got.Peer, want)
		}
	})
}

// lateClient is a client that is plugged in while pods run: the third uplink of the
// lab's plan, made by hand.
type lateClient struct {
	w  *e2etest.World
	ns *netlab.Pod
}

func (l *lateClient) join(t testing.TB) {
	t.Helper()
	l.ns = l.w.Node.PodT(t, "late")
	e2etest.MustRun(t, l.w.Node, "ip link add eth2 type veth peer name eth0 netns "+l.ns.ProcPath())
	u := netlab.DefaultUplink(2)
	for _, a := range u.Node {
		e2etest.MustRun(t, l.w.Node, "ip addr add "+a.String()+" dev eth2"+e2etest.NoDAD(a.Addr().Is6()))
	}
	for _, a := range u.Client {
		e2etest.MustRun(t, l.ns, "ip addr add "+a.String()+" dev eth0"+e2etest.NoDAD(a.Addr().Is6()))
	}
	e2etest.MustRun(t, l.w.Node, "ip link set eth2 up")
	e2etest.MustRun(t, l.ns, "ip link set lo up")
	e2etest.MustRun(t, l.ns, "ip link set eth0 up")
	e2etest.Serve(t, l.ns, "late", ":9000")
}
