//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The parent device of macvlan, ipvlan and vlan pods, on the node, tc egress and ingress: what such pods
 * send, once more. The programs on the pod's own device are where root in the pod, and a packet socket
 * with PACKET_QDISC_BYPASS, can bypass them. Ingress is for what a macvlan in bridge mode sends to its
 * siblings: the driver puts it there (macvlan_queue_xmit).
 */
#define SL_PROGRAM SL_PROGRAM_PARENT
#include "lib/base/compiler.h"
#include "lib/base/config.h"
#include "lib/base/ctx.h"
#include "lib/drop/drop.h"
#include "lib/edt/edt.h"
#include "lib/podns/parent.h"
#include "lib/policy/policy.h"

/* Applies rules and limit of the pod to a packet whose VLAN tag is off. */
static __always_inline int parent_judge(struct __sk_buff *skb, __u32 vlan)
{
	struct sl_pkt *p = pkt_scratch();
	struct sl_parent_pod *pod;
	struct sl_edt_limit *limit;
	enum sl_drop_reason reason;
	enum sl_parsed parsed;
	__u32 number;

	if (!p)
		return SL_NEXT;
	strip_priority_tag(skb);
	parsed = parse_packet(skb, p, SL_TX);
	pod = parent_pod(skb, p, vlan);
	if (!pod)
		return SL_NEXT;
	/* 1. rules */
	number = pod->device;
	if (number) {
		reason = parse_refused(parsed);
		if (!reason)
			reason = podns_refused(skb, p, parsed);
		if (!reason && parsed != SL_PARSED_NONE && !is_addr_discovery(skb, p, parsed, SL_TX))
			reason = policy_admit_at_parent(skb, p, parsed, number, clock_now());
		if (reason)
			return drop(skb, reason, SL_PODNS_KEY | number);
	}
	/* 2. limit */
	number = pod->limit;
	limit = number ? bpf_map_lookup_elem(&sl_edt_limits, &number) : NULL;
	if (limit && edt_applies(skb, limit, number) && !edt_police(skb, limit))
		return drop(skb, SL_DROP_RATE, SL_EDT_KEY | number);
	return SL_NEXT;
}

SEC("tc")
int sl_parent(struct __sk_buff *skb)
{
	__u32 tci = skb->vlan_tci, vlan = skb->vlan_present ? tci & 0x0fff : 0;
	__be16 proto = (__be16)skb->vlan_proto;
	int verdict;

	/* What the node forwards, and what comes from the wire, has no socket. */
	if (!skb->sk)
		return SL_NEXT;
	/* The tag of a vlan device is beside the frame: the pod's programs have not seen it. */
	if (vlan && bpf_skb_vlan_pop(skb))
		return drop(skb, SL_DROP_REWRITE, 0);
	verdict = parent_judge(skb, vlan);
	if (vlan && verdict == SL_NEXT && bpf_skb_vlan_push(skb, proto, (__u16)tci))
		return drop(skb, SL_DROP_REWRITE, 0);
	return verdict;
}

char _license[] SEC("license") = "Dual BSD/GPL";
