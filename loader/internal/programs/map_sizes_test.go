// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"testing"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

func TestDefaultFlows(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		memory uint64
		want   uint32
	}{
		{0, 16384}, {512 << 20, 16384}, {2<<30 - 1, 16384}, {2 << 30, 32768}, {7 << 30, 65536}, {8 << 30, 131072}, {1 << 42, 131072},
	} {
		if got := defaultFlows(tc.memory); got != tc.want {
			t.Errorf("%d MiB: %d flows, want %d", tc.memory>>20, got, tc.want)
		}
	}
}

func TestMapSizes(t *testing.T) {
	t.Parallel()
	got, err := mapSizes(nodeconf.MapSizes{Conntrack: 5, HostPorts: 7})
	if err != nil {
		t.Fatal(err)
	}
	if got[pintree.MapConntrack] != 5 || got[pintree.MapHostPorts] != 7 || got[pintree.MapConntrackUnassured] < minFlows/FlowsPerNew {
		t.Errorf("sizes %v", got)
	}
	if _, ok := got[pintree.MapEndpoints]; ok {
		t.Error("endpoints have a size nobody asked for")
	}
}
