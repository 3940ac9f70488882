/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/lpm.h"

/*
 * The denylist: networks from which nothing may come in.
 */

/*
 * Networks from which nothing may come in. The loader makes and removes entries. The value counts
 * dropped packets (atomic adds from all CPUs).
 */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct sl_cidr);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_denylist SEC(".maps");

/* Is the source in the denylist? If so, counts the packet there. */
static __always_inline bool denylist_match(struct sl_cidr *source)
{
	__u64 *hits = lpm_lookup_in_family(&sl_denylist, source, &source->prefix_len, source->ip);

	if (unlikely(hits))
		__sync_fetch_and_add(hits, 1);
	return hits != NULL;
}
