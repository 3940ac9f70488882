// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"encoding/json"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// attr is a JSON object of a configuration.
type attr = e2etest.Attributes

// roomless is a chain whose DELs are tried without room.
type roomless struct {
	needs func(t *testing.T)
	// chain of a pod. Its network is the same for all pods.
	chain func(pod string) []attr
	node  string // script that prepares the node
	stays bool   // the device of a pod whose netns goes does not come back
}

// TestPrivilegedDevicesDelWithoutRoom is TestPrivilegedDelWithoutRoom for plugins that make or move one device.
func TestPrivilegedDevicesDelWithoutRoom(t *testing.T) {
	t.Parallel()
	local := attr{"type": "host-local", "ranges": []any{[]attr{{"subnet": "10.9.0.0/24"}}, []attr{{"subnet": "fd00:9::/64"}}}}
	rest := func(main attr) func(string) []attr {
		main["ipam"] = local
		return func(string) []attr {
			return []attr{main, {"type": "tuning", "sysctl": attr{"net.core.somaxconn": "500"}}, {"type": "firewall", "ingressPolicy": "isolated"}, {"type": "sbr"}}
		}
	}
	link := func(kind string) func(*testing.T) { return func(t *testing.T) { require.Link(t, kind) } }
	runRoomless(t, map[string]roomless{
		"tap":    {needs: link("tun"), chain: func(string) []attr { return []attr{{"type": "tap", "ipam": local}} }},
		"dummy":  {needs: link("dummy"), chain: func(string) []attr { return []attr{{"type": "dummy", "ipam": local}} }},
		"ipvlan": {needs: link("ipvlan"), chain: rest(attr{"type": "ipvlan", "master": "eth0"})},
		"vlan": {needs: link("vlan"), chain: func(pod string) []attr {
			return rest(attr{"type": "vlan", "master": "eth0", "vlanId": map[string]int{"kept": 10, "web": 11, "gone": 12}[pod]})(pod)
		}},
		"host-device": {
			chain: func(pod string) []attr { return rest(attr{"type": "host-device", "device": "hd-" + pod})(pod) },
			node:  "for p in kept web; do ip link add hd-$p type veth peer name hp-$p; done", stays: true,
		},
	})
}

// TestPrivilegedVRFDelWithoutRoom is the same for a pod's interface in a VRF.
func TestPrivilegedVRFDelWithoutRoom(t *testing.T) {
	t.Parallel()
	require.Link(t, "vrf")
	runRoomless(t, map[string]roomless{"vrf": {chain: func(string) []attr {
		return []attr{{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": attr{"type": "host-local", "ranges": []any{[]attr{{"subnet": "10.9.0.0/24"}}, []attr{{"subnet": "fd00:9::/64"}}}}}, {"type": "vrf", "vrfname": "blue"}}
	}}})
}

// TestPrivilegedEDTDelWithoutRoom is the same for limits by departure times, with and without a host veth.
func TestPrivilegedEDTDelWithoutRoom(t *testing.T) {
	t.Parallel()
	require.Qdisc(t, "fq")
	local := attr{"type": "host-local", "ranges": []any{[]attr{{"subnet": "10.9.0.0/24"}}, []attr{{"subnet": "fd00:9::/64"}}}}
	limit := e2etest.Merge(e2etest.Merge(e2etest.BandwidthLimits("ingress", 8_000_000, 800_000), e2etest.BandwidthLimits("egress", 8_000_000, 800_000)), attr{"type": "bandwidth", "backend": "edt"})
	runRoomless(t, map[string]roomless{
		"bridge": {chain: func(string) []attr {
			return []attr{{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": local}, limit}
		}},
		"macvlan": {chain: func(string) []attr { return []attr{{"type": "macvlan", "master": "eth0", "ipam": local}, limit} }},
	})
}

func runRoomless(t *testing.T, cases map[string]roomless) {
	for name, tt := range cases {
		for what, spoil := range spoilt() {
			t.Run(name+", "+what, func(t *testing.T) {
				t.Parallel()
				if tt.needs != nil {
					tt.needs(t)
				}
				w := e2etest.NewWorld(t)
				if tt.node != "" {
					e2etest.RunScript(t, w, tt.node)
				}
				runtime := func(pod string) *netlab.Runtime {
					list, err := json.Marshal(attr{"cniVersion": "1.1.0", "name": "net0", "plugins": tt.chain(pod)})
					if err != nil {
						t.Fatal(err)
					}
					rt, err := w.Node.CNI(netlab.CNIOptions{Conflist: list, Path: []string{e2etest.Programs.Dir}, Stderr: w.Stderr})
					if err != nil {
						t.Fatal(err)
					}
					return rt
				}
				kept := w.AddPod(runtime("kept"), "kept")
				settle := w.AddPod(runtime("web"), "settle") // what a first pod makes for all
				settle.MustDel()
				if err := settle.Delete(); err != nil {
					t.Fatal(err)
				}
				before := w.SyncedSnapshot()
				p := w.AddPod(runtime("web"), "web")
				pods := []*e2etest.Pod{p, p}
				if !tt.stays {
					gone := w.AddPod(runtime("gone"), "gone")
					if err := gone.Delete(); err != nil {
						t.Fatal(err)
					}
					pods = append(pods, gone, gone)
				}
				e2etest.RunScript(t, w, spoil)
				for _, q := range pods {
					if err := q.TryDel(); err != nil {
						t.Errorf("DEL of %s: %v", q.Name, err)
					}
				}
				e2etest.RunScript(t, w, repairRoom)
				if err := p.Delete(); err != nil {
					t.Fatal(err)
				}
				if err := kept.Runtime.GC(t.Context(), []types.GCAttachment{{ContainerID: "kept", IfName: "eth0"}}); err != nil {
					t.Errorf("GC: %v", err)
				}
				w.AssertNothingLeft(before)
				if err := kept.Check(); err != nil {
					t.Errorf("CHECK: %v", err)
				}
				kept.MustDel()
			})
		}
	}
}
