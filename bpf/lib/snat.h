/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "flow.h"
#include "hostport.h"
#include "ports.h"
#include "sock.h"
#include "verdict.h"

/* Asks the FIB for the preferred source of the device the packet is leaving by (kernel 6.7). */
static __always_inline bool __snat_addr_fib(struct __sk_buff *skb, const struct sl_pkt *p, __u8 *out)
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
	/* The source is there before the packet's size is checked; the size is the stack's business here. */
	if (rc != BPF_FIB_LKUP_RET_SUCCESS && rc != BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return false;
	/* Routed by mark, which is not part of the question: for IPv6 the answer is another device's then. */
	if (fib.ifindex != skb->ifindex)
		return false;
	if (p->family == 4)
		addr_from_v4(out, fib.ipv4_src);
	else
		addr_copy(out, fib.ipv6_src);
	return !addr_is_any(out);
}

/* The address to masquerade with on this uplink. */
static __always_inline bool __snat_addr(struct __sk_buff *skb, const struct sl_pkt *p, __u8 *out)
{
	__u32 ifindex = skb->ifindex;
	struct sl_uplink *up;

	if (cfg_fib_src && __snat_addr_fib(skb, p, out))
		return true;
	up = bpf_map_lookup_elem(&sl_uplinks, &ifindex);
	if (!up)
		return false;
	addr_copy(out, p->family == 4 ? up->src4 : up->src6);
	return !addr_is_any(out);
}

/* Is the outside tuple in the hands of a flow that is still alive? */
static __always_inline bool __snat_taken(const struct sl_tuple *outside, const struct sl_tuple *key, __u64 now)
{
	struct sl_flow *idx = bpf_map_lookup_elem(&sl_flows, outside);
	struct sl_flow *rec;

	if (!idx)
		idx = bpf_map_lookup_elem(&sl_flows_new, outside);
	if (!idx)
		return false;
	if (!(idx->flags & SL_FLOW_INDEX))
		return true;
	rec = flow_lookup(&idx->other, now);
	if (!tuple_equal(&idx->other, key) && rec && tuple_equal(&rec->other, outside))
		return true;
	/*
	 * A dead flow's, or our own tuple's from an earlier life, perhaps that of the pod which had
	 * this address before: what it says of the owner is not true any more.
	 */
	bpf_map_delete_elem(&sl_flows, outside);
	bpf_map_delete_elem(&sl_flows_new, outside);
	return false;
}

/*
 * Takes one port if it is free, by inserting the index: the insert is the lock.
 * s->key is the record's key, s->rec.other the outside tuple but for the port.
 *
 * A global function is verified once, with any arguments, instead of once for
 * each of the 33 tries ("BPF program is too large. Processed 1000001 insn").
 * Kernels before 5.12 let it take the context and scalars only, hence the
 * scratch. port: host byte order. Returns 1 when the port is taken, else 0.
 */
__noinline int sl_snat_take(struct __sk_buff *skb, __u32 port)
{
	struct sl_flow_scratch *s = flow_scratch();
	struct sl_flow *idx;

	if (!s || (proto_has_free_ports(s->key.proto) && !__snat_in_range((__u16)port)))
		return 0;
	s->rec.other.local_port = bpf_htons((__u16)port);
	if (!hostport_port_free(s->rec.other.local, s->rec.other.local_port, s->key.proto) ||
	    sock_lookup(skb, &s->rec.other) != SL_SOCK_NONE || __snat_taken(&s->rec.other, &s->key, clock_now()))
		return 0;
	flow_init_index(&s->idx, &s->key, &s->rec);
	bpf_map_update_elem(&sl_flows_new, &s->rec.other, &s->idx, BPF_NOEXIST);
	/* Also marks the entry as used, see flow_insert(). Another key: another CPU was quicker. */
	idx = bpf_map_lookup_elem(&sl_flows_new, &s->rec.other);
	return idx && tuple_equal(&idx->other, &s->key);
}

/*
 * Is the outside tuple of the record in the scratch, with this port (host byte order), that very flow's from before its
 * record was lost? Returns 1 then, else 0.
 */
__noinline int sl_snat_mine(__u32 port)
{
	struct sl_flow_scratch *s = flow_scratch();
	struct sl_flow *idx;

	if (!s)
		return 0;
	s->rec.other.local_port = bpf_htons((__u16)port);
	idx = bpf_map_lookup_elem(&sl_flows, &s->rec.other);
	if (!idx)
		idx = bpf_map_lookup_elem(&sl_flows_new, &s->rec.other);
	return idx && (idx->flags & SL_FLOW_INDEX) && (idx->flags & SL_FLOW_SNAT) && idx->owner == s->rec.owner &&
	       tuple_equal(&idx->other, &s->key);
}

/* Places to look for a lost mapping at: all for TCP in mid-stream, which is rare; few for what may as well be new. */
static __always_inline __u32 __snat_look(const struct sl_pkt *p, __u32 tries)
{
	if (pkt_is_syn(p) || !cfg_snat_secret)
		return 0;
	return p->tuple.proto == IPPROTO_TCP ? tries + 1 : 4;
}

/*
 * Gives the flow of p (record under p->tuple, s->rec filled by flow_init) an
 * outside tuple on this uplink, in s->rec.other. Returns 0 or the reason why the packet must be
 * dropped: it never leaves untranslated.
 */
static __always_inline __must_check enum sl_drop_reason snat_allocate(struct __sk_buff *skb, const struct sl_pkt *p,
								      struct sl_flow_scratch *s)
{
	__u32 rnd = ports_start(&p->tuple);
	__u16 own = bpf_ntohs(p->tuple.local_port);
	__u32 tries = proto_has_free_ports(p->tuple.proto) ? 2 * SL_SNAT_TRIES : 0;
	__u32 look = __snat_look(p, tries), i;

	s->key = p->tuple;
	s->rec.other = p->tuple;
	if (!__snat_addr(skb, p, s->rec.other.local))
		return SL_DROP_NO_SNAT_ADDR;
	s->rec.flags |= SL_FLOW_SNAT;
	for (i = 0; i <= 2 * SL_SNAT_TRIES && i < look; i++) {
		if (sl_snat_mine(__snat_candidate(own, i, rnd)))
			return SL_DROP_NONE;
	}
	for (i = 0; i <= 2 * SL_SNAT_TRIES && i <= tries; i++) {
		if (sl_snat_take(skb, __snat_candidate(own, i, rnd)))
			return SL_DROP_NONE;
	}
	return SL_DROP_SNAT_PORTS;
}
