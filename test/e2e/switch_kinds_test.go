// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// eachSwitch runs f for the plugins that make an interface with what is usually
// behind them: a node that has the reference's plugins, and ours. Rules are the
// matter of handover_test.go.
func eachSwitch(t *testing.T, chain []string, f func(t *testing.T, w *world, reference, ours *netlab.Runtime)) {
	t.Helper()
	names := append([]string{"ptp", "macvlan", "tap", "host-device", "host-local", "tuning", "sbr"}, chain...)
	dir, err := testbin.Reference(t.Context(), names...)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []inside{
		{name: "ptp", plugin: "ptp", subnets: []string{"10.88.0.0/24", "fd00:88::/64"}},
		{name: "macvlan", plugin: "macvlan", extra: attributes{"mode": "private"}},
		{name: "tap", plugin: "tap", extra: attributes{"owner": 0, "group": 0}, subnets: []string{"10.88.0.0/24", "fd00:88::/64"}},
		{name: "host-device", plugin: "host-device", extra: attributes{"device": "nic0"}, before: []string{"link add link eth0 name nic0 type macvlan mode bridge"}},
	} {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			w := k.world(t)
			n := k.network(chain...)
			reference, err := w.Node.CNI(netlab.CNIOptions{Path: []string{dir}, Conflist: n.conflist(t), Stderr: w.stderr})
			if err != nil {
				t.Fatal(err)
			}
			f(t, w, reference, w.runtime(n))
		})
	}
}

// A pod of the reference is ours after the switch: CHECK is content, and DEL
// leaves what the reference's own would.
func TestPrivilegedSwitchSuitesOver(t *testing.T) {
	t.Parallel()
	eachSwitch(t, []string{"tuning", "sbr"}, func(t *testing.T, w *world, reference, ours *netlab.Runtime) {
		w.settled(ours)
		before := w.settled(reference)
		p := w.add(reference, "app")
		mustCheck(t, p.by(ours))
		p.by(ours).mustDel()
		p.by(ours).mustDel()
		w.assertNothingLeft(before)
		// And when nothing of it is left but the addresses.
		q := w.newPod(reference, "gone")
		q.mustAdd()
		if err := q.Delete(); err != nil {
			t.Fatal(err)
		}
		q.by(ours).mustDel()
	})
}

// And back: the reference deletes a pod of ours. Our record stays until our GC.
func TestPrivilegedSwitchSuitesBack(t *testing.T) {
	t.Parallel()
	eachSwitch(t, []string{"tuning"}, func(t *testing.T, w *world, reference, ours *netlab.Runtime) {
		w.settled(ours)
		before := w.settled(reference)
		p := w.add(ours, "app")
		mustCheck(t, p.by(reference))
		p.by(reference).mustDel()
		if err := errors.Join(p.Delete(), ours.GC(t.Context(), nil)); err != nil {
			t.Errorf("GC: %v", err)
		}
		w.assertNothingLeft(before)
	})
}
