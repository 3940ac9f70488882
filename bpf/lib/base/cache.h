/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "time.h"

/*
 * Per-CPU caches of map lookups. A lookup in a hash table costs four calls and as many cold cache
 * lines; a cached copy costs one array lookup. The loader invalidates all copies by writing another
 * epoch, and each copy expires by itself after SL_CACHE_TTL.
 */

/*
 * Changes after every change of sl_hostports and sl_endpoints. A copy of an earlier epoch is
 * invalid. Written by the loader only.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_cache_epoch SEC(".maps");

/*
 * Cache lifetime. Bounds staleness if a writer died before bumping the epoch, or the pod's device
 * vanished.
 */
#define SL_CACHE_TTL (10 * NSEC_PER_MSEC)

/* Slots of a program on each CPU. Keys with the same hash share one slot. */
#define SL_CACHE_SLOTS 256

/* Epoch and expiry of a cached copy. */
struct sl_cache_stamp {
	__u64 epoch;
	__u64 until; /* clock_now() at which the copy expires; 0: expired */
};

/* Read the epoch before the data: a change in between belongs to a later epoch. */
static __always_inline __u64 cache_epoch(void)
{
	__u32 zero = 0;
	volatile __u64 *e = bpf_map_lookup_elem(&sl_cache_epoch, &zero);

	return e ? *e : 0;
}

static __always_inline bool cache_valid(const struct sl_cache_stamp *f, __u64 now)
{
	return now < f->until && f->epoch == cache_epoch();
}
