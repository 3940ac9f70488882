/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/ctx.h"
#include "../conntrack/conntrack_types.h"
#include "../endpoint/endpoint_maps.h"
#include "cb_mark.h"

/*
 * Uplinks that are a bridge. With br_netfilter, netfilter's PREROUTING sees a packet at the bridge's
 * port, before a program of the bridge translates it, and leaves it alone from then on. So its
 * connection table has the packet under the tuple of before, and knows nothing of the pod's answer.
 *
 * Such a packet is handed to the ingress of the same device once more. On the way the kernel takes off
 * what netfilter has noted, so that PREROUTING runs again, on the translated packet. The mark stays.
 */

/* The uplink's entry if it is a bridge, or on one. */
static __always_inline struct sl_uplink *bridge_uplink(const struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	struct sl_uplink *up;

	if (!cfg_l2_len)
		return NULL;
	up = bpf_map_lookup_elem(&sl_uplinks, &ifindex);
	return up && up->again_max ? up : NULL;
}

/* Notes in the entry of a packet that takes the slow path what the fast path has to know. */
static __always_inline void note_bridge(const struct __sk_buff *skb, struct sl_ct_entry *ct)
{
	if (!(ct->flags & SL_CT_BRIDGE) && bridge_uplink(skb))
		ct->flags |= SL_CT_BRIDGE;
}

/*
 * What becomes of a packet that was translated and takes the slow path. A function of its own for the
 * verifier. Only what the translation has changed may come here: a program of a third party can wipe
 * the control block, and the packet would go round for ever.
 *
 * A packet longer than the MTU has been put together of fragments. It goes on as it is: the second
 * ingress would drop it (before Linux 5.12), or forget that it may be fragmented again (IPv6).
 */
__noinline int sl_again(struct __sk_buff *skb)
{
	struct sl_uplink *up = bridge_uplink(skb);

	if (!cfg_cb_cookie1 || !up || (skb->len > up->again_max && !skb->gso_size))
		return SL_NEXT;
	cb_mark_again(skb);
	return (int)bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}
