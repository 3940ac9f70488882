// SPDX-License-Identifier: Apache-2.0

package loader

// Names of the maps that all programs share, in C and as pins. Which object holds which changes with the programs; a test
// compares this list with all of them together.
const (
	mapEndpoints          = "sl_endpoints"
	mapEpStats            = "sl_ep_stats"
	mapNodeAddrs          = "sl_node_addrs"
	mapUplinks            = "sl_uplinks"
	mapNoMasqCIDRs        = "sl_nomasq_cidrs"
	mapConntrack          = "sl_ct"
	mapConntrackUnassured = "sl_ct_unassured"
	mapHostPorts          = "sl_hostports"
	mapReservedPorts      = "sl_rsvd_ports"
	mapDropReasons        = "sl_drop_reasons"
	mapFrags              = "sl_frags"
	mapCacheEpoch         = "sl_cache_epoch"
	mapLastClientPort     = "sl_last_cport"
	mapHostUDP            = "sl_host_udp"

	mapDropsByDevice = "sl_drops_by_dev"
	mapDropEvents    = "sl_drop_events"
	mapEventLease    = "sl_event_lease"
	mapEventState    = "sl_event_state"

	mapPodnsDevices      = "sl_ns_devices"
	mapPolicies          = "sl_policies"
	mapDevicePolicy      = "sl_dev_policy"
	mapEDTLimits         = "sl_edt_limits"
	mapEDTCIDRs          = "sl_edt_cidrs"
	mapDenylist          = "sl_denylist"
	mapSockLBConn        = "sl_socklb_conn"
	mapSockLBUDP         = "sl_socklb_udp"
	mapHostPortAllowlist = "sl_hp_allowlist"
)

func sharedMaps() []string {
	return []string{
		mapEndpoints, mapEpStats, mapNodeAddrs, mapUplinks, mapNoMasqCIDRs, mapConntrack, mapConntrackUnassured, mapHostPorts, mapReservedPorts, mapDropReasons, mapFrags, mapCacheEpoch, mapLastClientPort, mapHostUDP,
		mapPodnsDevices, mapEDTLimits, mapEDTCIDRs, mapPolicies, mapDevicePolicy, mapDenylist,
		mapSockLBConn, mapSockLBUDP, mapHostPortAllowlist, mapDropsByDevice, mapDropEvents, mapEventLease, mapEventState,
	}
}
