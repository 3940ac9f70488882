/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/addr.h"
#include "../base/config.h"
#include "endpoint_maps.h"
#include "../base/lpm.h"

/*
 * Questions about pods and the node's addresses: whose address is this, and is a connection from it
 * masqueraded?
 */

static __always_inline struct sl_endpoint *endpoint_lookup(const __u8 *ip)
{
	return bpf_map_lookup_elem(&sl_endpoints, ip);
}

/* Is ip an address of the node? A hostPort without hostIP answers on these. */
static __always_inline bool is_node_addr(const __u8 *ip)
{
	return bpf_map_lookup_elem(&sl_node_addrs, ip) != NULL;
}

/* Does a connection that the pod opens toward dst leave with the node's address? */
static __always_inline bool endpoint_masquerades(const struct sl_endpoint *ep, const __u8 *src, const __u8 *dst)
{
	struct sl_cidr key = {.prefix_len = 128};

	if (!(ep->flags & SL_EP_MASQUERADE))
		return false;
	if (addr_is_multicast(dst) || addr_is_link_local6(dst) || addr_same_prefix(src, dst, ep->prefix_len))
		return false;
	addr_copy(key.ip, dst);
	return lpm_lookup_in_family(&sl_nomasq_cidrs, &key, &key.prefix_len, key.ip) == NULL;
}

/* Sets the mark by which one netfilter rule recognises traffic that the firewall plugin admits. */
static __always_inline void endpoint_set_admit_mark(struct __sk_buff *skb, const struct sl_endpoint *ep)
{
	if (cfg_admit_mark && (ep->flags & SL_EP_ADMIT))
		skb->mark |= cfg_admit_mark;
}
