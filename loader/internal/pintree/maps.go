// SPDX-License-Identifier: Apache-2.0

package pintree

// Names of the maps that all programs share, in C and as pins. Which object holds which changes with the programs; a test
// compares this list with all of them together.
const (
	MapEndpoints          = "sl_endpoints"
	MapEpStats            = "sl_ep_stats"
	MapPodDevices         = "sl_pod_devices"
	MapNodeAddrs          = "sl_node_addrs"
	MapUplinks            = "sl_uplinks"
	MapTunnelPorts        = "sl_tunnel_ports"
	MapNoMasqCIDRs        = "sl_nomasq_cidrs"
	MapConntrack          = "sl_ct"
	MapConntrackUnassured = "sl_ct_unassured"
	MapConntrackPlaces    = "sl_ct_places"
	MapConntrackShares    = "sl_ct_shares"
	MapConntrackTurnover  = "sl_ct_turnover"
	MapConntrackCounts    = "sl_ct_counts"
	MapHostPortOutside    = "sl_hp_outside"
	MapHostPorts          = "sl_hostports"
	MapReservedPorts      = "sl_rsvd_ports"
	MapDropReasons        = "sl_drop_reasons"
	mapFrags              = "sl_frags"
	MapCacheEpoch         = "sl_cache_epoch"
	MapLastClientPort     = "sl_last_cport"
	MapHostUDP            = "sl_host_udp"
	mapNodePorts          = "sl_node_ports"
	mapNodeSent           = "sl_node_sent"

	MapDropsByDevice = "sl_drops_by_dev"
	MapDropEvents    = "sl_drop_events"
	MapEventLease    = "sl_event_lease"
	MapEventState    = "sl_event_state"

	MapPodnsDevices      = "sl_ns_devices"
	MapParentPods        = "sl_parent_pods"
	MapPolicies          = "sl_policies"
	MapDevicePolicy      = "sl_dev_policy"
	MapNPPeers           = "sl_np_peers"
	MapNPCIDRs           = "sl_np_cidrs"
	MapNPServices        = "sl_np_services"
	MapNPBits            = "sl_np_bits"
	MapNPPolicies        = "sl_np_policies"
	MapNPSets            = "sl_np_sets"
	MapNPPods            = "sl_np_pods"
	MapNPNamespaces      = "sl_np_open_ns"
	MapNPDevices         = "sl_np_devices"
	MapEDTLimits         = "sl_edt_limits"
	MapEDTCIDRs          = "sl_edt_cidrs"
	MapDenylist          = "sl_denylist"
	MapPodMACs           = "sl_pod_macs"
	MapSockLBConn        = "sl_socklb_conn"
	MapSockLBUDP         = "sl_socklb_udp"
	MapHostPortAllowlist = "sl_hp_allowlist"
)

// LaterMaps are those that earlier builds of this pin version did not have.
func LaterMaps() []string {
	return []string{
		MapPodDevices, MapPodMACs, MapParentPods, MapConntrackPlaces, MapConntrackShares, MapConntrackTurnover, MapHostPortOutside,
		MapConntrackCounts, MapTunnelPorts, mapNodePorts, mapNodeSent,
		MapNPPeers, MapNPCIDRs, MapNPServices, MapNPBits, MapNPPolicies, MapNPSets, MapNPPods, MapNPNamespaces, MapNPDevices,
	}
}

// SharedMaps are the names of all maps that are pinned.
func SharedMaps() []string {
	return []string{
		MapEndpoints, MapEpStats, MapPodDevices, MapNodeAddrs, MapUplinks, MapTunnelPorts, MapNoMasqCIDRs, MapConntrack, MapConntrackUnassured,
		MapConntrackPlaces, MapConntrackShares, MapConntrackTurnover, MapConntrackCounts, MapHostPortOutside, MapHostPorts, MapReservedPorts, MapDropReasons, mapFrags, MapCacheEpoch, MapLastClientPort, MapHostUDP, mapNodePorts, mapNodeSent,
		MapPodnsDevices, MapParentPods, MapEDTLimits, MapEDTCIDRs, MapPolicies, MapDevicePolicy,
		MapNPPeers, MapNPCIDRs, MapNPServices, MapNPBits, MapNPPolicies, MapNPSets, MapNPPods, MapNPNamespaces, MapNPDevices, MapDenylist, MapPodMACs,
		MapSockLBConn, MapSockLBUDP, MapHostPortAllowlist, MapDropsByDevice, MapDropEvents, MapEventLease, MapEventState,
	}
}
