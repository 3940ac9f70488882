/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "conntrack_share.h"
#include "conntrack_table.h"
#include "netfilter.h"
#include "tcp_seq.h"
#include "../packet/parse.h"

/*
 * Connection tracking: insertion and state of conntrack entries. Unanswered connections live in a map
 * of their own, so that a flood of them evicts only its own kind.
 *
 * Flags and times are written without atomics from every CPU: two CPUs may lose each other's bit. The
 * worst outcome is a connection that gets on the fast path one packet later, or that keeps a longer
 * timeout. The fields that say how to translate are written once, before the entry is visible to the
 * other hooks, or written back as they were read. docs/dev/design/conntrack.md says what may happen in
 * between. (An atomic or needs kernel 5.12.)
 */

/* Does a packet of this direction come from the end that opened the connection? */
static __always_inline bool ct_from_opener(const struct sl_ct_entry *ct, enum sl_dir dir)
{
	return !(ct->flags & SL_CT_POD_OPENED) == (dir == SL_RX);
}

/*
 * Is p a new connection on the tuple of an old one? A SYN on a closing connection, or from the end
 * that did not open it, never refreshes the old one. Nor does the pod's SYN with another number: it
 * repeats none. A client's may be a third party's, so the pod's answer decides (tcp_seq_tx()).
 */
static __always_inline bool ct_is_new_connection(const struct sl_ct_entry *ct, const struct sl_pkt *p, enum sl_dir dir)
{
	if (likely(!pkt_is_syn(p)))
		return false;
	if (!ct_from_opener(ct, dir) || (ct->flags & SL_CT_CLOSING))
		return true;
	return dir == SL_TX && ct->tx_end && p->seq + p->seq_len != ct->tx_end;
}

/*
 * Inserts an unassured entry in place of any other, and returns it. The lookup marks it as used: an
 * LRU map close to full would otherwise evict the entry it has just inserted.
 */
static __always_inline struct sl_ct_entry *ct_insert(const struct sl_tuple *key, const struct sl_ct_entry *ct)
{
	/* A lookup is cheaper than a delete: no lock. */
	if (bpf_map_lookup_elem(&sl_ct, key))
		bpf_map_delete_elem(&sl_ct, key);
	if (bpf_map_update_elem(&sl_ct_unassured, key, ct, BPF_ANY))
		return NULL;
	return bpf_map_lookup_elem(&sl_ct_unassured, key);
}

/* Replaces the entry under key by ct, in the map that has it. NULL if it has gone. */
static __always_inline struct sl_ct_entry *ct_replace(const struct sl_tuple *key, const struct sl_ct_entry *ct)
{
	if (ct->flags & SL_CT_ASSURED)
		return bpf_map_update_elem(&sl_ct, key, ct, BPF_EXIST) ? NULL : bpf_map_lookup_elem(&sl_ct, key);
	return bpf_map_update_elem(&sl_ct_unassured, key, ct, BPF_EXIST) ? NULL
									 : bpf_map_lookup_elem(&sl_ct_unassured, key);
}

/* ct_insert() for s->entry, of a connection that begins. */
static __always_inline struct sl_ct_entry *ct_begin(const struct sl_tuple *key, struct sl_ct_scratch *s)
{
	__u32 flags = s->entry.flags;
	struct sl_ct_entry *made;

	s->claim = *key;
	if (!sl_ct_claim(ct_kind(key->proto, flags) | SL_CT_KIND_PENDING))
		return NULL;
	made = ct_insert(key, &s->entry);
	if (made)
		sl_ct_count(flags & SL_CT_POD_OPENED ? SL_CT_COUNT_POD : SL_CT_COUNT_CLIENT);
	return made;
}

/*
 * The clock of sl_ct_entry.relearn_at, in units of cfg_relearn: 2^20 ns. 32 bits of it last longer
 * than an entry may be idle.
 */
static __always_inline __u32 relearn_clock(__u64 now)
{
	return (__u32)(now >> 20);
}

/*
 * For how long a connection keeps to the fast path, in units of cfg_relearn; 0 = for ever. Netfilter
 * forgets what is not TCP 30 or 120 s after the last packet that it saw, so it sees one each second.
 */
static __always_inline __u32 relearn_after(const struct sl_ct_entry *ct, const struct sl_pkt *p)
{
	if (p->tcp_flags || !(ct->flags & SL_CT_TRACKED) || cfg_relearn - 1 < SL_NF_RELEARN)
		return cfg_relearn;
	return SL_NF_RELEARN;
}

/*
 * Begins to confirm a connection again, if it is time: both directions take the slow path until their
 * last hooks have seen them. So what has changed in the stack, such as a new firewall rule, holds after
 * cfg_relearn at the latest. A deadline that is too far away is from another configuration, or from an
 * older layout. True if it has begun.
 *
 * The end that opened the connection begins a quarter earlier. Where netfilter has lost its entry
 * (conntrack -D), an answer would be a new connection to it: it would come untranslated, or not at all.
 */
static __always_inline bool ct_relearn_if_due(struct sl_ct_entry *ct, const struct sl_pkt *p, enum sl_dir dir,
					      __u64 now)
{
	__u32 clock = relearn_clock(now), after = relearn_after(ct, p);
	__u32 earlier = ct_from_opener(ct, dir) ? after / 4 : 0;

	if (!after || likely(ct->relearn_at - clock - 1 - earlier < 2 * after - earlier))
		return false;
	ct->flags &= ~(SL_CT_SEEN_LAST | SL_CT_TRACKED);
	ct->relearn_at = clock + after;
	return true;
}

/* Does the pod get the connection with its gateway's address in place of the client's? The client opened it. */
static __always_inline bool ct_comes_by_pod_snat(const struct sl_ct_entry *ct)
{
	return (ct->flags & (SL_CT_WANTS_POD_SNAT | SL_CT_POD_OPENED)) == SL_CT_WANTS_POD_SNAT;
}

/* Has the pod opened the connection, and another pod of this node gets it with its gateway's address? */
static __always_inline bool ct_goes_by_pod_snat(const struct sl_ct_entry *ct)
{
	return !(~ct->flags & (SL_CT_WANTS_POD_SNAT | SL_CT_POD_OPENED));
}

/* Initialises ct as a fresh entry. The caller adds what it knows of translation. */
static __always_inline void ct_init(struct sl_ct_entry *ct, __u64 owner, __u32 flags, __u64 now)
{
	__builtin_memset(ct, 0, sizeof(*ct));
	ct->flags = flags;
	ct->owner = owner;
	ct->created = now;
	ct->last_seen = now;
	ct->relearn_at = relearn_clock(now) + cfg_relearn;
}

/* What a reverse entry keeps of its entry, to restore it. */
#define SL_CT_REVERSE_KEEPS                                                                                            \
	(SL_CT_HAS_REVERSE | SL_CT_DNAT | SL_CT_DNAT_ANYADDR | SL_CT_WANTS_POD_SNAT | SL_CT_POD_OPENED | SL_CT_ASSURED)

/* Initialises reverse as the reverse entry that leads from the other tuple of entry to its key. */
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

/* Has an entry with these flags a reverse entry? Between two pods of this node each has an entry under its own tuple. */
static __always_inline bool ct_has_reverse(__u32 flags)
{
	if ((flags & (SL_CT_NF_NAT | SL_CT_PEER_LOCAL)) == (SL_CT_NF_NAT | SL_CT_PEER_LOCAL))
		return false;
	return flags & SL_CT_HAS_REVERSE;
}

/* Is the entry under outside a reverse entry that leads to key? */
static __always_inline bool ct_leads_to(const struct sl_tuple *outside, const struct sl_tuple *key)
{
	struct sl_ct_entry *reverse = ct_at(outside);

	return reverse && (reverse->flags & SL_CT_REVERSE) && tuple_equal(&reverse->other, key);
}

/* Makes sure that the other tuple of an entry leads back to it. False: it leads to another connection. */
static __always_inline bool ct_ensure_reverse(const struct sl_tuple *key, const struct sl_ct_entry *entry)
{
	struct sl_ct_scratch *s;
	struct sl_ct_entry *reverse = ct_at(&entry->other);

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

/*
 * Restores an entry that the LRU took from its reverse entry. So half a connection is never a black
 * hole.
 */
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
	sl_ct_count(SL_CT_COUNT_RESTORED);
	return ct_insert(&s->key, &s->entry);
}

/*
 * Moves a connection and its reverse entry to the assured ones, if its attachment gets places for them.
 * Returns the entry to go on with.
 */
static __always_inline struct sl_ct_entry *ct_assure(const struct sl_tuple *key, struct sl_ct_entry *ct)
{
	__u32 kind = ct_kind(key->proto, ct->flags);
	struct sl_ct_scratch *s = ct_scratch();
	struct sl_ct_entry *moved;

	if (!s)
		return ct;
	s->entry.owner = ct->owner;
	s->claim = *key;
	if (!sl_ct_claim(kind))
		return ct;
	if (ct_has_reverse(ct->flags)) {
		s->claim = ct->other;
		/* The first place is free again, since no entry comes there. */
		if (!sl_ct_claim(kind))
			return ct;
	}
	ct->flags |= SL_CT_ASSURED;
	s->entry = *ct;
	if (ct_has_reverse(s->entry.flags)) {
		ct_init_reverse(&s->reverse, key, &s->entry);
		bpf_map_update_elem(&sl_ct, &s->entry.other, &s->reverse, BPF_ANY);
		bpf_map_delete_elem(&sl_ct_unassured, &s->entry.other);
	}
	/* The second of two CPUs finds the entry there and uses it. */
	bpf_map_update_elem(&sl_ct, key, &s->entry, BPF_NOEXIST);
	moved = bpf_map_lookup_elem(&sl_ct, key);
	if (!moved)
		return ct;
	bpf_map_delete_elem(&sl_ct_unassured, key);
	return moved;
}

/*
 * How long a cached next hop holds: shorter than a queue may hold a packet, and many packets of a
 * busy connection.
 */
#define SL_NEXTHOP_TTL (10 * NSEC_PER_MSEC)

/* Caches how packets of up to len bytes leave by ct->out_ifindex: with these link addresses. */
static __always_inline void ct_cache_nexthop(struct sl_ct_entry *ct, const __u8 *dst, const __u8 *src, __u32 len,
					     __u64 now)
{
	__builtin_memcpy(ct->nexthop_dst, dst, ETH_ALEN);
	__builtin_memcpy(ct->nexthop_src, src, ETH_ALEN);
	ct->nexthop_len = len < 0xffff ? len : 0xffff;
	ct->nexthop_until = now + SL_NEXTHOP_TTL;
}

/*
 * SL_CT_REPLIED if a packet of the end that did not open the connection has that direction, else 0. Without
 * a branch, whose ways the verifier would follow to the end.
 */
static __always_inline __u32 ct_replied_by(__u32 flags, enum sl_dir dir)
{
	__u32 pod_opened = flags & SL_CT_POD_OPENED,
	      from_opener = dir == SL_TX ? pod_opened : pod_opened ^ SL_CT_POD_OPENED;

	return (from_opener ^ SL_CT_POD_OPENED) * (SL_CT_REPLIED / SL_CT_POD_OPENED);
}

/*
 * Accounts a packet at the first hook of its direction. A connection becomes assured, out of reach
 * of floods, when the pod's own connection is answered, or when a client goes on after the answer,
 * and if its attachment has room (ct_assure()). Of TCP, a packet must continue the connection: a
 * spoofed source never gets that far.
 */
static __always_inline struct sl_ct_entry *ct_update(const struct sl_tuple *key, struct sl_ct_entry *ct,
						     const struct sl_pkt *p, enum sl_dir dir, __u32 len, __u64 now)
{
	__u32 flags = ct->flags;
	bool in_order = true;

	if (dir == SL_TX) {
		if (likely(p->tcp_flags))
			flags = tcp_seq_tx(ct, p, flags, now);
		flags |= SL_CT_TX_SEEN_FIRST | ct_replied_by(flags, SL_TX);
	} else {
		if (likely(p->tcp_flags))
			flags = tcp_seq_rx(ct, p, flags, &in_order);
		flags |= SL_CT_RX_SEEN_FIRST;
		if (likely(in_order))
			flags |= ct_replied_by(flags, SL_RX);
	}
	if (unlikely(flags != ct->flags)) {
		sl_ct_changed(ct->flags, flags);
		ct->flags = flags;
	}
	ct->last_seen = now;
	if (dir == SL_TX) {
		__sync_fetch_and_add(&ct->tx_packets, 1);
		__sync_fetch_and_add(&ct->tx_bytes, len);
		return ct;
	}
	__sync_fetch_and_add(&ct->rx_packets, 1);
	__sync_fetch_and_add(&ct->rx_bytes, len);
	if (in_order && unlikely((flags & (SL_CT_REPLIED | SL_CT_ASSURED | SL_CT_RST)) == SL_CT_REPLIED))
		return ct_assure(key, ct);
	return ct;
}

/*
 * Deletes the entry of a hostPort's TCP connection with its last packet (the pod's RST, or the
 * answer to the second FIN), once that packet has left. From outside only an acknowledgment of the
 * pod's FIN is a last packet: the pod may refuse a RST. A new entry then reuses warm memory. A
 * packet that still comes (a repeated FIN) needs no entry: the mapping leads to the pod. Other
 * entries stay until they time out: a masqueraded connection keeps its port, and one to the pod's
 * own address must stay untranslated.
 */
static __always_inline void ct_delete_if_closed(const struct sl_tuple *key, const struct sl_ct_entry *ct,
						const struct sl_pkt *p, enum sl_dir dir)
{
	__u32 flags = ct->flags;
	bool over = (flags & SL_CT_FIN_TX) && (flags & SL_CT_FIN_RX) && !(p->tcp_flags & SL_TCP_FIN);

	over = dir == SL_TX ? over || (flags & SL_CT_RST) : over && p->ack == ct->tx_end;
	if (unlikely(over) && (flags & (SL_CT_DNAT | SL_CT_CLIENT_PORT)) == SL_CT_DNAT)
		bpf_map_delete_elem(&sl_ct, key);
}
