/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include <linux/pkt_cls.h>
#include "../base/config.h"
#include "drop_event.h"
#include "../endpoint/endpoint_stats.h"

/*
 * The one way in which a tc program drops a packet. It counts the drop by reason, by device and by pod.
 */

/* Copies the first bytes of the packet into e. */
static __always_inline void event_capture(struct __sk_buff *skb, struct sl_event *e)
{
	__u32 n = skb->len > SL_EVENT_BYTES ? SL_EVENT_BYTES : skb->len;

	e->len = skb->len;
	e->l2_len = (__u8)cfg_l2_len;
	e->captured = 0;
	/*
	 * From 1 to SL_EVENT_BYTES, written so that the verifier of 5.10 sees it too ("invalid
	 * zero-sized read").
	 */
	n = ((n - 1) & (SL_EVENT_BYTES - 1)) + 1;
	asm volatile("" : "+r"(n));
	if (!bpf_skb_load_bytes(skb, 0, e->data, n))
		e->captured = (__u8)n;
}

/*
 * Every drop of a tc program goes through here. A function of its own: it is verified once, and the
 * programs stay short.
 * index: enum sl_drop_reason with its enum sl_drop_direction. endpoint: key of the pod's device in
 * sl_ep_stats, or of its limit with SL_EDT_KEY; 0 = none.
 */
__noinline int sl_drop(struct __sk_buff *skb, __u32 index, __u32 endpoint)
{
	struct sl_endpoint_stats *st;
	struct sl_event_state *cpu;
	struct sl_event *e;

	cpu = drop_count(endpoint & (SL_PODNS_KEY | SL_EDT_KEY) ? endpoint : skb->ifindex, endpoint, index);
	if (!cpu)
		return TC_ACT_SHOT;
	st = bpf_map_lookup_elem(&sl_ep_stats, &cpu->key.endpoint);
	if (st) {
		st->drops++;
		cpu->owner = st->owner;
	}
	e = event_reserve(cpu);
	if (!e)
		return TC_ACT_SHOT;
	event_capture(skb, e);
	bpf_ringbuf_submit(e, 0);
	return TC_ACT_SHOT;
}

static __always_inline int drop(struct __sk_buff *skb, enum sl_drop_reason reason, __u32 endpoint)
{
	return sl_drop(skb, reason | SL_DROP_DIRECTION, endpoint);
}
