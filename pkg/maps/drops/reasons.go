// SPDX-License-Identifier: Apache-2.0

package drops

import (
	"fmt"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
)

// Reason says why a packet was dropped.
type Reason uint32

// Max is the number of reasons, including none (0).
const Max = Reason(bpfgen.TypesSlDropReasonSL_DROP_MAX)

// words are what the operator reads of a reason: its name on a command line, a sentence, and what to do about it.
type words struct{ name, text, advice string }

var reasons = [Max]words{
	bpfgen.TypesSlDropReasonSL_DROP_NONE: {"none", "none", ""},
	bpfgen.TypesSlDropReasonSL_DROP_SPOOFED_IP: {"spoofed-ip", "source address is not the pod's",
		"The pod sends from an address that IPAM did not give it. If it has to (a VPN, a router), set antiSpoof to false in the node configuration."},
	bpfgen.TypesSlDropReasonSL_DROP_SPOOFED_MAC: {"spoofed-mac", "source MAC is not the pod's",
		"The pod sends with another MAC than its device has, as bridges and virtual machines inside pods do. Set the MAC by the runtime, or antiSpoof to false."},
	bpfgen.TypesSlDropReasonSL_DROP_NO_SNAT_ADDR: {"no-source-address", "uplink has no address to masquerade with",
		"Give the uplink an address of this family, then run \"sluice resync\"; or route by another uplink."},
	bpfgen.TypesSlDropReasonSL_DROP_SNAT_PORTS: {"ports-exhausted", "no free source port toward the destination",
		"Too many connections of masqueraded pods to one destination: see \"sluice nat pools\". Widen the port ranges in the node configuration, or let the pods keep connections open."},
	bpfgen.TypesSlDropReasonSL_DROP_NO_CLIENT_PORT: {"tuple-clash", "no port left for a client that reaches one pod port twice from one port",
		"The client uses one source port by two addresses or ports of the node, and no port is free to tell the two apart. Widen the port ranges in the node configuration."},
	bpfgen.TypesSlDropReasonSL_DROP_CT_TABLE: {"flow-table", "flow could not be recorded",
		"The kernel had no memory for a flow. Look at the node's memory, and at the fill of sl_ct in \"sluice status\"."},
	bpfgen.TypesSlDropReasonSL_DROP_REWRITE: {"rewrite", "packet could not be rewritten",
		"The kernel had no memory for a copy of the packet, or the packet is shorter than its headers say."},
	bpfgen.TypesSlDropReasonSL_DROP_ICMP_ORPHAN: {"icmp-orphan", "ICMP error about an unknown connection of a masqueraded pod",
		"Harmless when rare: it is late, or forged. It would have shown the pod's address outside."},
	bpfgen.TypesSlDropReasonSL_DROP_FRAGMENT: {"fragment", "fragment of a masqueraded pod without the first one",
		"The first fragment was lost or came more than 30 s ago. Lower the pod's MTU so that it need not send fragments."},
	bpfgen.TypesSlDropReasonSL_DROP_UNPARSABLE: {"opaque", "packet of a masqueraded pod that cannot be translated, or one that hides its ports from the rules, or IP from the programs",
		"Its headers are cut, or of a kind that cannot be translated. Add the destination to nonMasqueradeCIDRs if the pod's own address may go there."},
	bpfgen.TypesSlDropReasonSL_DROP_LOOPBACK: {"loopback", "loopback address on a wire",
		"A neighbour sends with or to 127.0.0.0/8 or ::1, which no host may: find it by the frame's source MAC (sluice monitor -o json)."},
	bpfgen.TypesSlDropReasonSL_DROP_ISOLATED: {"isolated", "ingressPolicy keeps the pods apart",
		"As configured: ingressPolicy of the firewall plugin. Put both pods on one network, or use another policy."},
	bpfgen.TypesSlDropReasonSL_DROP_INGRESS_RULE: {"ingress-rule", "denied by an ingress rule",
		"As configured: \"sluice firewall\" shows the rule and its hits."},
	bpfgen.TypesSlDropReasonSL_DROP_EGRESS_RULE: {"egress-rule", "denied by an egress rule",
		"As configured: \"sluice firewall\" shows the rule and its hits."},
	bpfgen.TypesSlDropReasonSL_DROP_POLICY_RACE: {"policy-gone", "policy was replaced meanwhile",
		"Harmless when it stops at once. If not, the device's policy is missing: run the plugins' GC, or add the pod anew."},
	bpfgen.TypesSlDropReasonSL_DROP_RATE: {"rate", "over the pod's rate limit",
		"As configured: \"sluice bandwidth\" shows the limit and its queue. Some drops are how TCP learns the rate."},
	bpfgen.TypesSlDropReasonSL_DROP_SOURCE: {"source", "source is not in the port's allowedSources",
		"As configured: \"sluice hostports -w\" shows the sources of each port."},
	bpfgen.TypesSlDropReasonSL_DROP_DENIED: {"denied", "source is in the denylist",
		"As configured: \"sluice deny list\" shows the networks and their hits."},
	bpfgen.TypesSlDropReasonSL_DROP_NO_GATEWAY: {"no-gateway", "pod's gateway has no address to masquerade with",
		"The bridge, or the host end of the device, has no address of this family: set isGateway, or give it one and add the pod anew."},
	bpfgen.TypesSlDropReasonSL_DROP_LOOPBACK_POD: {"loopback-pod", "pod sends to a loopback address",
		"A process of the pod was bound to its device and asked for 127.0.0.0/8 or ::1. The node's loopback is not the pod's."},
	bpfgen.TypesSlDropReasonSL_DROP_CT_SHARE: {"conntrack-share", "table of connections is full, and the pod has the largest part of it",
		"The pod opens more connections than the node has room for: \"sluice conntrack list\" shows them. Let it close some, or raise \"conntrack\" of mapSizes in the node configuration."},
	bpfgen.TypesSlDropReasonSL_DROP_UNASKED: {"unasked", "SYN-ACK or echo reply of a masqueraded pod to nothing that came in",
		"Harmless when rare: it is late, or forged. If not, the pod got the question by a device that the node does not see: route the answer by that device."},
	bpfgen.TypesSlDropReasonSL_DROP_CSUM_PLACE: {"checksum-place", "pod has a checksum made where the packet has something else",
		"A process with CAP_NET_RAW, or a virtual machine, asks the kernel to write into the packet behind all checks (PACKET_VNET_HDR). No stack does that: look at what runs in the pod."},
	bpfgen.TypesSlDropReasonSL_DROP_FALSE_ND: {"false-neighbour", "pod acts as a router on its link, or claims an address that is not its own",
		"The pod sends router advertisements or redirects, or neighbour advertisements or ARP for another address. If it has to (a router, a floating address), set antiSpoof to false in the node configuration."},
	bpfgen.TypesSlDropReasonSL_DROP_TUNNEL: {"tunnel-port", "pod sends to the port of a VXLAN device between nodes",
		"A process of the pod tries to speak as a pod of another node, or it runs a VXLAN of its own to a host outside: let that one use another port."},
	bpfgen.TypesSlDropReasonSL_DROP_NP_INGRESS: {"network-policy-ingress", "denied by NetworkPolicy, toward the pod",
		"As the NetworkPolicy objects say that select the pod: none of their ingress rules is about this peer and port."},
	bpfgen.TypesSlDropReasonSL_DROP_NP_EGRESS: {"network-policy-egress", "denied by NetworkPolicy, from the pod",
		"As the NetworkPolicy objects say that select the pod: none of their egress rules is about this peer and port."},
	bpfgen.TypesSlDropReasonSL_DROP_NP_PENDING: {"network-policy-pending", "NetworkPolicies of the pod are not known yet, or do not fit",
		"Harmless for some milliseconds after a pod's start. If it goes on, look whether the node agent runs and reaches the API server, and at its Events on the Node."},
	bpfgen.TypesSlDropReasonSL_DROP_V4MAPPED: {"v4-mapped", "IPv6 packet with a v4-mapped address",
		"No host sends ::ffff:a.b.c.d on a wire: a process forges the packet to look like IPv4. Find it by the pod, or by the frame's source MAC (sluice monitor -o json)."},
}

func (r Reason) words() words {
	if r < Max {
		return reasons[r]
	}
	return words{}
}

// String returns the reason as the operator reads it.
func (r Reason) String() string {
	if text := r.words().text; text != "" {
		return text
	}
	return fmt.Sprintf("reason %d", uint32(r))
}

// Name is the reason in one word, as command lines and JSON have it.
func (r Reason) Name() string {
	if name := r.words().name; name != "" {
		return name
	}
	return fmt.Sprintf("reason-%d", uint32(r))
}

// Advice says what the operator can do.
func (r Reason) Advice() string { return r.words().advice }
