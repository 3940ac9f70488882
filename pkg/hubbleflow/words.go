// SPDX-License-Identifier: Apache-2.0

package hubbleflow

import (
	"fmt"

	"github.com/cilium/cilium/api/v1/flow"

	"github.com/sluice-cni/sluice/pkg/flowevent"
)

// reasons are the reasons of Cilium that say the same, or nearly so. The summary of a flow has Sluice's own.
var reasons = map[string]flow.DropReason{
	"spoofed-ip":             flow.DropReason_INVALID_SOURCE_IP,
	"spoofed-mac":            flow.DropReason_INVALID_SOURCE_MAC, //nolint:staticcheck // deprecated: Cilium no longer has such drops, Sluice has
	"no-source-address":      flow.DropReason_NO_MAPPING_FOR_NAT_MASQUERADE,
	"no-gateway":             flow.DropReason_NO_MAPPING_FOR_NAT_MASQUERADE,
	"ports-exhausted":        flow.DropReason_NO_MAPPING_FOR_NAT_MASQUERADE,
	"tuple-clash":            flow.DropReason_NO_MAPPING_FOR_NAT_MASQUERADE,
	"flow-table":             flow.DropReason_CT_MAP_INSERTION_FAILED,
	"conntrack-share":        flow.DropReason_CT_MAP_INSERTION_FAILED,
	"rewrite":                flow.DropReason_ERROR_WRITING_TO_PACKET,
	"icmp-orphan":            flow.DropReason_UNKNOWN_CONNECTION_TRACKING_STATE,
	"unasked":                flow.DropReason_UNKNOWN_CONNECTION_TRACKING_STATE,
	"fragment":               flow.DropReason_FIRST_LOGICAL_DATAGRAM_FRAGMENT_NOT_FOUND,
	"opaque":                 flow.DropReason_UNSUPPORTED_PROTOCOL_FOR_NAT_MASQUERADE,
	"loopback":               flow.DropReason_INVALID_SOURCE_IP,
	"loopback-pod":           flow.DropReason_STALE_OR_UNROUTABLE_IP,
	"isolated":               flow.DropReason_POLICY_DENIED,
	"ingress-rule":           flow.DropReason_POLICY_DENY,
	"egress-rule":            flow.DropReason_POLICY_DENY,
	"network-policy-ingress": flow.DropReason_POLICY_DENIED,
	"network-policy-egress":  flow.DropReason_POLICY_DENIED,
	"network-policy-pending": flow.DropReason_POLICY_DENIED,
	"policy-gone":            flow.DropReason_NO_CONFIGURATION_AVAILABLE_TO_PERFORM_POLICY_DECISION,
	"rate":                   flow.DropReason_REACHED_EDT_RATE_LIMITING_DROP_HORIZON,
	"source":                 flow.DropReason_DENIED_BY_LB_SRC_RANGE_CHECK,
	"denied":                 flow.DropReason_POLICY_DENY,
	"v4-mapped":              flow.DropReason_INVALID_SOURCE_IP,
	"checksum-place":         flow.DropReason_INVALID_PACKET_DROPPED,
	"tunnel-port":            flow.DropReason_ENCAPSULATION_TRAFFIC_IS_PROHIBITED,
	"false-neighbour":        flow.DropReason_INVALID_SOURCE_IP,
}

// Reason returns Cilium's reason that is nearest to one of Sluice's by its name.
func Reason(name string) flow.DropReason { return reasons[name] }

// summary says what Cilium's fields have no room for.
func summary(e *flowevent.Event) string {
	if e.Event == flowevent.Dropped {
		if header := e.Header.String(); header != "" {
			return e.Reason + " [" + header + "]"
		}
		return e.Reason
	}
	what := e.Event
	switch {
	case e.Event == flowevent.Ended:
		what += " (" + e.Reason + ")"
	case e.State != "":
		what += ", " + e.State
	}
	if e.Fast {
		what += ", fast"
	}
	if e.Outside.IsValid() {
		what += ", " + e.Kind + " as " + e.Outside.String()
	}
	if e.Backend.IsValid() {
		what += ", for " + e.Destination.String()
	}
	return what + fmt.Sprintf(", %d packets, %d bytes", e.RxPackets+e.TxPackets, e.RxBytes+e.TxBytes)
}

// icmp returns type and code; of a connection those of an echo request.
func icmp(e *flowevent.Event, echo uint32) (typ, code uint32) {
	switch {
	case e.Event != flowevent.Dropped:
		return echo, 0
	case e.Header.ICMP == nil:
		return 0, 0
	}
	return uint32(e.Header.ICMP.Type), uint32(e.Header.ICMP.Code)
}
