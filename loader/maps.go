// SPDX-License-Identifier: Apache-2.0

package loader

// Names of the maps that all programs share, in C and as pins. Which object holds which changes with the programs; a test
// compares this list with all of them together.
const (
	mapEndpoints = "sl_endpoints"
	mapEpStats   = "sl_ep_stats"
	mapHostAddrs = "sl_host_addrs"
	mapUplinks   = "sl_uplinks"
	mapNoMasq    = "sl_no_masq"
	mapFlows     = "sl_flows"
	mapFlowsNew  = "sl_flows_new"
	mapHostPorts = "sl_hostports"
	mapPortsKept = "sl_ports_kept"
	mapDrops     = "sl_drops"
)

func sharedMaps() []string {
	return []string{
		mapEndpoints, mapEpStats, mapHostAddrs, mapUplinks, mapNoMasq, mapFlows, mapFlowsNew, mapHostPorts, mapPortsKept, mapDrops,
	}
}
