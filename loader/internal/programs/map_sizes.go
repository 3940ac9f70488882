// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

// The flow tables are the only large maps whose memory is taken when they are
// made. They get about 1/256 of the node's memory between these bounds: a
// small node keeps its memory, and a large one stays below 64 MB for all maps.
const (
	minFlows = 1 << 14
	MaxFlows = 1 << 17
	// memoryPerFlow is how much memory of the node one entry of sl_ct stands for, bytes.
	memoryPerFlow = 1 << 16
	// FlowsPerNew is how many proven flows there is room for per unproven one.
	FlowsPerNew = 4
)

// defaultFlows is the number of entries of sl_ct on a node with that many
// bytes of memory: a power of two, so that the hash table has no unused half.
func defaultFlows(memory uint64) uint32 {
	flows := uint32(minFlows)
	for flows < MaxFlows && uint64(flows)*2*memoryPerFlow <= memory {
		flows *= 2
	}
	return flows
}

// mapSizes returns the entries of the maps whose size is not the object's, by
// name: what the operator set, else what the node's memory allows.
func mapSizes(size nodeconf.MapSizes) (map[string]uint32, error) {
	if size.Conntrack == 0 || size.ConntrackUnassured == 0 {
		var info unix.Sysinfo_t
		if err := unix.Sysinfo(&info); err != nil {
			return nil, fmt.Errorf("read the node's memory: %w", err)
		}
		flows := defaultFlows(info.Totalram * uint64(info.Unit))
		if size.Conntrack == 0 {
			size.Conntrack = flows
		}
		if size.ConntrackUnassured == 0 {
			size.ConntrackUnassured = flows / FlowsPerNew
		}
	}
	sizes := map[string]uint32{pintree.MapConntrack: size.Conntrack, pintree.MapConntrackUnassured: size.ConntrackUnassured}
	if size.Endpoints != 0 {
		sizes[pintree.MapEndpoints], sizes[pintree.MapPodnsDevices] = size.Endpoints, size.Endpoints
	}
	if size.HostPorts != 0 {
		sizes[pintree.MapHostPorts] = size.HostPorts
	}
	return sizes, nil
}
