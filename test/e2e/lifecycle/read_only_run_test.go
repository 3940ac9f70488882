// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// Upstream's plugins need nothing of /run. Where it is read-only, from the boot on or later, each verb works as theirs does: a pod that comes
// has no record, and netfilter carries it. What a DEL cannot note, GC removes once it can.
func TestPrivilegedReadOnlyRun(t *testing.T) {
	t.Parallel()
	limit := e2etest.BandwidthLimits("ingress", 8_000_000, 800_000)
	cases := 0
	for when, spoil := range map[string]string{"later": "mount -o remount,ro /run", "from the boot on": "rm -rf /run/sluice; mount -o remount,ro /run"} {
		for _, conf := range []string{`{}`, `{"backend":"iptables"}`, `{"backend":"nftables"}`} {
			for _, main := range []string{"bridge", "ptp"} {
				if cases++; !netlab.Turn(cases) {
					continue
				}
				t.Run(when+", "+conf+", "+main, func(t *testing.T) {
					t.Parallel()
					w := e2etest.NewWorld(t)
					w.Configure(conf)
					rt := w.Runtime(e2etest.Network{Main: main, Plugins: []string{"tuning", "portmap", "firewall", "bandwidth", "sbr"}, Bandwidth: limit})
					w.Warmup(rt, somePorts()...)
					before := w.Snapshot()
					t.Cleanup(func() { e2etest.RunScript(t, w, "mount -o remount,rw /run") })
					old := w.NewPod(rt, "old", e2etest.TCP(8081, 80))
					if when == "later" {
						old.MustAdd()
					}
					young := w.NewPod(rt, "young", e2etest.TCP(8082, 80))
					e2etest.RunScript(t, w, spoil)
					young.MustAdd()
					e2etest.Serve(t, young, "young", ":80")
					for _, fam := range e2etest.Families() {
						if got := e2etest.Ask(t, w.Client(), "tcp", e2etest.At(fam.Node(w.Client()), 8082)); got.Server != "young" {
							t.Errorf("%s: answered by %s", fam.Name, got.Server)
						}
					}
					e2etest.MustCheck(t, young)
					if err := rt.Status(t.Context()); err != nil {
						t.Errorf("STATUS: %v", err)
					}
					for _, p := range []*e2etest.Pod{old, old, young, young} {
						p.MustDel()
					}
					if err := rt.GC(t.Context(), nil); err != nil {
						t.Errorf("GC: %v", err)
					}
					e2etest.RunScript(t, w, "mount -o remount,rw /run")
					if err := rt.GC(t.Context(), nil); err != nil {
						t.Errorf("GC, once there is room: %v", err)
					}
					// The tables that a pod needed first stay, as always. What is of a pod does not.
					after := w.Snapshot()
					if d := netlab.Diff(before.Grep("link "), after.Grep("link ")); d != "" {
						t.Errorf("devices (- gone, + left behind):\n%s", d)
					}
					for _, of := range []string{young.IP4.String(), young.IP6.String(), "young", ".json"} {
						if left := append(e2etest.NetfilterRules(after), after.Grep("/run/sluice/attachments/")...).Grep(of); len(left) > 0 {
							t.Errorf("left behind: %v", left)
						}
					}
				})
			}
		}
	}
}
