// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// Plugins are exchanged one at a time, by a package or by hand. A pod that had some of upstream's and some of ours is
// healthy to ours, and their DEL leaves nothing of it, though there is an attachment record that knows of its other half.
func TestPrivilegedSwitchOneAtATime(t *testing.T) {
	t.Parallel()
	reference, err := testbin.Reference(t.Context(), switched...)
	if err != nil {
		t.Fatal(err)
	}
	ebpf, nftables := `{"backend":"ebpf"}`, `{"backend":"nftables"}`
	for _, tt := range []struct {
		name, conf string
		theirs     []string
	}{
		{"portmap", ebpf, []string{"portmap"}},
		{"firewall", ebpf, []string{"firewall"}},
		{"main", ebpf, []string{"bridge", "host-local"}},
		{"chained", ebpf, []string{"portmap", "firewall"}},
		{"chained of tables", nftables, []string{"portmap", "firewall", "bandwidth"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			w.Configure(tt.conf)
			n, dir := e2etest.Network{Plugins: []string{"portmap", "firewall", "bandwidth"}}, t.TempDir()
			e2etest.MustRun(t, w.Node, e2etest.Programs.Path("sluice")+" install "+dir)
			for _, plugin := range tt.theirs {
				if err := e2etest.InstallFile(filepath.Join(reference, plugin), filepath.Join(dir, plugin)); err != nil {
					t.Fatal(err)
				}
			}
			ours, mixed := w.Runtime(n), w.RuntimeFrom(n, dir)
			made := func(rt *netlab.Runtime, name string) *e2etest.Pod {
				p := w.NewPod(rt, name, e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
				p.Attachment.Capabilities["bandwidth"] = e2etest.BandwidthLimits("ingress", 500*e2etest.Megabit, 50*e2etest.Megabit)
				p.MustAdd()
				return p
			}
			end := func(p *e2etest.Pod) {
				p.MustDel()
				if err := p.Delete(); err != nil {
					t.Fatal(err)
				}
			}
			for _, rt := range []*netlab.Runtime{ours, mixed, ours} { // what stays by design
				end(made(rt, "settle"))
			}
			before := w.SyncedSnapshot().Without("file /run/sluice/netfilter.lock")
			p := made(mixed, "app")
			e2etest.Serve(t, p, "app", ":80")
			e2etest.AssertHostPort(t, w, "app")
			if err := Via(p, ours).Check(); err != nil {
				t.Errorf("CHECK: %v", err)
			}
			end(Via(p, ours))
			left := func() netlab.Snapshot { return w.SyncedSnapshot().Without("file /run/sluice/netfilter.lock") }
			if d := netlab.DiffSoon(before, left); d != "" {
				t.Errorf("the node differs (- gone, + left behind):\n%s", d)
			}
		})
	}
}

// Upstream's bandwidth queues what the pod gets at the host veth, which the fast path passes by. For what the pod sends it needs an
// ingress qdisc there, where the datapath has its clsact. It limits both behind Sluice's bridge with the configurations that
// docs/known-gaps.md names.
func TestPrivilegedBandwidthOfUpstream(t *testing.T) {
	t.Parallel()
	reference, err := testbin.Reference(t.Context(), switched...)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ direction, conf string }{
		{"ingress", `{"fastPath":"off"}`},
		{"ingress", `{"backend":"nftables"}`},
		{"egress", `{"attach":"tcx","fastPath":"off"}`},
		{"egress", `{"backend":"nftables"}`},
	} {
		t.Run(tt.direction+" "+tt.conf, func(t *testing.T) {
			t.Parallel()
			if strings.Contains(tt.conf, "tcx") {
				require.TCX(t)
			}
			w := e2etest.NewWorld(t)
			w.Configure(tt.conf)
			n, dir := e2etest.Network{Plugins: []string{"portmap", "bandwidth"}}, t.TempDir()
			e2etest.MustRun(t, w.Node, e2etest.Programs.Path("sluice")+" install "+dir)
			if err := e2etest.InstallFile(filepath.Join(reference, "bandwidth"), filepath.Join(dir, "bandwidth")); err != nil {
				t.Fatal(err)
			}
			const limit = 4 * e2etest.Megabit
			p := w.NewPod(w.RuntimeFrom(n, dir), "app", e2etest.TCP(8080, 90))
			p.Attachment.Capabilities["bandwidth"] = e2etest.BandwidthLimits(tt.direction, limit, limit/10)
			p.MustAdd()
			e2etest.ServeSink(t, w.Client())
			e2etest.ServeSink(t, p)
			for _, fam := range e2etest.Families() {
				from, to := e2etest.Place(p), e2etest.At(fam.Client(w.Client()), 90)
				if tt.direction == "ingress" {
					from, to = w.Client(), e2etest.At(fam.Node(w.Client()), 8080)
				}
				rate, err := e2etest.MeasureRate(from, "tcp", to)
				if err != nil || rate > 2*limit {
					t.Errorf("%s: %.0f bits a second with a limit of %d: %v", fam.Name, rate, limit, err)
				}
			}
			p.MustDel()
		})
	}
}

// With the configurations that do not limit, the doctor says so. An egress rate without room for the ingress qdisc fails, and names
// it: that is better than a limit that silently does not hold.
func TestPrivilegedBandwidthOfUpstreamIsSaid(t *testing.T) {
	t.Parallel()
	reference, err := testbin.Reference(t.Context(), switched...)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ direction, conf, add, said string }{
		{direction: "ingress", conf: `{}`, said: "has a queue (tbf) of a third party"},
		{direction: "ingress", conf: `{"fastPath":"off"}`},
		{direction: "egress", conf: `{"attach":"clsact"}`, add: "create ingress qdisc: file exists"},
		{direction: "egress", conf: `{"attach":"tcx"}`, said: "is to go to bwp"},
		{direction: "egress", conf: `{"attach":"tcx","fastPath":"off"}`},
	} {
		t.Run(tt.direction+" "+tt.conf, func(t *testing.T) {
			t.Parallel()
			if strings.Contains(tt.conf, "tcx") {
				require.TCX(t)
			}
			w := e2etest.NewWorld(t)
			w.Configure(tt.conf)
			n, dir := e2etest.Network{Plugins: []string{"portmap", "bandwidth"}}, t.TempDir()
			e2etest.MustRun(t, w.Node, e2etest.Programs.Path("sluice")+" install "+dir)
			if err := e2etest.InstallFile(filepath.Join(reference, "bandwidth"), filepath.Join(dir, "bandwidth")); err != nil {
				t.Fatal(err)
			}
			p := w.NewPod(w.RuntimeFrom(n, dir), "app", e2etest.TCP(8080, 90))
			p.Attachment.Capabilities["bandwidth"] = e2etest.BandwidthLimits(tt.direction, 4*e2etest.Megabit, e2etest.Megabit)
			err := p.TryAdd()
			if tt.add != "" {
				if err == nil || !strings.Contains(err.Error(), tt.add) {
					t.Errorf("ADD: %v, want %q", err, tt.add)
				}
				p.MustDel()
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var said string
			_ = w.Node.Do(func() error {
				said, _ = netlab.Run("sh", "-c", e2etest.Programs.Path("sluice")+" doctor; true")
				return nil
			})
			if strings.Contains(said, "queues") != (tt.said != "") || !strings.Contains(said, tt.said) {
				t.Errorf("the doctor does not say %q:\n%s", tt.said, said)
			}
			p.MustDel()
		})
	}
}
