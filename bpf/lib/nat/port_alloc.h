/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/config.h"
#include "../base/tuple.h"

/*
 * Where the datapath looks for a port that it may give to a connection: the sequence of candidates, and
 * the place where the search starts.
 */

/*
 * Attempts per port range. With half of a range in use toward one destination, all 16 miss once in
 * 65,000.
 */
#define SL_SNAT_ATTEMPTS 16

/* Below it are the ports that only a privileged process may take. */
#define SL_PRIVILEGED_PORTS 1024

/*
 * The ports that may stand in for a privileged one: another privileged one, since that is what the
 * server asks for (NFS with "secure"). Two classes, as netfilter's NAT has them.
 */
#define SL_SNAT_LOW_MIN 1
#define SL_SNAT_LOW_MAX 511
#define SL_SNAT_HIGH_MIN 600
#define SL_SNAT_HIGH_MAX 1023

/*
 * Port of attempt i: the pod's own first, then places in the first range, then in the second. For a
 * privileged port its class is the first range, and the first range the second. hash
 * says where the search starts, and how far the places are apart. Neighbours would not do: the
 * ports in use form runs, which grow. A step of at most a sixteenth of the range keeps all places of
 * it different.
 */
static __always_inline __u16 snat_candidate(__u16 preferred, __u32 i, __u64 hash)
{
	__u32 min = cfg_snat_min1, max = cfg_snat_max1, size, step;

	if (i == 0)
		return preferred;
	if (preferred && preferred < SL_PRIVILEGED_PORTS) {
		if (i <= SL_SNAT_ATTEMPTS) {
			min = preferred <= SL_SNAT_LOW_MAX ? SL_SNAT_LOW_MIN : SL_SNAT_HIGH_MIN;
			max = preferred <= SL_SNAT_LOW_MAX ? SL_SNAT_LOW_MAX : SL_SNAT_HIGH_MAX;
		}
	} else if (i > SL_SNAT_ATTEMPTS && cfg_snat_max2) {
		min = cfg_snat_min2;
		max = cfg_snat_max2;
	}
	size = max - min + 1;
	step = size < 2 * SL_SNAT_ATTEMPTS ? 1 : 1 + (__u32)(hash >> 32) % (size / SL_SNAT_ATTEMPTS);
	return (__u16)(min + ((__u32)hash % size + i * step) % size);
}

static __always_inline bool snat_in_range(__u16 port)
{
	return (port >= cfg_snat_min1 && port <= cfg_snat_max1) ||
	       (cfg_snat_max2 && port >= cfg_snat_min2 && port <= cfg_snat_max2);
}

/*
 * Where snat_candidate() looks for a port of this connection: always at the same places while the
 * programs stay loaded. A multiplicative hash (Knuth, 6.4) over the words of the tuple. Without a
 * secret, as in tests, it is at random and in steps of one.
 */
static __always_inline __u64 port_alloc_hash(const struct sl_tuple *t)
{
	const __u64 *w = (const __u64 *)t;
	__u64 h = cfg_snat_secret;
	__u32 i;

	if (!cfg_snat_secret)
		return bpf_get_prandom_u32();
#pragma unroll
	for (i = 0; i < sizeof(*t) / sizeof(*w); i++) {
		h = (h ^ w[i]) * 0x9e3779b97f4a7c15ULL;
		h ^= h >> 32;
	}
	return h;
}
