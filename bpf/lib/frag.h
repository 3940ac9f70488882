/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "frag_maps.h"
#include "odd.h"

/*
 * Fragments. The first one has the ports, and says what becomes of the rest, of which
 * the addresses alone are left to change. A later fragment that comes before the
 * first, or without it, finds nothing: docs/design/slow-packets.md says what then.
 */

/* How long a receiver may wait for the rest: Linux' ip_frag_time, RFC 8200 4.5 has 60. */
#define SL_FRAG_HOLD (30 * 1000000000ULL)

static __always_inline void __frag_key(struct sl_frag_key *key, const struct sl_head *h, enum sl_dir dir)
{
	__builtin_memset(key, 0, sizeof(*key));
	addr_copy(key->local, h->p.tuple.local);
	addr_copy(key->remote, h->p.tuple.remote);
	key->id = h->frag_id;
	key->proto = h->frag_proto;
	key->dir = (__u8)dir;
}

/* Notes that the fragments of h, the first of a datagram, get the address to. Full or not, the LRU takes it. */
static __always_inline void frag_note(const struct sl_head *h, enum sl_dir dir, const __u8 *to, __u64 now)
{
	struct sl_frag f = {.until = now + SL_FRAG_HOLD};
	struct sl_frag_key key;

	__frag_key(&key, h, dir);
	addr_copy(f.to, to);
	bpf_map_update_elem(&sl_frags, &key, &f, BPF_ANY);
}

/* The datagram of h, its first fragment, is nobody's of ours: an older one may have had its identification (RFC 4963). */
static __always_inline void frag_forget(const struct sl_head *h, enum sl_dir dir)
{
	struct sl_frag_key key;

	__frag_key(&key, h, dir);
	bpf_map_delete_elem(&sl_frags, &key);
}

static __always_inline struct sl_frag *frag_lookup(const struct sl_head *h, enum sl_dir dir, __u64 now)
{
	struct sl_frag_key key;
	struct sl_frag *f;

	__frag_key(&key, h, dir);
	f = bpf_map_lookup_elem(&sl_frags, &key);
	return f && now < f->until ? f : NULL;
}
