/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "nf_conn.h"

/*
 * The translation that netfilter's connection table has for a packet behind the stack: whoever translates
 * (kube-proxy in any mode, IPVS with its conntrack, an administrator's rule), struct nf_conn has the tuples of
 * both directions. A translation that leaves no trace there is never learned.
 */

/* enum ip_conntrack_info in sk_buff._nfct: from IP_CT_IS_REPLY on, the packet is of the reply direction. */
#define SL_NFCT_INFO(nfct) ((__u32)((nfct)&SL_NFCT_INFO_MASK))
#define SL_IP_CT_IS_REPLY 3

static __always_inline void nf_addr(__u8 *to, const struct sl_nf_end *end, __u8 family)
{
	if (family == 4)
		addr_from_v4(to, end->ip[0]);
	else
		addr_copy(to, (const __u8 *)end->ip);
}

/*
 * Sets t to the tuple from one end to another, as a packet of direction dir would have it.
 */
static __always_inline void nf_set_tuple(struct sl_tuple *t, const struct sl_nf_end *from, const struct sl_nf_end *to,
					 const struct sl_pkt *p, enum sl_dir dir)
{
	const struct sl_nf_end *local = dir == SL_TX ? from : to, *remote = dir == SL_TX ? to : from;

	*t = p->tuple;
	nf_addr(t->local, local, p->family);
	nf_addr(t->remote, remote, p->family);
	t->local_port = local->port;
	t->remote_port = remote->port;
}

/*
 * Sets s->pre to the tuple that a packet of direction dir had before netfilter translated it. True if netfilter has translated it,
 * and into the tuple that it has now. related: p is the packet inside an ICMP error, which has another tuple.
 * A function of its own: the verifier follows it once. Kernel 5.5 (bpf_probe_read_kernel).
 * out: s->pre, ->nf, ->nf_conn, ->nf_hash, ->nf_reply
 */
static __noinline bool sl_nf_translated(struct __sk_buff *skb, const struct sl_pkt *p, struct sl_ct_scratch *s,
					__u32 dir, bool related)
{
	const struct sl_nf_tuple *in, *back;
	unsigned long nfct = 0;

	if (!cfg_nf_tuples_offset || p->echo || (p->tuple.proto != IPPROTO_TCP && p->tuple.proto != IPPROTO_UDP))
		return false;
	/* The context of a tc program is the packet itself (struct sk_buff). */
	if (bpf_probe_read_kernel(&nfct, sizeof(nfct), (void *)skb + cfg_nfct_offset) || !(nfct & ~SL_NFCT_INFO_MASK))
		return false;
	s->nf_conn = nfct & ~SL_NFCT_INFO_MASK;
	if (sl_nf_read(s->nf_conn, s))
		return false;
	s->nf_reply = SL_NFCT_INFO(nfct) >= SL_IP_CT_IS_REPLY;
	in = s->nf_reply ? &s->nf.tuple[1] : &s->nf.tuple[0];
	back = s->nf_reply ? &s->nf.tuple[0] : &s->nf.tuple[1];
	if (in->dst.more[0] != p->tuple.proto)
		return false;
	nf_set_tuple(&s->pre, &in->src, &in->dst, p, (enum sl_dir)dir);
	if (related)
		return true;
	/* What the answers answer is what the packet has become. */
	nf_set_tuple(&s->key, &back->dst, &back->src, p, (enum sl_dir)dir);
	return tuple_equal(&s->key, &p->tuple) && !tuple_equal(&s->pre, &p->tuple);
}

/* May netfilter have translated the packet? A quick look, before its tuples are read. */
static __always_inline bool nf_may_translate(struct __sk_buff *skb, const struct sl_pkt *p)
{
	unsigned long nfct = 0;

	return cfg_nf_tuples_offset && !p->echo &&
	       !bpf_probe_read_kernel(&nfct, sizeof(nfct), (void *)skb + cfg_nfct_offset) &&
	       (nfct & ~SL_NFCT_INFO_MASK);
}
