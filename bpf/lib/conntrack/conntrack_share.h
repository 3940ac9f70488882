/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "conntrack_table.h"

/*
 * Shares of the tables of connections (docs/dev/adr/0025-conntrack-shares.md).
 *
 * An entry gets into sl_ct only with a place. A place belongs to the attachment of its entry, and is
 * free again when the entry has gone or has expired: the next search that comes by takes it. So the
 * counts of places per attachment need no clock and no daemon. If all places that a connection may take
 * are in use, the attachment with the most of them gives one up. If that is the attachment itself, the
 * connection stays unassured.
 *
 * Connections that begin take places in sl_ct_unassured in the same way. There the attachment with the
 * most gives one up even if that is the attachment itself: of a flood the oldest connections go.
 */

/*
 * The first cfg_ct_places are in sl_ct: three quarters for TCP, one for all else. The cfg_ct_pending behind
 * them are in sl_ct_unassured, one for an entry and its reverse entry.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct sl_ct_place);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_ct_places SEC(".maps");

/* How many places each attachment holds. Made by the programs; those of attachments that have gone are evicted. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct sl_ct_share_key);
	__type(value, struct sl_ct_share);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_ct_shares SEC(".maps");

/* Written from every CPU: a connection more or less does not matter. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sl_ct_turnover);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_ct_turnover SEC(".maps");

/* Places that one connection may take. With 85 % in use, all 32 are taken once in 180. */
#define SL_CT_TRIES 32
/*
 * As many are enough for one that begins, if an attachment is found that has at least as many places as
 * its own. Among 8 is the holder of half of all places, but for once in 256.
 */
#define SL_CT_TRIES_PENDING 8
#define SL_CT_NO_PLACE 0xffffffffU
/* How long an attachment that was refused gets no place, and opens no connection: a search costs microseconds. */
#define SL_CT_REFUSAL NSEC_PER_SEC
#define SL_CT_TURNOVER_WINDOW (60 * NSEC_PER_SEC)

static __always_inline __u32 ct_kind(__u8 proto, __u32 flags)
{
	return (flags & SL_CT_POD_OPENED ? SL_CT_KIND_POD_OPENED : 0) | (proto == IPPROTO_TCP ? 0 : SL_CT_KIND_OTHER);
}

/* Where the places of a tuple are: a multiplicative hash (Knuth, 6.4) that others cannot predict. */
static __always_inline void ct_place_hash(struct sl_ct_search *q, const struct sl_tuple *t)
{
	const __u64 *w = (const __u64 *)t;
	__u64 h = cfg_snat_secret;
	__u32 i;

#pragma unroll
	for (i = 0; i < sizeof(*t) / sizeof(*w); i++) {
		h = (h ^ w[i]) * 0x9e3779b97f4a7c15ULL;
		h ^= h >> 32;
	}
	q->hash = (__u32)h;
	q->step = (__u32)(h >> 32) | 1;
}

/* The entry under q->key in the table that the kind has its places in. */
static __always_inline struct sl_ct_entry *ct_of_place(const struct sl_ct_search *q)
{
	if (q->mine.kind & SL_CT_KIND_PENDING)
		return bpf_map_lookup_elem(&sl_ct_unassured, &q->key);
	return bpf_map_lookup_elem(&sl_ct, &q->key);
}

/* Does the entry ct, under q->key, keep its place? A reverse entry does as long as its entry is live. */
static __always_inline bool ct_keeps_place(const struct sl_ct_search *q, const struct sl_ct_entry *ct)
{
	if (!(ct->flags & SL_CT_REVERSE))
		return ct_is_live(&q->key, ct, q->now);
	ct = bpf_map_lookup_elem(&sl_ct, &ct->other);
	return ct && ct_is_live(&q->key, ct, q->now) && tuple_equal(&ct->other, &q->key);
}

/*
 * Takes the place from the holder that the search has seen. False: another CPU was faster.
 * in: s->claim, q->mine, ->theirs, ->change
 */
static __always_inline bool ct_take_place(struct sl_ct_scratch *s, struct sl_ct_place *place)
{
	struct sl_ct_search *q = &s->search;
	struct sl_ct_share *share;
	bool same;

	bpf_spin_lock(&place->lock);
	same = place->change == (__u16)q->change;
	if (same) {
		place->change++;
		place->kind = (__u16)q->mine.kind;
		place->owner = q->mine.owner;
		place->key = s->claim;
	}
	bpf_spin_unlock(&place->lock);
	if (!same)
		return false;
	if (q->key.proto) {
		share = bpf_map_lookup_elem(&sl_ct_shares, &q->theirs);
		if (share)
			__sync_fetch_and_add(&share->held, -1);
	}
	share = bpf_map_lookup_elem(&sl_ct_shares, &q->mine);
	if (share)
		__sync_fetch_and_add(&share->held, 1);
	return true;
}

/*
 * Goes on to the next place of the search, and takes it if it is free. Returns 1 if the
 * claimed entry has a place now, else 0.
 * A function of its own: the verifier follows it once, and not once for each try.
 * in: ct_scratch()->claim, ->search.mine, .hash, .step, .first, .count, .most, .victim, .oldest
 * out: ->search.hash, .index, .key, .theirs, .change, .most, .victim, .oldest
 */
__noinline int sl_ct_try_place(void)
{
	struct sl_ct_scratch *s = ct_scratch();
	struct sl_ct_search *q;
	struct sl_ct_place *place;
	struct sl_ct_entry *ct;
	struct sl_ct_share *share;
	bool replaced;

	if (!s)
		return 0;
	q = &s->search;
	q->index = q->count ? q->first + q->hash % q->count : 0;
	q->hash += q->step;
	place = bpf_map_lookup_elem(&sl_ct_places, &q->index);
	if (!place)
		return 0;
	q->change = place->change;
	q->theirs.owner = place->owner;
	q->theirs.kind = place->kind;
	q->key = place->key;
	/* The place of an entry that was replaced: perhaps one of another attachment. */
	replaced = tuple_equal(&q->key, &s->claim);
	if (replaced && q->theirs.owner == q->mine.owner && q->theirs.kind == q->mine.kind)
		return 1;
	if (q->key.proto && !replaced) {
		ct = ct_of_place(q);
		q->seen = ct ? ct->last_seen : 0;
		if (ct && ct_keeps_place(q, ct)) {
			share = bpf_map_lookup_elem(&sl_ct_shares, &q->theirs);
			if (share && (share->held > q->most || (share->held == q->most && q->seen < q->oldest))) {
				q->most = share->held;
				q->victim = q->index;
				q->oldest = q->seen;
			}
			return 0;
		}
	}
	return ct_take_place(s, place);
}

/* Deletes an unassured entry, and the other half of its connection. */
static __always_inline void ct_evict_pending(const struct sl_tuple *key, const struct sl_ct_entry *ct)
{
	struct sl_ct_entry *partner = bpf_map_lookup_elem(&sl_ct_unassured, &ct->other);

	if (partner && tuple_equal(&partner->other, key))
		bpf_map_delete_elem(&sl_ct_unassured, &ct->other);
	bpf_map_delete_elem(&sl_ct_unassured, key);
}

/* Deletes the connection at the place q->victim, and takes the place. */
static __always_inline int ct_evict_place(struct sl_ct_scratch *s)
{
	struct sl_ct_search *q = &s->search;
	struct sl_ct_entry *ct, *partner;
	struct sl_ct_place *place = bpf_map_lookup_elem(&sl_ct_places, &q->victim);

	if (!place)
		return 0;
	q->change = place->change;
	q->theirs.owner = place->owner;
	q->theirs.kind = place->kind;
	q->key = place->key;
	ct = ct_of_place(q);
	if (ct && (q->mine.kind & SL_CT_KIND_PENDING)) {
		ct_evict_pending(&q->key, ct);
	} else if (ct) {
		partner = bpf_map_lookup_elem(&sl_ct, &ct->other);
		if (partner && tuple_equal(&partner->other, &q->key))
			bpf_map_delete_elem(&sl_ct, &ct->other);
		if (!bpf_map_delete_elem(&sl_ct, &q->key))
			sl_ct_count(SL_CT_COUNT_EVICTED);
	}
	return ct_take_place(s, place);
}

/*
 * Gets a place for the entry that will be inserted under s->claim. kind: enum sl_ct_kind. Returns 1 if
 * it has one, else 0: the table is full, and no other attachment has more of it than this one.
 * A function of its own: it is verified once, and the established path stays short.
 * in: ct_scratch()->claim, ->entry.owner  out: ->search
 */
__noinline int sl_ct_claim(__u32 kind)
{
	struct sl_ct_scratch *s = ct_scratch();
	struct sl_ct_search *q;
	struct sl_ct_share *mine;
	__u32 i;

	if (!s)
		return 0;
	if (!cfg_ct_pending && (kind & SL_CT_KIND_PENDING)) /* the map is from an older build */
		return 1;
	q = &s->search;
	q->now = clock_now();
	q->mine.owner = s->entry.owner;
	q->mine.kind = kind;
	mine = bpf_map_lookup_elem(&sl_ct_shares, &q->mine);
	if (!mine) {
		q->fresh.held = 0;
		q->fresh.refused_until = 0;
		bpf_map_update_elem(&sl_ct_shares, &q->mine, &q->fresh, BPF_NOEXIST);
		mine = bpf_map_lookup_elem(&sl_ct_shares, &q->mine);
		if (!mine)
			return 0;
	}
	if (q->now < mine->refused_until)
		return 0;
	q->fresh.held = mine->held; /* not on the stack, which is full on old kernels */
	q->most = mine->held;
	q->victim = SL_CT_NO_PLACE;
	q->oldest = 0;
	q->first = 0;
	q->count = cfg_ct_places - cfg_ct_places / 4;
	if (kind & SL_CT_KIND_PENDING) {
		q->most = 0; /* any, and this attachment too: one that begins is not refused */
		q->first = cfg_ct_places;
		q->count = cfg_ct_pending;
	} else if (kind & SL_CT_KIND_OTHER) {
		q->first = q->count;
		q->count = cfg_ct_places / 4;
	}
	ct_place_hash(q, &s->claim);
	for (i = 0; i < SL_CT_TRIES; i++) {
		if ((q->mine.kind & SL_CT_KIND_PENDING) && i >= SL_CT_TRIES_PENDING && q->most >= q->fresh.held)
			break;
		if (sl_ct_try_place())
			return 1;
	}
	/* One that begins goes without a place where another CPU was faster: the LRU is the net. */
	if (q->victim != SL_CT_NO_PLACE)
		return ct_evict_place(s) || (q->mine.kind & SL_CT_KIND_PENDING);
	if (q->mine.kind & SL_CT_KIND_PENDING)
		return 1;
	mine = bpf_map_lookup_elem(&sl_ct_shares, &q->mine);
	if (mine)
		mine->refused_until = q->now + SL_CT_REFUSAL;
	return 0;
}

/*
 * Counts a connection that opens. Returns 1 if its attachment has been refused a place, else 0. kind:
 * enum sl_ct_kind.
 * in: ct_scratch()->entry.owner
 */
__noinline int sl_ct_opening(__u32 kind)
{
	struct sl_ct_scratch *s = ct_scratch();
	struct sl_ct_turnover *t;
	struct sl_ct_share *mine;
	struct sl_ct_search *q;

	if (!s)
		return 0;
	q = &s->search;
	q->now = clock_now();
	q->index = 0;
	t = bpf_map_lookup_elem(&sl_ct_turnover, &q->index);
	if (t) {
		if (q->now - t->since >= SL_CT_TURNOVER_WINDOW) {
			t->since = q->now;
			t->count = 0;
		}
		__sync_fetch_and_add(&t->count, 1);
		if (t->count >= cfg_ct_turnover)
			t->busy_until = q->now + SL_TIMEOUT_REPLIED;
	}
	q->mine.owner = s->entry.owner;
	q->mine.kind = kind;
	mine = bpf_map_lookup_elem(&sl_ct_shares, &q->mine);
	return mine && q->now < mine->refused_until;
}

/* May the entry of a connection that is not over be missing? Only after many others have opened. */
static __always_inline bool ct_may_be_evicted(__u64 now)
{
	__u32 zero = 0;
	struct sl_ct_turnover *t = bpf_map_lookup_elem(&sl_ct_turnover, &zero);

	return t && now < t->busy_until;
}
