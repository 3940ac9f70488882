// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"errors"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// CHECK finds each thing that is missing or changed, with an error that is one.
func TestPrivilegedCheck(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		spoil func(t *testing.T, w *e2etest.World, p *e2etest.Pod)
	}{
		{"address of the pod", func(t *testing.T, w *e2etest.World, p *e2etest.Pod) {
			e2etest.MustRun(t, p, "ip addr del "+p.IP4.String()+"/16 dev eth0")
		}},
		{"IPv6 address of the pod", func(t *testing.T, w *e2etest.World, p *e2etest.Pod) {
			e2etest.MustRun(t, p, "ip addr del "+p.IP6.String()+"/64 dev eth0")
		}},
		{"default route", func(t *testing.T, w *e2etest.World, p *e2etest.Pod) { e2etest.MustRun(t, p, "ip route del default") }},
		{"device of the pod", func(t *testing.T, w *e2etest.World, p *e2etest.Pod) { e2etest.MustRun(t, p, "ip link del eth0") }},
		{"bridge port", func(t *testing.T, w *e2etest.World, p *e2etest.Pod) {
			e2etest.MustRun(t, w.Node, "ip link set "+p.HostVeth()+" nomaster")
		}},
		{"bridge", func(t *testing.T, w *e2etest.World, p *e2etest.Pod) { e2etest.MustRun(t, w.Node, "ip link del cni0") }},
		{"MAC of the pod", func(t *testing.T, w *e2etest.World, p *e2etest.Pod) {
			e2etest.MustRun(t, p, "ip link set eth0 address 02:00:00:00:00:99")
		}},
		{"sysctl of tuning", func(t *testing.T, w *e2etest.World, p *e2etest.Pod) {
			if err := p.WriteSysctl("net/core/somaxconn", "77"); err != nil {
				t.Fatal(err)
			}
		}},
		{"allocation of the address", func(t *testing.T, w *e2etest.World, p *e2etest.Pod) {
			e2etest.MustRun(t, w.Node, "rm /var/lib/cni/networks/net0/"+p.IP4.String()+" /var/lib/cni/networks/net0/"+p.IP6.String())
		}},
		{"published ports", func(_ *testing.T, w *e2etest.World, _ *e2etest.Pod) { e2etest.EmptyMap(w, "sl_hostports") }},
		{"endpoint", func(_ *testing.T, w *e2etest.World, _ *e2etest.Pod) { e2etest.EmptyMap(w, "sl_endpoints") }},
		{"node addresses", func(_ *testing.T, w *e2etest.World, _ *e2etest.Pod) { e2etest.EmptyMap(w, "sl_node_addrs") }},
		{"attached programs", func(_ *testing.T, w *e2etest.World, _ *e2etest.Pod) { e2etest.RemovePins(w, "/links/") }},
		{"pinned programs", func(_ *testing.T, w *e2etest.World, _ *e2etest.Pod) { e2etest.RemovePins(w, "/progs/") }},
		{"everything pinned", func(_ *testing.T, w *e2etest.World, _ *e2etest.Pod) { e2etest.RemovePins(w, "") }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			p := w.AddPod(w.Runtime(fullChain()), "web", somePorts()...)
			if err := p.Check(); err != nil {
				t.Fatalf("CHECK finds fault with what ADD made: %v", err)
			}
			tt.spoil(t, w, p)
			err := p.Check()
			if err == nil {
				t.Fatal("CHECK finds nothing")
			}
			var cniErr *types.Error
			if !errors.As(err, &cniErr) {
				t.Fatalf("CHECK fails with %T, want a CNI error: %v", err, err)
			}
			if cniErr.Code == types.ErrInternal || cniErr.Code == 0 || cniErr.Msg == "" {
				t.Errorf("CHECK says code %d, %q", cniErr.Code, cniErr.Msg)
			}
			t.Logf("code %d: %s", cniErr.Code, cniErr.Msg)
			// However bad it looks, DEL cleans up.
			if err := p.TryDel(); err != nil {
				t.Errorf("DEL: %v", err)
			}
		})
	}
}

// CHECK does not mind what others have added.
func TestPrivilegedCheckToleratesOthers(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	p := w.AddPod(w.Runtime(fullChain()), "web", somePorts()...)
	e2etest.MustRun(t, p, "ip addr add 10.77.0.1/24 dev eth0")
	e2etest.MustRun(t, p, "ip route add 10.78.0.0/24 dev eth0")
	e2etest.MustRun(t, w.Node, "tc qdisc replace dev eth0 root pfifo limit 500")
	e2etest.MustRun(t, w.Node, "ip link add stranger type veth")
	if err := p.Check(); err != nil {
		t.Errorf("CHECK: %v", err)
	}
}
