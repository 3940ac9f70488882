/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "parse_full.h"
#include "../base/time.h"

/*
 * Fragments. Only the first fragment of a datagram has ports. It notes here which address the datagram
 * got, and the later fragments get the same one. A later fragment that comes before the first finds
 * nothing; what happens then is in the callers.
 */

/* A fragmented datagram at one hook. */
struct sl_frag_key {
	__u8 local[16];
	__u8 remote[16];
	__be32 id;
	__u8 proto; /* IPv6: the fragment header's number, since only first fragments must name the real one (RFC 8200 4.5) */
	__u8 dir; /* enum sl_dir; at a pod's device plus 2, noted by its policy plus 4 */
	__u8 pad[2];
};
_Static_assert(sizeof(struct sl_frag_key) == 40, "sl_frag_key is a map key: no hidden padding");

/* What its first fragment got. */
struct sl_frag {
	__u64 until; /* clock_now() at which the entry expires */
	__u8 to[16]; /* the new local address, at a pod's device the new remote one; the old one if nothing was translated */
};
_Static_assert(sizeof(struct sl_frag) == 24, "sl_frag is a map value: no hidden padding");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct sl_frag_key);
	__type(value, struct sl_frag);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_frags SEC(".maps");

/* How long a receiver waits for the other fragments: Linux' ip_frag_time. RFC 8200 4.5 has 60 s. */
#define SL_FRAG_TTL (30 * NSEC_PER_SEC)

static __always_inline void frag_make_key(struct sl_frag_key *key, const struct sl_ip_pkt *pkt, enum sl_dir dir)
{
	__builtin_memset(key, 0, sizeof(*key));
	addr_copy(key->local, pkt->p.tuple.local);
	addr_copy(key->remote, pkt->p.tuple.remote);
	key->id = pkt->frag_id;
	key->proto = pkt->frag_proto;
	key->dir = (__u8)dir;
}

/* Notes that the later fragments of pkt, a first fragment, get the address to. */
static __always_inline void frag_note(const struct sl_ip_pkt *pkt, enum sl_dir dir, const __u8 *to, __u64 now)
{
	struct sl_frag f = {.until = now + SL_FRAG_TTL};
	struct sl_frag_key key;

	frag_make_key(&key, pkt, dir);
	addr_copy(f.to, to);
	bpf_map_update_elem(&sl_frags, &key, &f, BPF_ANY);
}

/*
 * pkt, a first fragment, belongs to no connection. Deletes an old entry with the same
 * identification (RFC 4963).
 */
static __always_inline void frag_forget(const struct sl_ip_pkt *pkt, enum sl_dir dir)
{
	struct sl_frag_key key;

	frag_make_key(&key, pkt, dir);
	bpf_map_delete_elem(&sl_frags, &key);
}

static __always_inline struct sl_frag *frag_lookup(const struct sl_ip_pkt *pkt, enum sl_dir dir, __u64 now)
{
	struct sl_frag_key key;
	struct sl_frag *f;

	frag_make_key(&key, pkt, dir);
	f = bpf_map_lookup_elem(&sl_frags, &key);
	return f && now < f->until ? f : NULL;
}
