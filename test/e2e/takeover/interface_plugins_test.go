// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"errors"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// eachSwitch runs f for the plugins that make an interface with what is usually
// behind them: a node that has upstream's plugins, and ours. Rules are the
// matter of handover_test.go.
func eachSwitch(t *testing.T, chain []string, f func(t *testing.T, w *e2etest.World, reference, ours *netlab.Runtime)) {
	t.Helper()
	names := append([]string{"ptp", "macvlan", "tap", "host-device", "host-local", "tuning", "sbr"}, chain...)
	dir, err := testbin.Reference(t.Context(), names...)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []e2etest.PodnsKind{
		{Name: "ptp", Plugin: "ptp", Subnets: []string{"10.88.0.0/24", "fd00:88::/64"}},
		{Name: "macvlan", Plugin: "macvlan", Extra: e2etest.Attributes{"mode": "private"}},
		{Name: "tap", Plugin: "tap", Extra: e2etest.Attributes{"owner": 0, "group": 0}, Subnets: []string{"10.88.0.0/24", "fd00:88::/64"}},
		{Name: "host-device", Plugin: "host-device", Extra: e2etest.Attributes{"device": "nic0"}, NodeSetup: []string{"link add link eth0 name nic0 type macvlan mode bridge"}},
	} {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			w := k.NewWorld(t)
			n := k.Network(chain...)
			reference, err := w.Node.CNI(netlab.CNIOptions{Path: []string{dir}, Conflist: n.Conflist(t), Stderr: w.Stderr})
			if err != nil {
				t.Fatal(err)
			}
			f(t, w, reference, w.Runtime(n))
		})
	}
}

// A pod of upstream is ours after the switch: CHECK is content, and DEL
// leaves what upstream's own would.
func TestPrivilegedSwitchSuitesOver(t *testing.T) {
	t.Parallel()
	eachSwitch(t, []string{"tuning", "sbr"}, func(t *testing.T, w *e2etest.World, reference, ours *netlab.Runtime) {
		w.Warmup(ours)
		before := w.Warmup(reference)
		p := w.AddPod(reference, "app")
		e2etest.MustCheck(t, Via(p, ours))
		Via(p, ours).MustDel()
		Via(p, ours).MustDel()
		w.AssertNothingLeft(before)
		// And when nothing of it is left but the addresses.
		q := w.NewPod(reference, "gone")
		q.MustAdd()
		if err := q.Delete(); err != nil {
			t.Fatal(err)
		}
		Via(q, ours).MustDel()
	})
}

// And back: upstream deletes a pod of ours. Our record stays until our GC.
func TestPrivilegedSwitchSuitesBack(t *testing.T) {
	t.Parallel()
	eachSwitch(t, []string{"tuning"}, func(t *testing.T, w *e2etest.World, reference, ours *netlab.Runtime) {
		w.Warmup(ours)
		before := w.Warmup(reference)
		p := w.AddPod(ours, "app")
		e2etest.MustCheck(t, Via(p, reference))
		Via(p, reference).MustDel()
		if err := errors.Join(p.Delete(), ours.GC(t.Context(), nil)); err != nil {
			t.Errorf("GC: %v", err)
		}
		w.AssertNothingLeft(before)
	})
}
