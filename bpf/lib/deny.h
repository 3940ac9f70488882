/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "deny_maps.h"
#include "net.h"

/* Is the source in the deny list? Counts it there if it is. */
static __always_inline bool denied(struct sl_cidr *source)
{
	__u64 *hits = net_find(&sl_deny, source, &source->prefix_len, source->ip);

	if (unlikely(hits))
		__sync_fetch_and_add(hits, 1);
	return hits != NULL;
}
