/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../conntrack/conntrack.h"
#include "../conntrack/nf_conn.h"
#include "../drop/drop_reasons.h"
#include "../hostport/hostport.h"
#include "host_socket.h"
#include "node_sent.h"
#include "port_alloc.h"

/*
 * Masquerade at the uplink: gives a connection that a pod opens an address of the node and a free port.
 * A port is taken by inserting the reverse entry under the outside tuple; the insertion is the lock.
 */

/* Asks the FIB for the preferred source address on the device the packet leaves by (kernel 6.7). */
static __always_inline bool snat_addr_fib(struct __sk_buff *skb, const struct sl_pkt *p, __u8 *out)
{
	struct bpf_fib_lookup fib = {
		.ifindex = skb->ifindex,
		.l4_protocol = p->tuple.proto,
		.sport = p->tuple.local_port,
		.dport = p->tuple.remote_port,
	};
	long rc;

	if (p->family == 4) {
		fib.family = AF_INET;
		fib.ipv4_dst = addr_v4(p->tuple.remote);
	} else {
		fib.family = AF_INET6;
		addr_copy(fib.ipv6_dst, p->tuple.remote);
	}
	rc = bpf_fib_lookup(skb, &fib, sizeof(fib),
			    BPF_FIB_LOOKUP_OUTPUT | BPF_FIB_LOOKUP_SRC | BPF_FIB_LOOKUP_SKIP_NEIGH);
	/* The FIB sets the source before it checks the packet's size. The size is the stack's concern. */
	if (rc != BPF_FIB_LKUP_RET_SUCCESS && rc != BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return false;
	/* Routed by mark, which the lookup leaves out: for IPv6 it names another device then. */
	if (fib.ifindex != skb->ifindex)
		return false;
	if (p->family == 4)
		addr_from_v4(out, fib.ipv4_src);
	else
		addr_copy(out, fib.ipv6_src);
	return !addr_is_any(out);
}

/* The address to masquerade with on this uplink. */
static __always_inline bool snat_addr(struct __sk_buff *skb, const struct sl_pkt *p, __u8 *out)
{
	__u32 ifindex = skb->ifindex;
	struct sl_uplink *up;

	if (cfg_fib_src && snat_addr_fib(skb, p, out))
		return true;
	up = bpf_map_lookup_elem(&sl_uplinks, &ifindex);
	if (!up)
		return false;
	addr_copy(out, p->family == 4 ? up->src4 : up->src6);
	return !addr_is_any(out);
}

/*
 * Does a masqueraded connection leave by another uplink than before, which has another address? The
 * answers to the old address would come by the old uplink, if the network let such packets out at
 * all. Netfilter's MASQUERADE gives up a connection then. Without an address for this uplink the
 * connection keeps what it has.
 */
static __always_inline bool snat_moved(struct __sk_buff *skb, const struct sl_pkt *p, const struct sl_ct_entry *ct)
{
	__u8 addr[16] __attribute__((aligned(4)));

	return (ct->flags & SL_CT_SNAT) && ct->out_ifindex && ct->out_ifindex != skb->ifindex &&
	       snat_addr(skb, p, addr) && !addr_equal(addr, ct->other.local);
}

/*
 * Takes its outside tuple away from a copy of an entry, and what was learned with that: the far end
 * answers anew. The old port is free, unless another connection has it already. key: of the entry
 */
static __always_inline void outside_release(const struct sl_tuple *key, struct sl_ct_entry *ct)
{
	if (ct_has_reverse(ct->flags) && ct_leads_to(&ct->other, key)) {
		bpf_map_delete_elem(&sl_ct, &ct->other);
		bpf_map_delete_elem(&sl_ct_unassured, &ct->other);
	}
	ct->flags &= SL_CT_POD_OPENED | SL_CT_TX_SEEN_FIRST | SL_CT_FIN_TX;
	ct->nexthop_len = 0;
	ct->nexthop_until = 0;
}

/* Takes a copy of the entry ct, under key, of a connection that gets an outside tuple, or another one than it had. */
static __always_inline void copy_without_outside(struct sl_ct_scratch *s, const struct sl_tuple *key,
						 const struct sl_ct_entry *ct)
{
	s->entry = *ct;
	if (s->entry.flags & (SL_CT_SNAT | SL_CT_NF_NAT | SL_CT_ASSURED))
		outside_release(key, &s->entry);
}

/* Who has an outside tuple. */
enum sl_outside {
	SL_OUTSIDE_FREE,
	SL_OUTSIDE_TAKEN, /* a live connection, or one that is being made */
	SL_OUTSIDE_DEAD,  /* a connection that is over, or an earlier life of the one that asks */
};

/*
 * How long the reverse entry of a new connection counts without the entry it leads to: another CPU
 * inserts the reverse entry first. It needs about a microsecond, and longer if it loses its CPU.
 */
#define SL_SNAT_CLAIM_GRACE NSEC_PER_SEC

/* Who has the outside tuple, if the connection key asks? */
static __always_inline enum sl_outside outside_state(const struct sl_tuple *outside, const struct sl_tuple *key,
						     __u64 now)
{
	struct sl_ct_entry *reverse = ct_at(outside);
	struct sl_ct_entry *entry;

	if (!reverse)
		return SL_OUTSIDE_FREE;
	if (!(reverse->flags & SL_CT_REVERSE))
		return SL_OUTSIDE_TAKEN;
	/* Perhaps of the pod that had this address before: the owner is wrong then. */
	if (tuple_equal(&reverse->other, key))
		return SL_OUTSIDE_DEAD;
	entry = ct_lookup(&reverse->other, now);
	if (entry && tuple_equal(&entry->other, outside))
		return SL_OUTSIDE_TAKEN;
	/* Another CPU may have written it after we read the clock. */
	return now < reverse->created + SL_SNAT_CLAIM_GRACE ? SL_OUTSIDE_TAKEN : SL_OUTSIDE_DEAD;
}

/*
 * Takes the outside tuple s->entry.other if it is free, by inserting the reverse entry: the
 * insertion is the lock.
 * in: s->key, ->entry  out: s->reverse
 */
static __always_inline bool outside_claim(struct sl_ct_scratch *s, __u64 now)
{
	struct sl_ct_entry *reverse;

	switch (outside_state(&s->entry.other, &s->key, now)) {
	case SL_OUTSIDE_TAKEN:
		return false;
	case SL_OUTSIDE_DEAD:
		bpf_map_delete_elem(&sl_ct, &s->entry.other);
		bpf_map_delete_elem(&sl_ct_unassured, &s->entry.other);
		break;
	default:
		break;
	}
	ct_init_reverse(&s->reverse, &s->key, &s->entry);
	s->reverse.created = now; /* the entry may be older: see snat_moved() */
	bpf_map_update_elem(&sl_ct_unassured, &s->entry.other, &s->reverse, BPF_NOEXIST);
	/* The lookup marks the entry as used, see ct_insert(). Another key: another CPU was faster. */
	reverse = bpf_map_lookup_elem(&sl_ct_unassured, &s->entry.other);
	return reverse && tuple_equal(&reverse->other, &s->key);
}

/* Takes the outside tuple that netfilter has given to the connection inside, whose entry is s->entry. False: another one has it. */
static __always_inline bool outside_claim_nf_nat(struct sl_ct_scratch *s, const struct sl_tuple *inside,
						 const struct sl_tuple *outside, __u64 now)
{
	s->entry.flags |= SL_CT_NF_NAT;
	nf_note_conn(&s->entry, s);
	s->entry.other = *outside;
	s->key = *inside;
	return outside_claim(s, now);
}

/*
 * Claims a port if it is free. port: host byte order. Returns 1 if claimed, else 0.
 * in: ct_scratch()->key, ->entry (other without its port)  out: ->entry.other.local_port, ->reverse
 *
 * A global function is verified once, with any arguments, not once for each of the 33 attempts
 * ("BPF program is too large. Processed 1000001 insn"). Kernels before 5.12 let it take the context
 * and scalars only, so it reads the scratch.
 */
__noinline int sl_snat_claim(struct __sk_buff *skb, __u32 port)
{
	struct sl_ct_scratch *s = ct_scratch();

	__u64 now = clock_now();

	if (!s || (!port && (s->key.proto == IPPROTO_TCP || s->key.proto == IPPROTO_UDP)))
		return 0;
	s->entry.other.local_port = bpf_htons((__u16)port);
	if (!snat_port_allowed(s->entry.other.local, s->entry.other.local_port, s->key.proto) ||
	    node_socket_lookup(skb, &s->entry.other) != SL_SOCK_NONE || node_sent_on(&s->entry.other, now))
		return 0;
	return outside_claim(s, now);
}

/*
 * Does the port (host byte order) lead to this very connection, from before its entry was lost?
 * Returns 1 if so, else 0.
 * in: ct_scratch()->key, ->entry  out: ->entry.other.local_port
 */
__noinline int sl_snat_is_ours(__u32 port)
{
	struct sl_ct_scratch *s = ct_scratch();
	struct sl_ct_entry *reverse;

	if (!s)
		return 0;
	s->entry.other.local_port = bpf_htons((__u16)port);
	reverse = ct_at(&s->entry.other);
	return reverse && (reverse->flags & SL_CT_REVERSE) && (reverse->flags & SL_CT_SNAT) &&
	       reverse->owner == s->entry.owner && tuple_equal(&reverse->other, &s->key);
}

/* Attempts to find a lost port: all for TCP in mid-stream, which is rare; few for what may be new. */
static __always_inline __u32 snat_recover_attempts(const struct sl_pkt *p, __u32 attempts)
{
	if (pkt_is_syn(p) || !cfg_snat_secret)
		return 0;
	return p->tuple.proto == IPPROTO_TCP ? attempts + 1 : 4;
}

/*
 * Looks for the port that the connection had before its entry was lost, in the first scan candidates,
 * else claims a free one. Returns 1, or 0 if none is free.
 * A function of its own: the verifier follows its loops once, and not once for each caller's state.
 * in: ct_scratch()->key, ->entry (other without its port)  out: ->entry.other.local_port, ->reverse
 */
__noinline int sl_snat_find(struct __sk_buff *skb, __u32 scan)
{
	struct sl_ct_scratch *s = ct_scratch();
	__u32 attempts, i;
	__u16 preferred;
	__u64 hash;

	if (!s)
		return 0;
	hash = port_alloc_hash(&s->key);
	preferred = bpf_ntohs(s->key.local_port);
	for (i = 0; i <= 2 * SL_SNAT_ATTEMPTS && i < scan; i++) {
		if (sl_snat_is_ours(snat_candidate(preferred, i, hash)))
			return 1;
	}
	attempts = proto_has_free_ports(s->key.proto) ? 2 * SL_SNAT_ATTEMPTS : 0;
	for (i = 0; i <= 2 * SL_SNAT_ATTEMPTS && i <= attempts; i++) {
		if (sl_snat_claim(skb, snat_candidate(preferred, i, hash)))
			return 1;
	}
	return 0;
}

/*
 * Gives the connection of p an outside tuple on this uplink. Returns 0, or the reason to drop the
 * packet: it never leaves untranslated. inside: the key of its entry.
 * in: s->entry from ct_init()  out: s->key, ->entry.other, ->reverse
 */
static __always_inline __must_check enum sl_drop_reason
snat_allocate(struct __sk_buff *skb, const struct sl_pkt *p, const struct sl_tuple *inside, struct sl_ct_scratch *s)
{
	__u32 attempts = proto_has_free_ports(p->tuple.proto) ? 2 * SL_SNAT_ATTEMPTS : 0;

	s->key = *inside;
	s->entry.other = p->tuple;
	if (!snat_addr(skb, p, s->entry.other.local))
		return SL_DROP_NO_SNAT_ADDR;
	s->entry.flags |= SL_CT_SNAT;
	return sl_snat_find(skb, snat_recover_attempts(p, attempts)) ? SL_DROP_NONE : SL_DROP_SNAT_PORTS;
}
