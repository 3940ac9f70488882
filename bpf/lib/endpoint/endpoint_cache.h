/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/cache.h"
#include "endpoint.h"

/*
 * Per-CPU cache of endpoint_lookup(), for the hook that sees every packet a pod sends.
 */

/* A cached endpoint. */
struct sl_ep_cache_slot {
	struct sl_cache_stamp stamp;
	__u8 ip[16];
	struct sl_endpoint ep;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SL_CACHE_SLOTS);
	__type(key, __u32);
	__type(value, struct sl_ep_cache_slot);
} sl_ep_cache SEC(".maps");

/*
 * Reads the endpoint of ip into slot. A function of its own, away from the packets that do not need
 * it.
 */
static __noinline bool sl_ep_cache_add(const __u8 *ip, struct sl_ep_cache_slot *slot, __u64 now)
{
	__u64 epoch = cache_epoch();
	struct sl_endpoint *ep = endpoint_lookup(ip);

	if (!ep) {
		if (addr_equal(slot->ip, ip))
			slot->stamp.until = 0;
		return false;
	}
	addr_copy(slot->ip, ip);
	slot->ep = *ep;
	slot->stamp.epoch = epoch;
	slot->stamp.until = now + SL_CACHE_TTL;
	return true;
}

/* endpoint_lookup() through the cache. */
static __always_inline struct sl_endpoint *endpoint_cached(const __u8 *ip, __u64 now)
{
	__u32 i = (ip[15] ^ ip[13]) & (SL_CACHE_SLOTS - 1);
	struct sl_ep_cache_slot *slot = bpf_map_lookup_elem(&sl_ep_cache, &i);

	if (unlikely(!slot))
		return NULL;
	if (likely(cache_valid(&slot->stamp, now) && addr_equal(slot->ip, ip)) || sl_ep_cache_add(ip, slot, now))
		return &slot->ep;
	return NULL;
}
