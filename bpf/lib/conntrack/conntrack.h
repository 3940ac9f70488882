/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "conntrack_types.h"
#include "../packet/parse.h"
#include "../base/time.h"

/*
 * Connection tracking: lookup, insertion, timeouts and state of conntrack entries. Unanswered
 * connections live in a map of their own, so that a flood of them evicts only its own kind.
 *
 * Flags and times are written without atomics from every CPU: two CPUs may lose each other's bit. The
 * worst outcome is a connection that gets on the fast path one packet later, or that keeps a longer
 * timeout. No translation depends on it: the fields that say how to translate are written once,
 * before the entry is visible to the other hooks. (An atomic or needs kernel 5.12.)
 */

/* Sizes are defaults; the loader overrides them from the node's configuration. */

/* Flows whose two ends have proven to be there. Written by all programs on all CPUs. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 131072);
	__type(key, struct sl_tuple);
	__type(value, struct sl_ct_entry);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_ct SEC(".maps");

/* Half-open and unanswered flows, apart so that a flood only evicts its own kind. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 32768);
	__type(key, struct sl_tuple);
	__type(value, struct sl_ct_entry);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_ct_unassured SEC(".maps");

/* Idle times after which an entry does not exist any more, by what it has seen. */
#define SL_TIMEOUT_TCP_OPENING (60 * NSEC_PER_SEC)
#define SL_TIMEOUT_TCP (86400 * NSEC_PER_SEC)
#define SL_TIMEOUT_TCP_HALF_CLOSED (120 * NSEC_PER_SEC)
#define SL_TIMEOUT_TCP_CLOSED (10 * NSEC_PER_SEC)
#define SL_TIMEOUT_NEW (30 * NSEC_PER_SEC)
#define SL_TIMEOUT_REPLIED (180 * NSEC_PER_SEC)

#define SL_CT_CLOSING (SL_CT_FIN_TX | SL_CT_FIN_RX | SL_CT_RST)
#define SL_CT_NAT (SL_CT_SNAT | SL_CT_DNAT)
/* Kinds of records that have an index. */
#define SL_CT_HAS_REVERSE (SL_CT_SNAT | SL_CT_CLIENT_PORT | SL_CT_HAIRPIN | SL_CT_POD_SNAT)
#define SL_CT_SEEN_LAST (SL_CT_TX_SEEN_LAST | SL_CT_RX_SEEN_LAST)

/* Room for building entries: too big for the stack beside a packet. One program never nests in itself on one CPU. */
struct sl_ct_scratch {
	struct sl_ct_entry entry;
	struct sl_ct_entry reverse;
	struct sl_tuple key;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sl_ct_scratch);
} sl_ct_scratch SEC(".maps");

static __always_inline struct sl_ct_scratch *ct_scratch(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&sl_ct_scratch, &zero);
}

static __always_inline __u64 ct_timeout(__u8 proto, __u32 flags)
{
	if (proto != IPPROTO_TCP)
		return flags & SL_CT_REPLIED ? SL_TIMEOUT_REPLIED : SL_TIMEOUT_NEW;
	if ((flags & SL_CT_RST) || (flags & (SL_CT_FIN_TX | SL_CT_FIN_RX)) == (SL_CT_FIN_TX | SL_CT_FIN_RX))
		return SL_TIMEOUT_TCP_CLOSED;
	if (flags & (SL_CT_FIN_TX | SL_CT_FIN_RX))
		return SL_TIMEOUT_TCP_HALF_CLOSED;
	return flags & SL_CT_ASSURED ? SL_TIMEOUT_TCP : SL_TIMEOUT_TCP_OPENING;
}

/* An index has no life of its own: the record it names decides. */
static __always_inline bool ct_is_live(const struct sl_tuple *key, const struct sl_ct_entry *ct, __u64 now)
{
	return (ct->flags & SL_CT_REVERSE) || now - ct->last_seen < ct_timeout(key->proto, ct->flags) ||
	       /* another CPU may have stamped it after we read the clock */
	       ct->last_seen > now;
}

/* The live entry under key that is not proven. */
static __always_inline struct sl_ct_entry *ct_lookup_unassured(const struct sl_tuple *key, __u64 now)
{
	struct sl_ct_entry *ct = bpf_map_lookup_elem(&sl_ct_unassured, key);

	return ct && ct_is_live(key, ct, now) ? ct : NULL;
}

/* The live entry under key, proven or not. */
static __always_inline struct sl_ct_entry *ct_lookup(const struct sl_tuple *key, __u64 now)
{
	struct sl_ct_entry *ct = bpf_map_lookup_elem(&sl_ct, key);

	return likely(ct && ct_is_live(key, ct, now)) ? ct : ct_lookup_unassured(key, now);
}

/* A live record (not an index) of this owner. */
static __always_inline struct sl_ct_entry *ct_lookup_entry(const struct sl_tuple *key, __u64 owner, __u64 now)
{
	struct sl_ct_entry *ct = ct_lookup(key, now);

	return ct && !(ct->flags & SL_CT_REVERSE) && ct->owner == owner ? ct : NULL;
}

/* Is there an entry under key, be it dead? Tells a flow that has expired from one that the LRU took. */
static __always_inline bool ct_exists(const struct sl_tuple *key)
{
	return bpf_map_lookup_elem(&sl_ct, key) || bpf_map_lookup_elem(&sl_ct_unassured, key);
}

/*
 * Is p a new connection on the tuple of an old one? A SYN on a closing flow, or
 * from the end that did not open it, never refreshes: everything starts anew.
 */
static __always_inline bool ct_is_new_connection(const struct sl_ct_entry *ct, const struct sl_pkt *p, enum sl_dir dir)
{
	bool opener = !(ct->flags & SL_CT_POD_OPENED) == (dir == SL_RX);

	if (likely(!pkt_is_syn(p)))
		return false;
	return !opener || (ct->flags & SL_CT_CLOSING);
}

/*
 * Puts a new entry among the unproven ones, in place of whatever was there, and
 * returns it. Looking it up marks it as used: otherwise an LRU map close to full
 * takes back the entry it has just made.
 */
static __always_inline struct sl_ct_entry *ct_insert(const struct sl_tuple *key, const struct sl_ct_entry *ct)
{
	/* Looking is cheaper than deleting: no lock. */
	if (bpf_map_lookup_elem(&sl_ct, key))
		bpf_map_delete_elem(&sl_ct, key);
	if (bpf_map_update_elem(&sl_ct_unassured, key, ct, BPF_ANY))
		return NULL;
	return bpf_map_lookup_elem(&sl_ct_unassured, key);
}

/* Fills f as a fresh record; the caller adds what it knows of translation. */
static __always_inline void ct_init(struct sl_ct_entry *ct, __u64 owner, __u32 flags, __u64 now)
{
	__builtin_memset(ct, 0, sizeof(*ct));
	ct->flags = flags;
	ct->owner = owner;
	ct->created = now;
	ct->last_seen = now;
}

/* What an index keeps of its record, to make it anew. */
#define SL_CT_REVERSE_KEEPS                                                                                            \
	(SL_CT_HAS_REVERSE | SL_CT_DNAT | SL_CT_DNAT_ANYADDR | SL_CT_WANTS_POD_SNAT | SL_CT_POD_OPENED | SL_CT_ASSURED)

/* Fills idx as the index that leads from a flow's outside tuple to its record under key. */
static __always_inline void ct_init_reverse(struct sl_ct_entry *reverse, const struct sl_tuple *key,
					    const struct sl_ct_entry *entry)
{
	__builtin_memset(reverse, 0, sizeof(*reverse));
	reverse->other = *key;
	reverse->flags = SL_CT_REVERSE | (entry->flags & SL_CT_REVERSE_KEEPS);
	reverse->hostport_generation = entry->hostport_generation;
	reverse->owner = entry->owner;
	reverse->created = entry->created;
	reverse->last_seen = entry->last_seen;
}

/* Makes sure that the outside tuple of a flow with an index leads back to it. False: it leads to another flow. */
static __always_inline bool ct_ensure_reverse(const struct sl_tuple *key, const struct sl_ct_entry *entry)
{
	struct sl_ct_scratch *s;
	struct sl_ct_entry *reverse;

	reverse = bpf_map_lookup_elem(&sl_ct, &entry->other);
	if (!reverse)
		reverse = bpf_map_lookup_elem(&sl_ct_unassured, &entry->other);
	if (reverse)
		return (reverse->flags & SL_CT_REVERSE) && tuple_equal(&reverse->other, key);
	s = ct_scratch();
	if (!s)
		return false;
	ct_init_reverse(&s->reverse, key, entry);
	if (entry->flags & SL_CT_ASSURED)
		bpf_map_update_elem(&sl_ct, &entry->other, &s->reverse, BPF_NOEXIST);
	else
		bpf_map_update_elem(&sl_ct_unassured, &entry->other, &s->reverse, BPF_NOEXIST);
	return true;
}

/* Rebuilds a record that the LRU took from the index that is left, so that half a flow is never a black hole. */
static __always_inline struct sl_ct_entry *ct_restore(const struct sl_tuple *outside, const struct sl_ct_entry *reverse,
						      __u64 now)
{
	struct sl_ct_scratch *s = ct_scratch();

	if (!s)
		return NULL;
	ct_init(&s->entry, reverse->owner, (reverse->flags & ~(SL_CT_REVERSE | SL_CT_ASSURED)) | SL_CT_REPLIED, now);
	s->entry.other = *outside;
	s->entry.hostport_generation = reverse->hostport_generation;
	s->key = reverse->other;
	return ct_insert(&s->key, &s->entry);
}

/* Moves a flow (and its index) to the proven ones. Returns the entry to go on with. */
static __always_inline struct sl_ct_entry *ct_assure(const struct sl_tuple *key, struct sl_ct_entry *ct)
{
	struct sl_ct_scratch *s = ct_scratch();
	struct sl_ct_entry *moved;

	if (!s)
		return ct;
	ct->flags |= SL_CT_ASSURED;
	s->entry = *ct;
	if (s->entry.flags & SL_CT_HAS_REVERSE) {
		ct_init_reverse(&s->reverse, key, &s->entry);
		bpf_map_update_elem(&sl_ct, &s->entry.other, &s->reverse, BPF_ANY);
		bpf_map_delete_elem(&sl_ct_unassured, &s->entry.other);
	}
	/* Whoever is second of two CPUs finds the entry there and uses it. */
	bpf_map_update_elem(&sl_ct, key, &s->entry, BPF_NOEXIST);
	moved = bpf_map_lookup_elem(&sl_ct, key);
	if (!moved)
		return ct;
	bpf_map_delete_elem(&sl_ct_unassured, key);
	return moved;
}

/* How long the way out that a packet of a flow took holds for the next ones: less than a queue may hold a packet, many packets of a busy flow. */
#define SL_NEXTHOP_TTL (10 * NSEC_PER_MSEC)

/* Notes how packets of up to len bytes leave by f->out_ifindex: with these link addresses. */
static __always_inline void ct_cache_nexthop(struct sl_ct_entry *ct, const __u8 *dst, const __u8 *src, __u32 len,
					     __u64 now)
{
	__builtin_memcpy(ct->nexthop_dst, dst, ETH_ALEN);
	__builtin_memcpy(ct->nexthop_src, src, ETH_ALEN);
	ct->nexthop_len = len;
	ct->nexthop_valid = SL_NEXTHOP_VALID;
	ct->nexthop_until = now + SL_NEXTHOP_TTL;
}

/*
 * Accounts a packet at the first hook that sees it in its direction. A flow is
 * proven, and moves out of reach of floods, when the pod's own connection is
 * answered, or when a stranger goes on after the answer: a spoofed source never
 * gets that far.
 */
static __always_inline struct sl_ct_entry *ct_update(const struct sl_tuple *key, struct sl_ct_entry *ct,
						     const struct sl_pkt *p, enum sl_dir dir, __u32 len, __u64 now)
{
	bool pod_opened = ct->flags & SL_CT_POD_OPENED;
	bool opener = pod_opened == (dir == SL_TX);
	__u32 flags = ct->flags;
	bool proven;

	proven = pod_opened ? !opener : opener && (flags & SL_CT_REPLIED);
	flags |= dir == SL_TX ? SL_CT_TX_SEEN_FIRST : SL_CT_RX_SEEN_FIRST;
	if (!opener)
		flags |= SL_CT_REPLIED;
	if (p->tcp_flags & SL_TCP_FIN)
		flags |= dir == SL_TX ? SL_CT_FIN_TX : SL_CT_FIN_RX;
	if (p->tcp_flags & SL_TCP_RST)
		flags |= SL_CT_RST;
	else if (p->tcp_flags & SL_TCP_ACK)
		flags &=
			~SL_CT_RST; /* it was not believed: what is said to a closed socket is answered by another one */
	if (unlikely(flags != ct->flags))
		ct->flags = flags;
	ct->last_seen = now;
	if (dir == SL_TX) {
		__sync_fetch_and_add(&ct->tx_packets, 1);
		__sync_fetch_and_add(&ct->tx_bytes, len);
	} else {
		__sync_fetch_and_add(&ct->rx_packets, 1);
		__sync_fetch_and_add(&ct->rx_bytes, len);
	}
	if (proven && unlikely(!(flags & (SL_CT_ASSURED | SL_CT_RST))))
		return ct_assure(key, ct);
	return ct;
}

/*
 * Takes out a hostPort's TCP flow with its last packet (a RST, or what answers
 * the second FIN), once that packet has left us for good. Its memory is used
 * again while it is warm, where dead flows would make every new one cold. What
 * still comes (a FIN sent twice) finds its way without: the mapping leads to the
 * pod. Others stay until they have timed out: a masqueraded flow keeps its port, one with
 * an index both, one to the pod's own address the knowledge that it must not be masqueraded.
 */
static __always_inline void ct_delete_if_closed(const struct sl_tuple *key, const struct sl_ct_entry *ct,
						const struct sl_pkt *p)
{
	__u32 flags = ct->flags;
	bool over = (flags & SL_CT_RST) ||
		    ((flags & SL_CT_FIN_TX) && (flags & SL_CT_FIN_RX) && !(p->tcp_flags & SL_TCP_FIN));

	if (unlikely(over) && (flags & (SL_CT_DNAT | SL_CT_CLIENT_PORT)) == SL_CT_DNAT)
		bpf_map_delete_elem(&sl_ct, key);
}
