/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include <linux/pkt_cls.h>
#include "endpoint_maps.h"
#include "metrics_maps.h"

/* "No verdict": later tcx programs, clsact filters and the stack go on (TCX_NEXT; TC_ACT_UNSPEC of a direct-action filter). */
#define SL_PASS (-1)

static __always_inline struct sl_endpoint_stats *endpoint_stats(__u32 ifindex)
{
	return bpf_map_lookup_elem(&sl_ep_stats, &ifindex);
}

/* Every drop of ours goes through here: counted by reason, and for the endpoint where one is known (0 = none). */
static __always_inline int drop(enum sl_drop_reason reason, __u32 ep_ifindex)
{
	struct sl_endpoint_stats *st = ep_ifindex ? endpoint_stats(ep_ifindex) : NULL;
	__u32 key = reason;
	__u64 *n = bpf_map_lookup_elem(&sl_drops, &key);

	if (n)
		(*n)++;
	if (st)
		st->drops++;
	return TC_ACT_SHOT;
}

/* GSO packets count as one; bytes are those of the frame. fast: it took the learned path. */
static __always_inline void count_tx(struct __sk_buff *skb, struct sl_endpoint_stats *st)
{
	if (!st)
		return;
	st->tx_packets++;
	st->tx_bytes += skb->len;
}

static __always_inline void count_rx(struct __sk_buff *skb, struct sl_endpoint_stats *st, bool fast)
{
	if (!st)
		return;
	st->rx_packets++;
	st->rx_bytes += skb->len;
	st->rx_fast += fast;
}
