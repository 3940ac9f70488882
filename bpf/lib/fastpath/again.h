/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/ctx.h"
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

/*
 * What becomes of a translated packet that takes the slow path. A function of its own for the verifier.
 *
 * A packet longer than the MTU has been put together of fragments. It goes on as it is: the second
 * ingress would drop it (before Linux 5.12), or forget that it may be fragmented again (IPv6).
 */
__noinline int sl_again(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	struct sl_uplink *up;

	if (!cfg_l2_len || !cfg_cb_cookie1)
		return SL_NEXT;
	up = bpf_map_lookup_elem(&sl_uplinks, &ifindex);
	if (!up || !up->again_max || (skb->len > up->again_max && !skb->gso_size))
		return SL_NEXT;
	cb_mark_again(skb);
	return (int)bpf_redirect(ifindex, BPF_F_INGRESS);
}
