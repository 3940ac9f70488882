/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "endpoint_maps.h"

/*
 * Traffic counters of pod devices, one set per CPU: of packets that the programs have passed on. What they drop is counted by sl_drop()
 * alone.
 */

static __always_inline struct sl_endpoint_stats *endpoint_stats(__u32 ifindex)
{
	return bpf_map_lookup_elem(&sl_ep_stats, &ifindex);
}

/* A GSO packet counts as one; bytes are those of the frame. */
static __always_inline void count_tx(struct __sk_buff *skb, struct sl_endpoint_stats *st, bool fast)
{
	if (unlikely(!st))
		return;
	st->tx_packets++;
	st->tx_bytes += skb->len;
	st->tx_fast += fast;
}

static __always_inline void count_rx(struct __sk_buff *skb, struct sl_endpoint_stats *st, bool fast)
{
	if (unlikely(!st))
		return;
	st->rx_packets++;
	st->rx_bytes += skb->len;
	st->rx_fast += fast;
}
