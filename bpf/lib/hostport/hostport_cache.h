/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/cache.h"
#include "../endpoint/ifindex_exists.h"
#include "hostport.h"
#include "../packet/parse.h"

/*
 * Per-CPU cache of hostport_lookup() and of the pod behind the mapping, for packets from outside.
 */

/* A cached mapping. */
struct sl_hp_cache_slot {
	struct sl_cache_stamp stamp;
	struct sl_hostport_key dst; /* destination of the packet; proto 0: the slot is empty */
	__u32 match;		    /* enum sl_hp_match */
	struct sl_hostport hp;
	struct sl_endpoint ep; /* of hp.ip */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SL_CACHE_SLOTS);
	__type(key, __u32);
	__type(value, struct sl_hp_cache_slot);
} sl_hp_cache SEC(".maps");

static __always_inline bool hostport_slot_matches(const struct sl_hp_cache_slot *slot, const struct sl_tuple *t)
{
	return slot->dst.port == t->local_port && slot->dst.proto == t->proto && addr_equal(slot->dst.ip, t->local);
}

/*
 * Reads the mapping of t and its pod into slot. False: there is none. A function of its own, away
 * from the packets that do not need it.
 */
static __noinline bool sl_hp_cache_add(const struct sl_tuple *t, __u32 ifindex, struct sl_hp_cache_slot *slot,
				       __u64 now)
{
	__u64 epoch = cache_epoch();
	struct sl_endpoint *ep;
	struct sl_hostport *hp;
	__u32 match;

	/* Keep the mapping of another port: a packet for no port must not evict it. */
	if (hostport_slot_matches(slot, t))
		slot->dst.proto = 0;
	hp = hostport_lookup(t, ifindex, &match);
	if (!hp)
		return false;
	ep = endpoint_lookup(hp->ip);
	if (!ep || ep->owner != hp->owner)
		return false;
	addr_copy(slot->dst.ip, t->local);
	slot->dst.port = t->local_port;
	slot->dst.proto = t->proto;
	slot->match = match;
	slot->hp = *hp;
	slot->ep = *ep;
	slot->stamp.epoch = epoch;
	/* Another packet may not meet the conditions. */
	slot->stamp.until = match & SL_HP_MATCH_CONDITIONAL ? 0 : now + SL_CACHE_TTL;
	return true;
}

static __always_inline struct sl_hp_cache_slot *hostport_cache_slot(const struct sl_tuple *t)
{
	/* Ports in use together differ in the low bits of one byte or the other. */
	__u32 i = (t->local_port ^ t->local_port >> 8) & (SL_CACHE_SLOTS - 1);

	return bpf_map_lookup_elem(&sl_hp_cache, &i);
}

/* The mapping for a packet from outside, and the pod behind it. NULL: none. */
static __always_inline struct sl_hp_cache_slot *hostport_cached(struct __sk_buff *skb, const struct sl_pkt *p,
								__u64 now)
{
	struct sl_hp_cache_slot *slot = hostport_cache_slot(&p->tuple);

	if (unlikely(p->echo || !slot))
		return NULL;
	if (likely(cache_valid(&slot->stamp, now) && hostport_slot_matches(slot, &p->tuple)))
		return slot;
	if (!sl_hp_cache_add(&p->tuple, skb->ifindex, slot, now))
		return NULL;
	if (!sl_ifindex_gone(skb, slot->ep.ifindex))
		return slot;
	slot->dst.proto = 0;
	return NULL;
}

/* What hostport_cached() found for the same packet. For callers whose stack has no room to keep it. */
static __always_inline struct sl_hp_cache_slot *hostport_cache_reuse(const struct sl_pkt *p)
{
	struct sl_hp_cache_slot *slot = hostport_cache_slot(&p->tuple);

	return slot && !p->echo && hostport_slot_matches(slot, &p->tuple) ? slot : NULL;
}
