// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// answers tells whether the server at to answers a socket of local, in a second.
func answers(t *testing.T, from e2etest.Place, proto, local, to string) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	c, err := from.DialFrom(ctx, proto, local, to)
	if err != nil {
		return false
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("x\n")); err != nil {
		return false
	}
	n, err := c.Read(make([]byte, 100))
	return err == nil && n > 0
}

// byTheNode has the pod send to the bridge's own MAC what it has for an address of its link, so that the node routes it.
func byTheNode(t *testing.T, w *e2etest.World, p *e2etest.Pod, to netip.Addr) {
	t.Helper()
	e2etest.MustRun(t, p, "ip -6 neigh replace "+to.String()+" lladdr "+macOf(t, w.Node, "cni0")+" dev eth0 nud permanent")
}

// Two pods of one bridge, one of them isolated, do not meet by link-local addresses, also where the node routes their packets back out of
// the bridge. Nothing else is between two without a policy, which shows that the way is one.
func TestPrivilegedPolicyIsolatedByTheNode(t *testing.T) {
	t.Parallel()
	for _, modes := range [][2]string{{"", ""}, {"isolated", "isolated"}, {"isolated", ""}, {"isolated", "same-bridge"}} {
		t.Run(modes[0]+"-"+modes[1], func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			var pods [2]*e2etest.Pod
			for i, mode := range modes {
				n := e2etest.Net0()
				if mode != "" {
					n.Firewall = e2etest.Attributes{"ingressPolicy": mode}
				}
				pods[i] = w.AddPod(w.Runtime(n), [2]string{"a", "b"}[i])
				e2etest.Serve(t, pods[i], pods[i].Name, ":80")
			}
			a, b := pods[0], pods[1]
			open := modes[0] == "" && modes[1] == ""
			for _, x := range [2][2]*e2etest.Pod{{a, b}, {b, a}} {
				from, to := x[0], x[1]
				zone := deviceIndex(t, from)
				local, remote := linkLocal(t, from).WithZone(zone), linkLocal(t, to).WithZone(zone)
				byTheNode(t, w, from, remote.WithZone(""))
				byTheNode(t, w, from, to.IP6)
				byTheNode(t, w, to, local.WithZone(""))
				byTheNode(t, w, to, from.IP6)
				for _, proto := range []string{"tcp", "udp"} {
					for _, src := range []netip.Addr{local, from.IP6} {
						for _, dst := range []netip.Addr{remote, to.IP6} {
							if got := answers(t, from, proto, e2etest.At(src, 0), e2etest.At(dst, 80)); got && !open {
								t.Errorf("%s from %s to %s is answered", proto, src, dst)
							} else if !got && open && (src == local) == (dst == remote) {
								t.Errorf("%s from %s to %s is not answered, with no policy", proto, src, dst)
							}
						}
					}
				}
			}
		})
	}
}
