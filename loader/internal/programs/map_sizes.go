// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"cmp"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/loadapi"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

// The sizes of maps come from the node's memory: a small node keeps its memory, and a large one has room for more pods. The bounds
// are such that all maps, taken as full, stay below 77 MB: so kernels before 6.4 charge them (docs/dev/adr/0026-map-sizes.md).
const (
	minConntrack = 1 << 14
	MaxConntrack = 3 << 15
	// memoryPerEntry is how much memory of the node one entry of sl_ct stands for, bytes.
	memoryPerEntry = 1 << 16
	// AssuredPerNew is how many entries of sl_ct there are per entry of sl_ct_unassured.
	AssuredPerNew = 4

	// addressesPerLimit is how many addresses of pods there are per limit of a rate. A pod has two addresses, and three limits at most:
	// of what it gets, of what it sends, and of what it sends past that one.
	addressesPerLimit = 6
	// cidrsPerLimit is how many networks there are per limit.
	cidrsPerLimit = 16
	// addressesPerPolicy is how many addresses of pods there are per policy: pods with the same rules share one.
	addressesPerPolicy = 64
	// Counters of a pod device take counterBytes on each CPU, and together no more than countersBytes.
	counterBytes  = 72
	countersBytes = 4 << 20
	minCounters   = 1 << 10
	minEndpoints  = 1 << 13
	MaxEndpoints  = 3 << 12
	// entriesPerAddress is how many entries of sl_ct there are per address of a pod.
	entriesPerAddress = 8
)

// defaultConntrack is the number of entries of sl_ct on a node with that many bytes of memory: a power of two, or one and a half,
// since the kernel rounds the buckets of a hash table up to a power of two.
func defaultConntrack(memory uint64) uint32 {
	n := uint32(minConntrack)
	for next := n * 2; n < MaxConntrack; next = n * 2 {
		next = min(next, MaxConntrack)
		if uint64(next)*memoryPerEntry > memory {
			break
		}
		n = next
	}
	return n
}

// mapSizes returns the entries of the maps whose size is not the object's, by name: what the operator set, else what the node's
// memory allows.
func mapSizes(size nodeconf.MapSizes) (map[string]uint32, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return nil, fmt.Errorf("read the node's memory: %w", err)
	}
	cpus, err := bpfsys.PossibleCPUs()
	if err != nil {
		return nil, err
	}
	return sizesFor(size, info.Totalram*uint64(info.Unit), cpus), nil
}

// sizesFor is mapSizes on a node with that many bytes of memory and that many CPUs.
func sizesFor(size nodeconf.MapSizes, memory uint64, cpus int) map[string]uint32 {
	byMemory := defaultConntrack(memory)
	conntrack := cmp.Or(size.Conntrack, byMemory)
	unassured := cmp.Or(size.ConntrackUnassured, byMemory/AssuredPerNew)
	endpoints := cmp.Or(size.Endpoints, min(max(byMemory/entriesPerAddress, minEndpoints), MaxEndpoints))
	devices := cmp.Or(size.Endpoints, max(min(endpoints/2, uint32(countersBytes/(counterBytes*cpus))), minCounters))
	sizes := map[string]uint32{
		pintree.MapConntrack:          conntrack,
		pintree.MapConntrackPlaces:    loadapi.ConntrackPlaces(conntrack, cpus) + loadapi.PendingPlaces(unassured, cpus),
		pintree.MapConntrackUnassured: unassured,
		pintree.MapEndpoints:          endpoints,
		pintree.MapPodnsDevices:       cmp.Or(size.Endpoints, endpoints/2),
		pintree.MapPodMACs:            max(endpoints/4, 1),
		pintree.MapParentPods:         max(endpoints/4, 1),
		pintree.MapEpStats:            devices,
		pintree.MapPodDevices:         devices,
		pintree.MapEDTLimits:          max(endpoints/addressesPerLimit, 1),
		pintree.MapEDTCIDRs:           max(endpoints/addressesPerLimit*cidrsPerLimit, cidrsPerLimit),
		pintree.MapPolicies:           max(endpoints/addressesPerPolicy, 1),
	}
	if size.HostPorts != 0 {
		sizes[pintree.MapHostPorts] = size.HostPorts
	}
	if n := size.NetworkPolicy; n != 0 {
		sizes[pintree.MapNPPeers], sizes[pintree.MapNPCIDRs], sizes[pintree.MapNPServices] = n, max(n/8, 1), max(n/16, 1)
		sizes[pintree.MapNPBits], sizes[pintree.MapNPNamespaces] = max(n/16, 1), max(n/8, 1)
	}
	return sizes
}
