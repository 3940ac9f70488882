// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"maps"
	"testing"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

func TestDefaultConntrack(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		memory uint64
		want   uint32
	}{
		{0, 16384}, {512 << 20, 16384}, {2<<30 - 1, 16384}, {2 << 30, 32768}, {6<<30 - 1, 65536}, {6 << 30, 98304}, {1 << 42, 98304},
	} {
		if got := defaultConntrack(tc.memory); got != tc.want {
			t.Errorf("%d MiB: %d entries, want %d", tc.memory>>20, got, tc.want)
		}
	}
}

func TestMapSizes(t *testing.T) {
	t.Parallel()
	const large, small = 1 << 40, 1 << 30
	for _, tc := range []struct {
		name   string
		config nodeconf.MapSizes
		memory uint64
		want   map[string]uint32
	}{
		{"small node", nodeconf.MapSizes{}, small, map[string]uint32{
			pintree.MapConntrack: 16384, pintree.MapConntrackPlaces: 16384 - 5*128 + (4096-5*128)/2, pintree.MapConntrackUnassured: 4096,
			pintree.MapEndpoints: 8192, pintree.MapPodnsDevices: 4096, pintree.MapPodMACs: 2048, pintree.MapParentPods: 2048, pintree.MapEpStats: 4096, pintree.MapPodDevices: 4096, pintree.MapEDTLimits: 1365, pintree.MapEDTCIDRs: 21840, pintree.MapPolicies: 128,
		}},
		{"large node", nodeconf.MapSizes{}, large, map[string]uint32{
			pintree.MapConntrack: 98304, pintree.MapConntrackPlaces: 98304 - 5*128 + (24576-5*128)/2, pintree.MapConntrackUnassured: 24576,
			pintree.MapEndpoints: 12288, pintree.MapPodnsDevices: 6144, pintree.MapPodMACs: 3072, pintree.MapParentPods: 3072, pintree.MapEpStats: 6144, pintree.MapPodDevices: 6144, pintree.MapEDTLimits: 2048, pintree.MapEDTCIDRs: 32768, pintree.MapPolicies: 192,
		}},
		{"all set", nodeconf.MapSizes{Conntrack: 4096, ConntrackUnassured: 5, Endpoints: 65536, HostPorts: 7}, small, map[string]uint32{
			pintree.MapConntrack: 4096, pintree.MapConntrackPlaces: 4096 - 5*128 + 1, pintree.MapConntrackUnassured: 5,
			pintree.MapEndpoints: 65536, pintree.MapPodnsDevices: 65536, pintree.MapPodMACs: 16384, pintree.MapParentPods: 16384, pintree.MapEpStats: 65536, pintree.MapPodDevices: 65536, pintree.MapEDTLimits: 10922, pintree.MapEDTCIDRs: 174752, pintree.MapPolicies: 1024,
			pintree.MapHostPorts: 7,
		}},
		{"fewer entries than CPUs keep", nodeconf.MapSizes{Conntrack: 600}, large, map[string]uint32{
			pintree.MapConntrack: 600, pintree.MapConntrackPlaces: 300 + (24576-5*128)/2, pintree.MapConntrackUnassured: 24576,
			pintree.MapEndpoints: 12288, pintree.MapPodnsDevices: 6144, pintree.MapPodMACs: 3072, pintree.MapParentPods: 3072, pintree.MapEpStats: 6144, pintree.MapPodDevices: 6144, pintree.MapEDTLimits: 2048, pintree.MapEDTCIDRs: 32768, pintree.MapPolicies: 192,
		}},
	} {
		if got := sizesFor(tc.config, tc.memory, 4); !maps.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}
