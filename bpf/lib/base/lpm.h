/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "addr.h"

/*
 * Lookup in longest-prefix-match tries, for both families in one trie.
 */

/* LPM key of the destinations that are not masqueraded. */
struct sl_cidr {
	__u32 prefix_len; /* 0-128, host byte order; 96 + n for IPv4 */
	__u8 ip[16];
};

/*
 * The value of the longest network in a trie that has key->ip, of which all bits are asked for; NULL: none has. prefix_len is that of
 * the key, its first member. A short network of IPv6, as ::/0 or ::/8, has the v4-mapped addresses too, but does not mean them: for an
 * IPv4 address only what is found by more than the bits that all of them share counts.
 */
static __always_inline void *lpm_lookup(void *trie, void *key, __u32 *prefix_len, const __u8 *ip)
{
	void *found = bpf_map_lookup_elem(trie, key);

	if (!found || !addr_is_v4(ip))
		return found;
	*prefix_len -= 128 - 95;
	return bpf_map_lookup_elem(trie, key) == found ? NULL : found;
}
