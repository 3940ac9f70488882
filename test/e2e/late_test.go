// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// late is a client that is plugged in while pods run: the third uplink of the
// lab's plan, made by hand.
type late struct {
	w  *world
	ns *netlab.Pod
}

func (l *late) join(t testing.TB) {
	t.Helper()
	l.ns = l.w.Node.PodT(t, "late")
	sh(t, l.w.Node, "ip link add eth2 type veth peer name eth0 netns "+l.ns.ProcPath())
	u := netlab.DefaultUplink(2)
	for _, a := range u.Node {
		sh(t, l.w.Node, "ip addr add "+a.String()+" dev eth2"+nodad(a.Addr().Is6()))
	}
	for _, a := range u.Client {
		sh(t, l.ns, "ip addr add "+a.String()+" dev eth0"+nodad(a.Addr().Is6()))
	}
	sh(t, l.w.Node, "ip link set eth2 up")
	sh(t, l.ns, "ip link set lo up")
	sh(t, l.ns, "ip link set eth0 up")
	serve(t, l.ns, "late", ":9000")
}

func nodad(v6 bool) string {
	if v6 {
		return " nodad"
	}
	return ""
}
