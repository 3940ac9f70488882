/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../drop/drop.h"
#include "../endpoint/endpoint.h"
#include "../endpoint/ifindex_exists.h"
#include "../hostport/hostport.h"
#include "addr_forwarded.h"
#include "pod_snat.h"

/*
 * Hairpin NAT: pod A connects to hostPort N:h of its own node and reaches pod B (possibly A).
 *  Step 1, at A's host veth: DNAT N:h -> B:b.
 *  Step 2, at B's host veth, if pod-side SNAT applies: SNAT A:p -> G:q (G: B's gateway).
 *
 *            A's hooks                            B's hooks
 *   asked:   A:p -> N:h   | A:p' -> B:b   stack   | A:p' -> B:b  | G:q -> B:b
 *   answer:  N:h -> A:p   | B:b  -> A:p'  stack   | B:b  -> A:p' | B:b -> G:q
 *
 * Each step has a conntrack entry and a reverse entry. Step 1 has the key A:p N:h and the other
 * tuple A:p' B:b. p' is p, unless A has a connection of its own from that port to B. In the middle the
 * stack sees two pods, so its rules about forwarding apply. Never on the fast path.
 */

/*
 * Creates the client's entry.
 * in: ctx->p, ctx->key (the tuple with the node's end as local)
 */
static __always_inline enum sl_drop_reason hairpin_create(struct __sk_buff *skb, struct sl_hairpin_ctx *ctx,
							  const struct sl_endpoint *ep, const struct sl_hostport *hp,
							  const struct sl_endpoint *to, __u64 now)
{
	struct sl_ct_scratch *s = ct_scratch();
	enum sl_drop_reason reason;
	struct sl_ct_entry *ct;

	if (!s)
		return SL_DROP_CT_TABLE;
	ct_init(&s->entry, ep->owner, SL_CT_POD_OPENED | SL_CT_HAIRPIN, now);
	if (hostport_wants_pod_snat(hp, to, ctx->p.tuple.local))
		s->entry.flags |= SL_CT_WANTS_POD_SNAT;
	s->entry.hostport_generation = hp->generation;
	s->entry.other = ctx->p.tuple;
	addr_copy(s->entry.other.remote, hp->ip);
	s->entry.other.remote_port = hp->port;
	s->key = ctx->p.tuple;
	ct = hairpin_insert(skb, s, bpf_ntohs(ctx->p.tuple.local_port), &reason);
	if (ct)
		ct_update(&ctx->p.tuple, ct, &ctx->p, SL_TX, skb->len, now);
	return reason;
}

/*
 * A pod of this node connects to a published port of the node.
 * in: ctx->p  out: ctx->key, ctx->target
 */
static __always_inline int hairpin_request(struct __sk_buff *skb, struct sl_hairpin_ctx *ctx,
					   const struct sl_endpoint *ep, __u32 full, __u64 now)
{
	enum sl_drop_reason reason;
	struct sl_hostport *hp;
	struct sl_endpoint *to;
	struct sl_ct_entry *ct;
	__u32 match;

	if (ctx->p.echo)
		return SL_NOT_HAIRPIN;
	tuple_reverse(&ctx->key, &ctx->p);
	hp = hostport_lookup(&ctx->key, ep->route_ifindex, &match);
	if (!hp || ((match & SL_HP_MATCH_ANYADDR) && !is_node_addr(ctx->key.local)))
		return SL_NOT_HAIRPIN;
	if (hp->port != ctx->key.local_port && !proto_has_free_ports(ctx->key.proto))
		return SL_NOT_HAIRPIN; /* the loader writes no such mapping */
	to = endpoint_lookup(hp->ip);
	if (!to || to->owner != hp->owner)
		return SL_NOT_HAIRPIN;
	ct = ct_lookup_entry(&ctx->p.tuple, ep->owner, now);
	if (!ct || !(ct->flags & SL_CT_HAIRPIN) || ct->hostport_generation != hp->generation ||
	    !ct_ensure_reverse(&ctx->p.tuple, ct)) {
		if (addr_forwarded(skb, &ctx->key, ep->route_ifindex))
			return SL_NOT_HAIRPIN;
		/* As from outside: leave the node's own connection from this port alone. */
		if (!pkt_is_syn(&ctx->p) && node_socket_expects(skb, &ctx->key))
			return SL_NOT_HAIRPIN;
		if (sl_ifindex_gone(skb, to->ifindex))
			return SL_NOT_HAIRPIN;
		if (!hostport_admits(hp, ctx->key.remote))
			return drop(skb, SL_DROP_SOURCE, to->ifindex);
		reason = hairpin_create(skb, ctx, ep, hp, to, now);
		if (reason)
			return drop(skb, reason, ep->ifindex);
		ct = ct_lookup_entry(&ctx->p.tuple, ep->owner, now);
		if (!ct)
			return drop(skb, SL_DROP_CT_TABLE, ep->ifindex);
	}
	endpoint_set_admit_mark(skb, to);
	ctx->target = ct->other;
	if (hairpin_rewrite(skb, full, SL_TX))
		return drop(skb, SL_DROP_REWRITE, ep->ifindex);
	return SL_NEXT;
}

/*
 * What a pod sends. full: as hairpin_rewrite().
 * in: hairpin_scratch()->p  out: the rest of it
 */
__noinline int sl_hairpin_from_pod(struct __sk_buff *skb, __u32 full)
{
	struct sl_hairpin_ctx *ctx = hairpin_scratch();
	__u64 now = clock_now();
	struct sl_endpoint *ep;
	int verdict;

	if (!ctx)
		return SL_NOT_HAIRPIN;
	ep = endpoint_lookup(ctx->p.tuple.local);
	if (!ep)
		return SL_NOT_HAIRPIN;
	verdict = pod_snat_reply(skb, ctx, ep, full, now);
	return verdict == SL_NOT_HAIRPIN ? hairpin_request(skb, ctx, ep, full, now) : verdict;
}

/* For sl_from_pod, on the slow path. */
static __always_inline int hairpin_from_pod(struct __sk_buff *skb, const struct sl_pkt *p)
{
	struct sl_hairpin_ctx *ctx = hairpin_scratch();

	if (!ctx)
		return SL_NOT_HAIRPIN;
	ctx->p = *p;
	return sl_hairpin_from_pod(skb, 0);
}

/*
 * To the client: the answer comes from the address and port the client asked for.
 * in: ctx->p  out: ctx->key, ctx->target
 */
static __always_inline int hairpin_reply(struct __sk_buff *skb, struct sl_hairpin_ctx *ctx,
					 const struct sl_endpoint *ep, __u32 full, __u64 now)
{
	struct sl_ct_entry *ct = ct_lookup(&ctx->p.tuple, now);
	__u64 owner = ep->owner;

	if (!hairpin_is_reverse(ct, SL_CT_HAIRPIN, owner))
		return SL_NOT_HAIRPIN;
	ct = hairpin_entry(&ctx->p.tuple, ct, &ctx->key, owner, now);
	if (!ct)
		return SL_NOT_HAIRPIN;
	ct_update(&ctx->key, ct, &ctx->p, SL_RX, skb->len, now);
	ctx->target = ctx->key;
	if (hairpin_rewrite(skb, full, SL_RX))
		return drop(skb, SL_DROP_REWRITE, ep->ifindex);
	return SL_NEXT;
}

/*
 * What a pod gets from another pod, or from outside through a mapping with masqAll. full: as hairpin_rewrite().
 * in: hairpin_scratch()->p  out: the rest of it
 */
__noinline int sl_hairpin_to_pod(struct __sk_buff *skb, __u32 full)
{
	struct sl_hairpin_ctx *ctx = hairpin_scratch();
	__u64 now = clock_now();
	struct sl_endpoint *ep, *sender;
	struct sl_ct_entry *ct;
	bool hairpin, pod_snat;
	int verdict;

	if (!ctx)
		return SL_NOT_HAIRPIN;
	ep = endpoint_lookup(ctx->p.tuple.local);
	if (!ep)
		return SL_NOT_HAIRPIN;
	verdict = hairpin_reply(skb, ctx, ep, full, now);
	if (verdict != SL_NOT_HAIRPIN)
		return verdict;
	/* As the client sees it: does a reverse entry lead to what it asked for? */
	tuple_reverse(&ctx->to, &ctx->p);
	ct = ct_lookup(&ctx->to, now);
	hairpin = ct && (ct->flags & SL_CT_REVERSE) && (ct->flags & SL_CT_HAIRPIN);
	pod_snat = hairpin && (ct->flags & SL_CT_WANTS_POD_SNAT);
	sender = endpoint_lookup(ctx->p.tuple.remote);
	if (!pod_snat && sender)
		pod_snat = needs_pod_snat(ctx, ep, sender, now);
	if (!sender) {
		ct = ct_lookup_entry(&ctx->p.tuple, ep->owner, now);
		pod_snat = ct && ct_comes_by_pod_snat(ct);
	}
	if (pod_snat)
		return pod_snat_to_pod(skb, ctx, ep, full, now);
	return hairpin ? SL_NEXT : SL_NOT_HAIRPIN;
}

/* For sl_to_pod. */
static __always_inline int hairpin_to_pod(struct __sk_buff *skb, const struct sl_pkt *p)
{
	struct sl_hairpin_ctx *ctx = hairpin_scratch();

	if (!ctx)
		return SL_NOT_HAIRPIN;
	ctx->p = *p;
	return sl_hairpin_to_pod(skb, 0);
}
