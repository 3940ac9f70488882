/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "clock.h"
#include "flow_maps.h"
#include "parse.h"

/*
 * Life of a flow. docs/design/conntrack.md has the states and the races.
 *
 * Flags and times are written without atomics from every CPU: two CPUs may lose
 * each other's bit. The worst outcome is a flow that is confirmed one packet
 * later or that keeps a longer timeout; no translation depends on it, since the
 * fields that say how to translate are written once, before the entry is
 * visible to the other hooks. (Atomic or needs kernel 5.12.)
 */

#define SL_SEC 1000000000ULL

/* Idle times after which an entry does not exist any more, by what it has seen. */
#define SL_TIMEOUT_TCP_OPENING (60 * SL_SEC)
#define SL_TIMEOUT_TCP (86400 * SL_SEC)
#define SL_TIMEOUT_TCP_HALF_CLOSED (120 * SL_SEC)
#define SL_TIMEOUT_TCP_CLOSED (10 * SL_SEC)
#define SL_TIMEOUT_NEW (30 * SL_SEC)
#define SL_TIMEOUT_REPLIED (180 * SL_SEC)

#define SL_FLOW_CLOSING (SL_FLOW_FIN_TX | SL_FLOW_FIN_RX | SL_FLOW_RST)
#define SL_FLOW_NAT (SL_FLOW_SNAT | SL_FLOW_DNAT)
/* Kinds of records that have an index. */
#define SL_FLOW_INDEXED (SL_FLOW_SNAT | SL_FLOW_REMAP | SL_FLOW_TURNED | SL_FLOW_DOOR)
#define SL_FLOW_CONFIRMED (SL_FLOW_TX_CONFIRM | SL_FLOW_RX_CONFIRM)

/* Room for building entries: too big for the stack beside a packet. One program never nests in itself on one CPU. */
struct sl_flow_scratch {
	struct sl_flow rec;
	struct sl_flow idx;
	struct sl_tuple key;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sl_flow_scratch);
} sl_scratch SEC(".maps");

static __always_inline struct sl_flow_scratch *flow_scratch(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&sl_scratch, &zero);
}

static __always_inline __u64 __flow_timeout(__u8 proto, __u32 flags)
{
	if (proto != IPPROTO_TCP)
		return flags & SL_FLOW_REPLIED ? SL_TIMEOUT_REPLIED : SL_TIMEOUT_NEW;
	if ((flags & SL_FLOW_RST) || (flags & (SL_FLOW_FIN_TX | SL_FLOW_FIN_RX)) == (SL_FLOW_FIN_TX | SL_FLOW_FIN_RX))
		return SL_TIMEOUT_TCP_CLOSED;
	if (flags & (SL_FLOW_FIN_TX | SL_FLOW_FIN_RX))
		return SL_TIMEOUT_TCP_HALF_CLOSED;
	return flags & SL_FLOW_ASSURED ? SL_TIMEOUT_TCP : SL_TIMEOUT_TCP_OPENING;
}

/* An index has no life of its own: the record it names decides. */
static __always_inline bool __flow_live(const struct sl_tuple *key, const struct sl_flow *f, __u64 now)
{
	return (f->flags & SL_FLOW_INDEX) || now - f->last_seen < __flow_timeout(key->proto, f->flags) ||
	       /* another CPU may have stamped it after we read the clock */
	       f->last_seen > now;
}

/* The live entry under key that is not proven. */
static __always_inline struct sl_flow *flow_lookup_new(const struct sl_tuple *key, __u64 now)
{
	struct sl_flow *f = bpf_map_lookup_elem(&sl_flows_new, key);

	return f && __flow_live(key, f, now) ? f : NULL;
}

/* The live entry under key, proven or not. */
static __always_inline struct sl_flow *flow_lookup(const struct sl_tuple *key, __u64 now)
{
	struct sl_flow *f = bpf_map_lookup_elem(&sl_flows, key);

	return likely(f && __flow_live(key, f, now)) ? f : flow_lookup_new(key, now);
}

/* A live record (not an index) of this owner. */
static __always_inline struct sl_flow *flow_record(const struct sl_tuple *key, __u64 owner, __u64 now)
{
	struct sl_flow *f = flow_lookup(key, now);

	return f && !(f->flags & SL_FLOW_INDEX) && f->owner == owner ? f : NULL;
}

/* Is there an entry under key, be it dead? Tells a flow that has expired from one that the LRU took. */
static __always_inline bool flow_exists(const struct sl_tuple *key)
{
	return bpf_map_lookup_elem(&sl_flows, key) || bpf_map_lookup_elem(&sl_flows_new, key);
}

/*
 * Is p a new connection on the tuple of an old one? A SYN on a closing flow, or
 * from the end that did not open it, never refreshes: everything starts anew.
 */
static __always_inline bool flow_reopened(const struct sl_flow *f, const struct sl_pkt *p, enum sl_dir dir)
{
	bool opener = !(f->flags & SL_FLOW_POD_OPENED) == (dir == SL_RX);

	if (likely(!pkt_is_syn(p)))
		return false;
	return !opener || (f->flags & SL_FLOW_CLOSING);
}

/*
 * Puts a new entry among the unproven ones, in place of whatever was there, and
 * returns it. Looking it up marks it as used: otherwise an LRU map close to full
 * takes back the entry it has just made.
 */
static __always_inline struct sl_flow *flow_insert(const struct sl_tuple *key, const struct sl_flow *f)
{
	/* Looking is cheaper than deleting: no lock. */
	if (bpf_map_lookup_elem(&sl_flows, key))
		bpf_map_delete_elem(&sl_flows, key);
	if (bpf_map_update_elem(&sl_flows_new, key, f, BPF_ANY))
		return NULL;
	return bpf_map_lookup_elem(&sl_flows_new, key);
}

/* Fills f as a fresh record; the caller adds what it knows of translation. */
static __always_inline void flow_init(struct sl_flow *f, __u64 owner, __u32 flags, __u64 now)
{
	__builtin_memset(f, 0, sizeof(*f));
	f->flags = flags;
	f->owner = owner;
	f->created = now;
	f->last_seen = now;
}

/* What an index keeps of its record, to make it anew. */
#define SL_FLOW_KEPT                                                                                                   \
	(SL_FLOW_INDEXED | SL_FLOW_DNAT | SL_FLOW_DNAT_ANY | SL_FLOW_MASQ | SL_FLOW_POD_OPENED | SL_FLOW_ASSURED)

/* Fills idx as the index that leads from a flow's outside tuple to its record under key. */
static __always_inline void flow_init_index(struct sl_flow *idx, const struct sl_tuple *key, const struct sl_flow *rec)
{
	__builtin_memset(idx, 0, sizeof(*idx));
	idx->other = *key;
	idx->flags = SL_FLOW_INDEX | (rec->flags & SL_FLOW_KEPT);
	idx->hostport_gen = rec->hostport_gen;
	idx->owner = rec->owner;
	idx->created = rec->created;
	idx->last_seen = rec->last_seen;
}

/* Makes sure that the outside tuple of a flow with an index leads back to it. False: it leads to another flow. */
static __always_inline bool flow_ensure_index(const struct sl_tuple *key, const struct sl_flow *rec)
{
	struct sl_flow_scratch *s;
	struct sl_flow *idx;

	idx = bpf_map_lookup_elem(&sl_flows, &rec->other);
	if (!idx)
		idx = bpf_map_lookup_elem(&sl_flows_new, &rec->other);
	if (idx)
		return (idx->flags & SL_FLOW_INDEX) && tuple_equal(&idx->other, key);
	s = flow_scratch();
	if (!s)
		return false;
	flow_init_index(&s->idx, key, rec);
	if (rec->flags & SL_FLOW_ASSURED)
		bpf_map_update_elem(&sl_flows, &rec->other, &s->idx, BPF_NOEXIST);
	else
		bpf_map_update_elem(&sl_flows_new, &rec->other, &s->idx, BPF_NOEXIST);
	return true;
}

/* Rebuilds a record that the LRU took from the index that is left, so that half a flow is never a black hole. */
static __always_inline struct sl_flow *flow_restore(const struct sl_tuple *outside, const struct sl_flow *idx,
						    __u64 now)
{
	struct sl_flow_scratch *s = flow_scratch();

	if (!s)
		return NULL;
	flow_init(&s->rec, idx->owner, (idx->flags & ~(SL_FLOW_INDEX | SL_FLOW_ASSURED)) | SL_FLOW_REPLIED, now);
	s->rec.other = *outside;
	s->rec.hostport_gen = idx->hostport_gen;
	s->key = idx->other;
	return flow_insert(&s->key, &s->rec);
}

/* Moves a flow (and its index) to the proven ones. Returns the entry to go on with. */
static __always_inline struct sl_flow *__flow_assure(const struct sl_tuple *key, struct sl_flow *f)
{
	struct sl_flow_scratch *s = flow_scratch();
	struct sl_flow *moved;

	if (!s)
		return f;
	f->flags |= SL_FLOW_ASSURED;
	s->rec = *f;
	if (s->rec.flags & SL_FLOW_INDEXED) {
		flow_init_index(&s->idx, key, &s->rec);
		bpf_map_update_elem(&sl_flows, &s->rec.other, &s->idx, BPF_ANY);
		bpf_map_delete_elem(&sl_flows_new, &s->rec.other);
	}
	/* Whoever is second of two CPUs finds the entry there and uses it. */
	bpf_map_update_elem(&sl_flows, key, &s->rec, BPF_NOEXIST);
	moved = bpf_map_lookup_elem(&sl_flows, key);
	if (!moved)
		return f;
	bpf_map_delete_elem(&sl_flows_new, key);
	return moved;
}

/* How long the way out that a packet of a flow took holds for the next ones: less than a queue may hold a packet, many packets of a busy flow. */
#define SL_ROUTE_HOLD (10 * 1000000ULL)

/* Notes how packets of up to len bytes leave by f->out_ifindex: with these link addresses. */
static __always_inline void flow_hold_route(struct sl_flow *f, const __u8 *dst, const __u8 *src, __u32 len, __u64 now)
{
	__builtin_memcpy(f->route_dst, dst, ETH_ALEN);
	__builtin_memcpy(f->route_src, src, ETH_ALEN);
	f->route_len = len;
	f->route_link = SL_ROUTE_LINK;
	f->route_until = now + SL_ROUTE_HOLD;
}

/*
 * Accounts a packet at the first hook that sees it in its direction. A flow is
 * proven, and moves out of reach of floods, when the pod's own connection is
 * answered, or when a stranger goes on after the answer: a spoofed source never
 * gets that far.
 */
static __always_inline struct sl_flow *flow_touch(const struct sl_tuple *key, struct sl_flow *f, const struct sl_pkt *p,
						  enum sl_dir dir, __u32 len, __u64 now)
{
	bool pod_opened = f->flags & SL_FLOW_POD_OPENED;
	bool opener = pod_opened == (dir == SL_TX);
	__u32 flags = f->flags;
	bool proven;

	proven = pod_opened ? !opener : opener && (flags & SL_FLOW_REPLIED);
	flags |= dir == SL_TX ? SL_FLOW_TX_FIRST : SL_FLOW_RX_FIRST;
	if (!opener)
		flags |= SL_FLOW_REPLIED;
	if (p->tcp_flags & SL_TCP_FIN)
		flags |= dir == SL_TX ? SL_FLOW_FIN_TX : SL_FLOW_FIN_RX;
	if (p->tcp_flags & SL_TCP_RST)
		flags |= SL_FLOW_RST;
	else if (p->tcp_flags & SL_TCP_ACK)
		flags &=
			~SL_FLOW_RST; /* it was not believed: what is said to a closed socket is answered by another one */
	if (unlikely(flags != f->flags))
		f->flags = flags;
	f->last_seen = now;
	if (dir == SL_TX) {
		__sync_fetch_and_add(&f->tx_packets, 1);
		__sync_fetch_and_add(&f->tx_bytes, len);
	} else {
		__sync_fetch_and_add(&f->rx_packets, 1);
		__sync_fetch_and_add(&f->rx_bytes, len);
	}
	if (proven && unlikely(!(flags & (SL_FLOW_ASSURED | SL_FLOW_RST))))
		return __flow_assure(key, f);
	return f;
}

/*
 * Takes out a hostPort's TCP flow with its last packet (a RST, or what answers
 * the second FIN), once that packet has left us for good. Its memory is used
 * again while it is warm, where dead flows would make every new one cold. What
 * still comes (a FIN sent twice) finds its way without: the mapping leads to the
 * pod. Others stay until they have timed out: a masqueraded flow keeps its port, one with
 * an index both, one to the pod's own address the knowledge that it must not be masqueraded.
 */
static __always_inline void flow_end(const struct sl_tuple *key, const struct sl_flow *f, const struct sl_pkt *p)
{
	__u32 flags = f->flags;
	bool over = (flags & SL_FLOW_RST) ||
		    ((flags & SL_FLOW_FIN_TX) && (flags & SL_FLOW_FIN_RX) && !(p->tcp_flags & SL_TCP_FIN));

	if (unlikely(over) && (flags & (SL_FLOW_DNAT | SL_FLOW_REMAP)) == SL_FLOW_DNAT)
		bpf_map_delete_elem(&sl_flows, key);
}
