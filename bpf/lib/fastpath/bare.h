/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../packet/parse_full.h"
#include "fastpath.h"

/*
 * Uplinks without Ethernet header: WireGuard, TUN, PPP, IP tunnels.
 */

/*
 * The fast path of a device without Ethernet header: the packet gets the header of the pod's device. A function of its own, for the
 * stack it takes.
 * in: full_scratch()->outer, ->key, ->ct_flags
 */
__noinline int sl_bare_to_pod(struct __sk_buff *skb)
{
	struct sl_full_ctx *full = full_scratch();
	struct sl_endpoint *ep;
	struct sl_pkt *p;
	__be16 proto;

	if (!full)
		return SL_NEXT;
	p = &full->outer.p;
	ep = endpoint_lookup(full->key.local);
	if (!ep)
		return SL_NEXT;
	proto = p->family == 4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	p->l4_off += ETH_HLEN;
	if (bpf_skb_change_head(skb, ETH_HLEN, 0) ||
	    bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &proto, sizeof(proto), 0) ||
	    !pull(skb, (p->l4_off & 0x7f) + sizeof(struct udphdr)))
		return drop(skb, SL_DROP_REWRITE, ep->ifindex);
	if (p->tuple.proto == IPPROTO_TCP && !pull(skb, (p->l4_off & 0x7f) + sizeof(struct tcphdr)))
		return drop(skb, SL_DROP_REWRITE, ep->ifindex);
	if (rewrite_remote(skb, p, SL_RX, &full->key) || rewrite_packet(skb, p, SL_RX, &full->key, true))
		return drop(skb, SL_DROP_REWRITE, ep->ifindex);
	return fast_to_pod(skb, ep, full->ct_flags);
}
