// SPDX-License-Identifier: Apache-2.0

package sublink_test

import (
	"slices"
	"testing"

	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/plugintest"
	"github.com/sluice-cni/sluice/pkg/test/require"
	"github.com/sluice-cni/sluice/plugins/main/dummy"
	"github.com/sluice-cni/sluice/plugins/main/internal/sublink"
	"github.com/sluice-cni/sluice/plugins/main/ipvlan"
	"github.com/sluice-cni/sluice/plugins/main/macvlan"
	"github.com/sluice-cni/sluice/plugins/main/vlan"
)

// kind is one of the plugins, with a configuration that works.
type kind struct {
	name   string
	new    func(sublink.Deps) *cniskel.Plugin
	conf   map[string]any
	master bool // sits on the node's eth0
}

func kinds() []kind {
	return []kind{
		{"macvlan", macvlan.New, map[string]any{"master": "eth0"}, true},
		{"ipvlan", ipvlan.New, map[string]any{"master": "eth0"}, true},
		{"vlan", vlan.New, map[string]any{"master": "eth0", "vlanId": 100}, true},
		{"dummy", dummy.New, nil, false},
	}
}

// onMaster are the kinds that sit on an interface of the node.
func onMaster() []string { return []string{"macvlan", "ipvlan", "vlan"} }

// stage is a rig with one of the plugins and a pod.
type stage struct {
	*plugintest.Rig
	kind
	pod *netlab.Pod
}

func newStage(t *testing.T, k kind) *stage {
	t.Helper()
	r := plugintest.New(t)
	r.Plug = k.new(sublink.Deps{IPAM: r.IPAM, Records: r.Dir})
	return &stage{r, k, r.Pod("pod")}
}

// call is the ADD of the pod's eth0.
func (s *stage) call() plugintest.Call {
	c := plugintest.Call{Netns: s.pod.Path, Conf: map[string]any{"ipam": map[string]any{"type": "fake"}}}
	for k, v := range s.conf {
		c.Conf[k] = v
	}
	return c
}

// eachKind runs f for every kind, or for those that are named, that the kernel
// has.
func eachKind(t *testing.T, f func(t *testing.T, s *stage), only ...string) {
	t.Helper()
	for _, k := range kinds() {
		if len(only) > 0 && !slices.Contains(only, k.name) {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			require.Link(t, k.name)
			f(t, newStage(t, k))
		})
	}
}
