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
	mapFrags     = "sl_frags"
	mapEpoch     = "sl_epoch"
	mapRemapped  = "sl_remapped"
	mapSent      = "sl_sent"

	mapDevDrops  = "sl_dev_drops"
	mapEvents    = "sl_events"
	mapEventWish = "sl_event_wish"
	mapEventCPU  = "sl_event_cpu"

	mapOwnDevices = "sl_own_devices"
	mapPolicies   = "sl_policies"
	mapPoliced    = "sl_policed"
	mapEDTLimits  = "sl_edt_limits"
	mapEDTNets    = "sl_edt_nets"
	mapDeny       = "sl_deny"
	mapPeers      = "sl_peers"
	mapPeersUDP   = "sl_peers_udp"
	mapSources    = "sl_sources"
)

func sharedMaps() []string {
	return []string{
		mapEndpoints, mapEpStats, mapHostAddrs, mapUplinks, mapNoMasq, mapFlows, mapFlowsNew, mapHostPorts, mapPortsKept, mapDrops, mapFrags, mapEpoch, mapRemapped, mapSent,
		mapOwnDevices, mapEDTLimits, mapEDTNets, mapPolicies, mapPoliced, mapDeny,
		mapPeers, mapPeersUDP, mapSources, mapDevDrops, mapEvents, mapEventWish, mapEventCPU,
	}
}
