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
_Static_assert(sizeof(struct sl_cidr) == 20, "sl_cidr is a map key: no hidden padding");

/*
 * Looks for the network of an address, all 128 bits of it, in its family: an IPv6 network shorter than
 * /96 has no v4-mapped address. NULL if there is none. prefix_len and ip are members of key, and
 * prefix_len, its first one, is as before afterwards.
 */
static __always_inline void *lpm_lookup_in_family(void *trie, void *key, __u32 *prefix_len, const __u8 *ip)
{
	void *found = bpf_map_lookup_elem(trie, key), *short6;

	if (!found || !addr_is_v4(ip))
		return found;
	*prefix_len -= 128 - 95;
	short6 = bpf_map_lookup_elem(trie, key);
	*prefix_len += 128 - 95;
	return short6 == found ? NULL : found;
}
