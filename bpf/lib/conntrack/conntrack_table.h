/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include <linux/in.h>
#include "conntrack_types.h"
#include "../hostport/hostport_types.h"
#include "../base/time.h"

/*
 * The conntrack maps: lookup and timeouts of entries, and the room in which programs build them.
 */

/* The sizes are defaults. The loader sets them from the node's configuration. */

/*
 * Assured connections: both ends have proven to be there. Written by all programs on all CPUs. Places
 * limit what gets in (conntrack_share.h), so the LRU evicts only what came in without one.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 131072);
	__type(key, struct sl_tuple);
	__type(value, struct sl_ct_entry);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_ct SEC(".maps");

/* Half-open and unanswered connections. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 32768);
	__type(key, struct sl_tuple);
	__type(value, struct sl_ct_entry);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_ct_unassured SEC(".maps");

/*
 * How often entries were made, and what became of them. Each program counts on its own CPU, and never
 * for a packet of a connection that goes on. The kernel's own evictions from LRU maps call no program.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SL_CT_COUNTS_SIZE);
	__type(key, __u32);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_ct_counts SEC(".maps");

/* Idle times after which an entry no longer counts, by what it has seen. */
#define SL_TIMEOUT_TCP_OPENING (60 * NSEC_PER_SEC)
#define SL_TIMEOUT_TCP (86400 * NSEC_PER_SEC)
#define SL_TIMEOUT_TCP_HALF_CLOSED (120 * NSEC_PER_SEC)
#define SL_TIMEOUT_TCP_CLOSED (10 * NSEC_PER_SEC)
#define SL_TIMEOUT_NEW (30 * NSEC_PER_SEC)
#define SL_TIMEOUT_REPLIED (180 * NSEC_PER_SEC)

#define SL_CT_CLOSING (SL_CT_FIN_TX | SL_CT_FIN_RX | SL_CT_RST)
#define SL_CT_NAT (SL_CT_SNAT | SL_CT_DNAT)
/* Kinds of entries that have a reverse entry. */
#define SL_CT_HAS_REVERSE (SL_CT_SNAT | SL_CT_CLIENT_PORT | SL_CT_HAIRPIN | SL_CT_POD_SNAT | SL_CT_NF_NAT)
#define SL_CT_SEEN_LAST (SL_CT_TX_SEEN_LAST | SL_CT_RX_SEEN_LAST)

/* One end of a tuple of netfilter: struct nf_conntrack_man, and the same of the destination. */
struct sl_nf_end {
	__be32 ip[4];
	__be16 port;
	__u8 more[2]; /* source: protocol family; destination: protocol, direction */
};

/* struct nf_conntrack_tuple_hash of a 64-bit kernel. */
struct sl_nf_tuple {
	__u64 node[2];
	struct sl_nf_end src, dst;
};
_Static_assert(sizeof(struct sl_nf_tuple) == 56, "sl_nf_tuple is nf_conntrack_tuple_hash");

/* The middle of struct nf_conn. */
struct sl_nf_conn {
	struct sl_nf_tuple tuple[2]; /* of the original direction, of the reply direction */
	__u64 status;		     /* enum ip_conntrack_status */
};
_Static_assert(sizeof(struct sl_nf_conn) == 120, "sl_nf_conn is a part of nf_conn: no padding");

/*
 * Room for building entries: too big for the stack beside a packet. A program never nests in itself
 * on one CPU.
 */
struct sl_ct_scratch {
	struct sl_ct_entry entry;
	struct sl_ct_entry reverse;
	struct sl_tuple key;
	struct sl_tuple claim; /* what needs a place, see sl_ct_claim() */
	struct sl_ct_search search;
	struct sl_hp_outside outside; /* see sl_hp_learn() */
	struct sl_nf_conn nf;	      /* netfilter's entry of a connection, at the address nf_conn */
	struct sl_tuple pre;	      /* of the packet before netfilter translated it, see sl_nf_translated() */
	__u64 nf_conn;
	__u32 nf_hash;	/* see nf_hash() */
	__u32 nf_reply; /* the packet is of the reply direction */
	/* SL_CT_EGRESS_LATER or 0, of the connection that sl_policy_verdict() was asked about. */
	__u32 egress_later;
	__u32 pad;
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

/* Adds to a counter. what: enum sl_ct_count. A function of its own, for the stack of its callers. */
__noinline int sl_ct_count(__u32 what)
{
	__u64 *n = bpf_map_lookup_elem(&sl_ct_counts, &what);

	if (n)
		(*n)++;
	return 0;
}

/* Has the TCP connection ended: by a RST as the last word, or by a FIN of each end? */
static __always_inline bool ct_has_ended(__u32 flags)
{
	return (flags & SL_CT_RST) || (flags & (SL_CT_FIN_TX | SL_CT_FIN_RX)) == (SL_CT_FIN_TX | SL_CT_FIN_RX);
}

/*
 * Counts an entry whose flags change if its connection ends with that. A function of its own: the
 * verifier follows its branches once, and not once for each caller.
 */
__noinline int sl_ct_changed(__u32 before, __u32 after)
{
	if (ct_has_ended(after) && !ct_has_ended(before))
		sl_ct_count(after & SL_CT_RST ? SL_CT_COUNT_RST : SL_CT_COUNT_FIN);
	return 0;
}

static __always_inline __u64 ct_timeout(__u8 proto, __u32 flags)
{
	if (proto != IPPROTO_TCP)
		return flags & SL_CT_REPLIED ? SL_TIMEOUT_REPLIED : SL_TIMEOUT_NEW;
	if (ct_has_ended(flags))
		return SL_TIMEOUT_TCP_CLOSED;
	if (flags & (SL_CT_FIN_TX | SL_CT_FIN_RX))
		return SL_TIMEOUT_TCP_HALF_CLOSED;
	return flags & SL_CT_ASSURED ? SL_TIMEOUT_TCP : SL_TIMEOUT_TCP_OPENING;
}

/* A reverse entry has no life of its own: the entry it names decides. */
static __always_inline bool ct_is_live(const struct sl_tuple *key, const struct sl_ct_entry *ct, __u64 now)
{
	return (ct->flags & SL_CT_REVERSE) || now - ct->last_seen < ct_timeout(key->proto, ct->flags) ||
	       /* another CPU may have written it after we read the clock */
	       ct->last_seen > now;
}

/* The live unassured entry under key. */
static __always_inline struct sl_ct_entry *ct_lookup_unassured(const struct sl_tuple *key, __u64 now)
{
	struct sl_ct_entry *ct = bpf_map_lookup_elem(&sl_ct_unassured, key);

	return ct && ct_is_live(key, ct, now) ? ct : NULL;
}

/* The live entry under key, assured or not. */
static __always_inline struct sl_ct_entry *ct_lookup(const struct sl_tuple *key, __u64 now)
{
	struct sl_ct_entry *ct = bpf_map_lookup_elem(&sl_ct, key);

	return likely(ct && ct_is_live(key, ct, now)) ? ct : ct_lookup_unassured(key, now);
}

/* The live entry under key if it is not a reverse entry and belongs to owner. */
static __always_inline struct sl_ct_entry *ct_lookup_entry(const struct sl_tuple *key, __u64 owner, __u64 now)
{
	struct sl_ct_entry *ct = ct_lookup(key, now);

	return ct && !(ct->flags & SL_CT_REVERSE) && ct->owner == owner ? ct : NULL;
}

/*
 * The entry under key, of whatever kind, even an expired one, or NULL. Tells a connection that expired from one that
 * the LRU took.
 */
static __always_inline struct sl_ct_entry *ct_at(const struct sl_tuple *key)
{
	struct sl_ct_entry *ct = bpf_map_lookup_elem(&sl_ct, key);

	return ct ? ct : bpf_map_lookup_elem(&sl_ct_unassured, key);
}
