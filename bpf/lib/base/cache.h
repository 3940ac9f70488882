/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "time.h"

/*
 * Per-CPU caches of map lookups. A lookup in a hash table costs four calls and as many cold cache
 * lines; a cached copy costs one array lookup. The loader invalidates all copies by writing another
 * epoch, and each copy expires by itself after SL_CACHE_TTL.
 */

/*
 * Another one after every change of sl_hostports and sl_endpoints: what was read before is not remembered any longer.
 * Written by the loader only.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_cache_epoch SEC(".maps");

/* Longest time for which nobody looks whether a pod's device is still there, or learns of a change whose writer was killed before it told of it. */
#define SL_CACHE_TTL (10 * NSEC_PER_MSEC)

/* Copies that a program keeps on a CPU, one for all that share its number. */
#define SL_CACHE_SLOTS 256

/* When something was read, and how long it may be believed. */
struct sl_cache_stamp {
	__u64 epoch;
	__u64 until; /* clock_now() from which on it has to be read again; 0: at once */
};

/* Read before what is copied: what changes meanwhile is of a later one. */
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
