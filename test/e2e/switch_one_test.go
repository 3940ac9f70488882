// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"path/filepath"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// Plugins are exchanged one at a time, by a package or by hand. A pod that had some of the reference's and some of ours is
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
			w := newWorld(t)
			w.configure(tt.conf)
			n, dir := network{plugins: []string{"portmap", "firewall", "bandwidth"}}, t.TempDir()
			sh(t, w.Node, programs.Path("sluice")+" install "+dir)
			for _, plugin := range tt.theirs {
				if err := layFile(filepath.Join(reference, plugin), filepath.Join(dir, plugin)); err != nil {
					t.Fatal(err)
				}
			}
			ours, mixed := w.runtime(n), w.runtimeFrom(n, dir)
			made := func(rt *netlab.Runtime, name string) *pod {
				p := w.newPod(rt, name, tcp(8080, 80), udp(8080, 80))
				p.att.Capabilities["bandwidth"] = limits("ingress", 500*megabit, 50*megabit)
				p.mustAdd()
				return p
			}
			end := func(p *pod) {
				p.mustDel()
				if err := p.Delete(); err != nil {
					t.Fatal(err)
				}
			}
			for _, rt := range []*netlab.Runtime{ours, mixed, ours} { // what stays by design
				end(made(rt, "settle"))
			}
			before := w.steady().Without("file /run/sluice/netfilter.lock")
			p := made(mixed, "app")
			serve(t, p, "app", ":80")
			whoIs(t, w, "app")
			if err := p.by(ours).check(); err != nil {
				t.Errorf("CHECK: %v", err)
			}
			end(p.by(ours))
			left := func() netlab.Snapshot { return w.steady().Without("file /run/sluice/netfilter.lock") }
			if d := netlab.DiffSoon(before, left); d != "" {
				t.Errorf("the node differs (- gone, + left behind):\n%s", d)
			}
		})
	}
}
