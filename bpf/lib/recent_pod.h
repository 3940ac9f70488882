/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "endpoint.h"
#include "recent.h"

/* An endpoint as a packet found it. */
struct sl_recent_pod {
	struct sl_freshness fresh;
	__u8 ip[16];
	struct sl_endpoint ep;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SL_RECENT);
	__type(key, __u32);
	__type(value, struct sl_recent_pod);
} sl_recent_pods SEC(".maps");

/* A function of its own, away from the packets that need none of it. */
static __noinline bool sl_read_pod(const __u8 *ip, struct sl_recent_pod *r, __u64 now)
{
	__u64 epoch = recent_epoch();
	struct sl_endpoint *ep = endpoint_lookup(ip);

	if (!ep) {
		if (addr_equal(r->ip, ip))
			r->fresh.until = 0;
		return false;
	}
	addr_copy(r->ip, ip);
	r->ep = *ep;
	r->fresh.epoch = epoch;
	r->fresh.until = now + SL_RECENT_HOLD;
	return true;
}

/* endpoint_lookup(), for a hook that sees every packet of a pod. */
static __always_inline struct sl_endpoint *recent_pod(const __u8 *ip, __u64 now)
{
	__u32 i = (ip[15] ^ ip[13]) & (SL_RECENT - 1);
	struct sl_recent_pod *r = bpf_map_lookup_elem(&sl_recent_pods, &i);

	if (unlikely(!r))
		return NULL;
	if (likely(recent_fresh(&r->fresh, now) && addr_equal(r->ip, ip)) || sl_read_pod(ip, r, now))
		return &r->ep;
	return NULL;
}
