/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "addr.h"

/*
 * Lookup in longest-prefix-match tries, for both families in one trie.
 */

/* LPM key of a network. */
struct sl_cidr {
	__u32 prefix_len; /* 0-128, host byte order; 96 + n for IPv4 */
	__u8 ip[16];
};

/*
 * LPM lookup of a full address: all 128 bits of key->ip. NULL if no prefix matches. prefix_len is
 * the key's first member. IPv6 prefixes shorter than /96 never match a v4-mapped address.
 */
static __always_inline void *lpm_lookup(void *trie, void *key, __u32 *prefix_len, const __u8 *ip)
{
	void *found = bpf_map_lookup_elem(trie, key);

	if (!found || !addr_is_v4(ip))
		return found;
	*prefix_len -= 128 - 95;
	return bpf_map_lookup_elem(trie, key) == found ? NULL : found;
}
