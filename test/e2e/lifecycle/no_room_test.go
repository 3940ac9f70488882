// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

const (
	readOnlyBPFFS = "mount -o remount,ro /sys/fs/bpf; "
	fullRun       = "mount -o remount,size=8M /run; dd if=/dev/zero of=/run/fill bs=4k 2>/dev/null || true"
	repairRoom    = "mount -o remount,rw /sys/fs/bpf; rm -rf /run/fill /run/mount"
)

// spoilt are the scripts that leave a node without room, by what they spoil.
func spoilt() map[string]string {
	return map[string]string{"bpffs read-only": readOnlyBPFFS, "run full": fullRun, "both": readOnlyBPFFS + fullRun}
}

// A bpffs that is read-only, or a run directory that is full, may fail ADDs. DELs succeed, those of failed ADDs too: a pod must not hang in
// Terminating until an administrator comes. Once there is room again, GC removes the rest.
func TestPrivilegedDelWithoutRoom(t *testing.T) {
	t.Parallel()
	limit := e2etest.Merge(e2etest.BandwidthLimits("ingress", 8_000_000, 800_000), e2etest.BandwidthLimits("egress", 8_000_000, 800_000))
	chain := func(main, backend string) e2etest.Network {
		return e2etest.Network{
			Main: main, Plugins: []string{"tuning", "portmap", "firewall", "bandwidth", "sbr"},
			Bandwidth: e2etest.Merge(limit, e2etest.Attributes{"backend": backend}),
		}
	}
	lan := e2etest.LANNetwork("macvlan", nil)
	lan.Plugins = []string{"tuning", "firewall", "bandwidth", "sbr"}
	lan.Firewall, lan.Bandwidth = e2etest.Attributes{"ingressPolicy": "isolated"}, e2etest.Merge(limit, e2etest.Attributes{"backend": "auto"})
	nets := []struct {
		name, conf string
		net        e2etest.Network
	}{
		{"bridge, clsact", `{"backend":"ebpf","attach":"clsact"}`, chain("", "auto")},
		{"bridge, auto", `{"backend":"ebpf"}`, chain("", "tbf")},
		{"ptp", `{"backend":"ebpf"}`, chain("ptp", "auto")},
		{"macvlan", `{"backend":"ebpf"}`, lan},
		{"bridge, nftables", `{"backend":"nftables"}`, chain("", "tbf")},
	}
	cases := 0
	for name, spoil := range spoilt() {
		for i, n := range nets {
			if cases++; !netlab.Turn(cases) {
				continue
			}
			t.Run(name+", "+n.name, func(t *testing.T) {
				t.Parallel()
				w := e2etest.NewWorld(t)
				w.Configure(n.conf)
				rt := w.Runtime(n.net)
				w.Warmup(rt, somePorts()...)
				kept := w.AddPod(rt, "kept", e2etest.TCP(8081, 80), e2etest.UDP(8081, 80))
				before := w.SyncedSnapshot()
				p, gone := w.AddPod(rt, "web", somePorts()...), w.AddPod(rt, "gone", e2etest.TCP(8082, 80))
				var addrs []string
				for _, q := range []*e2etest.Pod{p, gone} {
					for _, ip := range []netip.Addr{q.IP4, q.IP6} {
						addrs = append(addrs, "pod_ip:"+ip.String()+" ", ip.String()+"/") // of a hostPort, of an endpoint
					}
				}
				failed := w.NewPod(rt, "failed", e2etest.TCP(8083, 80))
				e2etest.RunScript(t, w, spoil)
				if err := gone.Delete(); err != nil {
					t.Fatal(err)
				}
				t.Logf("ADD: %v", failed.TryAdd())
				if err := kept.Check(); err != nil && spoil == fullRun { // the kernel opens no link for reading alone
					t.Errorf("CHECK without room: %v", err)
				}
				for _, q := range []*e2etest.Pod{p, p, gone, gone, failed} {
					if err := q.TryDel(); err != nil {
						t.Errorf("DEL of %s: %v", q.Name, err)
					}
				}
				if i < 3 {
					var ports, endpoints []map[string]any
					w.SluiceJSON(t, &ports, "hostports")
					w.SluiceJSON(t, &endpoints, "endpoints")
					entries := fmt.Sprint(ports, endpoints)
					for _, ip := range addrs {
						if strings.Contains(entries, ip) {
							t.Errorf("%s of a pod that is gone: %s", ip, entries)
						}
					}
					if !strings.Contains(entries, "pod_ip:"+kept.IP4.String()+" ") && n.name != "macvlan" {
						t.Errorf("the other pod has lost its entries: %s", entries)
					}
				}
				e2etest.RunScript(t, w, repairRoom)
				for _, q := range []*e2etest.Pod{p, failed} {
					if err := q.Delete(); err != nil {
						t.Fatal(err)
					}
				}
				if err := rt.GC(t.Context(), []types.GCAttachment{{ContainerID: "kept", IfName: "eth0"}}); err != nil {
					t.Errorf("GC: %v", err)
				}
				w.AssertNothingLeft(before)
				if err := kept.Check(); err != nil {
					t.Errorf("CHECK: %v", err)
				}
			})
		}
	}
}
