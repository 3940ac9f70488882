/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "netfilter.h"

/*
 * The entry of netfilter's connection table that translates a connection (SL_CT_NF_NAT): a packet takes the fast path only while
 * netfilter still has it.
 */

/* Bits of nf_conn.status (include/uapi/linux/netfilter/nf_conntrack_common.h): in the table, and taken out of it. */
#define SL_IPS_CONFIRMED (1UL << 3)
#define SL_IPS_DYING (1UL << 9)

/* A hash of the tuples of both directions: an entry that has another one translates another connection, or in another way. */
static __always_inline __u32 nf_hash(const struct sl_nf_conn *nf)
{
	__u64 hash = 0;
	int i;

#pragma unroll
	for (i = 0; i < 10; i++) {
		const __u64 *words = (const __u64 *)&nf->tuple[i / 5].src;

		hash = (hash ^ words[i % 5]) * 0x9e3779b97f4a7c15ULL;
		hash ^= hash >> 32;
	}
	return (__u32)hash;
}

/* Reads netfilter's entry at the address nfct. 0 on success. A function of its own, for the stack of its callers. */
static __noinline int sl_nf_read(unsigned long nfct, struct sl_ct_scratch *s)
{
	if (bpf_probe_read_kernel(&s->nf, sizeof(s->nf), (void *)(nfct + cfg_nf_tuples_offset)))
		return -1;
	s->nf_hash = nf_hash(&s->nf);
	return 0;
}

/* Notes the entry that sl_nf_translated() has read as the one that translates ct. Behind another one the connection is confirmed again. */
static __always_inline void nf_note_conn(struct sl_ct_entry *ct, const struct sl_ct_scratch *s)
{
	if (ct->nf_conn == s->nf_conn && ct->nf_hash == s->nf_hash)
		return;
	ct->nf_conn = s->nf_conn;
	ct->nf_hash = s->nf_hash;
	ct->flags &= ~SL_CT_SEEN_LAST;
}
