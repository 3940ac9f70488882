/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include <linux/if_ether.h>
#include "../base/ctx.h"
#include "../conntrack/conntrack_types.h"
#include "../endpoint/endpoint_maps.h"
#include "cb_mark.h"

/*
 * Uplinks that are a bridge, and bridges of pods. With br_netfilter, netfilter's PREROUTING sees a
 * packet at the bridge's port, before a program of the bridge translates it, and leaves it alone from
 * then on. So its connection table has the packet under the tuple of before, and knows nothing of the
 * pod's answer.
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
 * mtu: of the pod's device, as that of the device that a client on this node comes by.
 *
 * A packet longer than the MTU has been put together of fragments. It goes on as it is: the second
 * ingress would drop it (before Linux 5.12), or forget that it may be fragmented again (IPv6).
 */
__noinline int sl_again(struct __sk_buff *skb, __u32 mtu)
{
	__u32 longest = mtu + ETH_HLEN;
	struct sl_uplink *up;

	if (!cfg_cb_cookie1)
		return SL_NEXT;
	if (!cfg_clients) {
		up = bridge_uplink(skb);
		if (!up)
			return SL_NEXT;
		longest = up->again_max;
	}
	if (skb->len > longest && !skb->gso_size)
		return SL_NEXT;
	cb_mark_again(skb);
	return (int)bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/* sl_again() for a packet to the pod behind ep, or to one that has gone (NULL). */
static __always_inline int again(struct __sk_buff *skb, const struct sl_endpoint *ep)
{
	return sl_again(skb, ep ? ep->mtu : 0);
}
