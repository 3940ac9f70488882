/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../drop/drop.h"
#include "../endpoint/endpoint.h"
#include "hairpin_port.h"
#include "../base/ctx.h"

/*
 * Pod-side SNAT: the pod sees the address of the device it is routed from instead of its client's.
 * It happens at the host veth of the pod that is asked, for hostPorts with "snat" or "masqAll", and for
 * ipMasq between two networks of the node. Each such connection has an entry with
 * SL_CT_SIDE_POD_SNAT in its key (the tuple as the stack has it) and a reverse entry.
 */

/* Is the packet a reply through pod-side SNAT? Such a packet opens no connection. */
static __always_inline bool pod_snat_is_reply(const struct sl_tuple *tuple, __u64 now)
{
	struct sl_ct_entry *ct = ct_lookup(tuple, now);

	return ct && (ct->flags & SL_CT_REVERSE) && (ct->flags & SL_CT_POD_SNAT);
}

/*
 * The pod replies to the address that pod-side SNAT showed it: the reply goes to the real client.
 * in: ctx->p  out: ctx->key, ctx->target
 */
static __always_inline int pod_snat_reply(struct __sk_buff *skb, struct sl_hairpin_ctx *ctx,
					  const struct sl_endpoint *ep, __u32 full, __u64 now)
{
	struct sl_ct_entry *ct = ct_lookup(&ctx->p.tuple, now);
	__u64 owner = ep->owner;
	bool outside;

	if (!hairpin_is_reverse(ct, SL_CT_POD_SNAT, owner))
		return SL_NOT_HAIRPIN;
	ct = hairpin_entry(&ctx->p.tuple, ct, &ctx->key, owner, now);
	if (!ct)
		return SL_NOT_HAIRPIN;
	ct_update(&ctx->key, ct, &ctx->p, SL_TX, skb->len, now);
	ctx->target = ctx->key;
	ctx->target.side = SL_CT_SIDE_POD;
	if (hairpin_rewrite(skb, full, SL_TX))
		return drop(skb, SL_DROP_REWRITE, ep->ifindex);
	/*
	 * A client outside has an entry of the hostPort's connection too, which this packet
	 * answers. Under a policy there is an entry for its verdict, whose tuple has not left the
	 * pod.
	 */
	ct = ct_lookup_entry(&ctx->p.tuple, owner, now);
	if (!ct)
		return SL_NEXT;
	outside = ct->flags & SL_CT_DNAT;
	ct = ct_update(&ctx->p.tuple, ct, &ctx->p, SL_TX, skb->len, now);
	if (!outside)
		ct->flags &= ~SL_CT_TX_SEEN_FIRST;
	return SL_NEXT;
}

/*
 * Creates the entry of pod-side SNAT at ep for the packet's tuple.
 * in: ctx->p, ctx->key
 */
static __always_inline enum sl_drop_reason pod_snat_create(struct __sk_buff *skb, struct sl_hairpin_ctx *ctx,
							   const struct sl_endpoint *ep, __u64 now)
{
	struct sl_ct_scratch *s = ct_scratch();
	enum sl_drop_reason reason;

	if (!s)
		return SL_DROP_CT_TABLE;
	if (addr_is_any(ep->gateway))
		return SL_DROP_NO_GATEWAY;
	ct_init(&s->entry, ep->owner, SL_CT_POD_SNAT, now);
	s->entry.other = ctx->p.tuple;
	addr_copy(s->entry.other.remote, ep->gateway);
	s->key = ctx->key;
	hairpin_insert(skb, s, bpf_ntohs(ctx->p.echo ? ctx->p.tuple.local_port : ctx->p.tuple.remote_port), &reason);
	return reason;
}

/*
 * To the pod that is asked: the packet comes from the address of the device the pod is routed from.
 * in: ctx->p  out: ctx->key, ctx->target
 */
static __always_inline int pod_snat_to_pod(struct __sk_buff *skb, struct sl_hairpin_ctx *ctx,
					   const struct sl_endpoint *ep, __u32 full, __u64 now)
{
	enum sl_drop_reason reason;
	struct sl_ct_entry *ct;

	ctx->key = ctx->p.tuple;
	ctx->key.side = SL_CT_SIDE_POD_SNAT;
	ct = ct_lookup_entry(&ctx->key, ep->owner, now);
	if (!ct || !(ct->flags & SL_CT_POD_SNAT) || ct_is_new_connection(ct, &ctx->p, SL_RX) ||
	    !ct_ensure_reverse(&ctx->key, ct)) {
		reason = pod_snat_create(skb, ctx, ep, now);
		if (reason)
			return drop(skb, reason, ep->ifindex);
		ct = ct_lookup_entry(&ctx->key, ep->owner, now);
		if (!ct)
			return drop(skb, SL_DROP_CT_TABLE, ep->ifindex);
	}
	ct = ct_update(&ctx->key, ct, &ctx->p, SL_RX, skb->len, now);
	ctx->target = ct->other;
	if (hairpin_rewrite(skb, full, SL_RX))
		return drop(skb, SL_DROP_REWRITE, ep->ifindex);
	return SL_NEXT;
}

/*
 * Has the packet's connection got pod-side SNAT at ep before?
 * in: ctx->p  out: ctx->key
 */
static __always_inline bool has_pod_snat(struct sl_hairpin_ctx *ctx, const struct sl_endpoint *ep, __u64 now)
{
	struct sl_ct_entry *ct;

	ctx->key = ctx->p.tuple;
	ctx->key.side = SL_CT_SIDE_POD_SNAT;
	ct = ct_lookup_entry(&ctx->key, ep->owner, now);
	return ct && (ct->flags & SL_CT_POD_SNAT);
}

/*
 * Does the packet, which sender sent to another network of this node, need pod-side SNAT (ipMasq)?
 * As at an uplink: not if it answers what the other pod opened, even through the sender's own pod-
 * side SNAT. Under a policy the sender's entry has seen answers too. So a connection that got SNAT
 * once is marked there, and keeps it.
 * in: ctx->p  out: ctx->key, ctx->to
 */
static __always_inline bool needs_pod_snat(struct sl_hairpin_ctx *ctx, const struct sl_endpoint *ep,
					   const struct sl_endpoint *sender, __u64 now)
{
	const struct sl_pkt *p = &ctx->p;
	__u32 opened = 0;
	struct sl_ct_entry *ct;
	bool answers;

	if (!endpoint_masquerades(sender, p->tuple.remote, p->tuple.local))
		return false;
	ct = ct_lookup_entry(&p->tuple, ep->owner, now);
	if (ct && (ct->flags & SL_CT_POD_OPENED))
		return false;
	tuple_reverse(&ctx->to, p);
	ct = ct_lookup_entry(&ctx->to, sender->owner, now);
	if (ct)
		opened = ct->flags;
	answers = ct &&
		  (!(opened & SL_CT_POD_OPENED) || (opened & (SL_CT_REPLIED | SL_CT_WANTS_POD_SNAT)) == SL_CT_REPLIED);
	if (answers && !has_pod_snat(ctx, ep, now))
		return false;
	ctx->to.side = SL_CT_SIDE_POD_SNAT;
	ct = ct_lookup_entry(&ctx->to, sender->owner, now);
	if (ct && (ct->flags & SL_CT_POD_SNAT))
		return false;
	if (!opened || (opened & SL_CT_WANTS_POD_SNAT))
		return true;
	ctx->to.side = SL_CT_SIDE_POD;
	ct = ct_lookup_entry(&ctx->to, sender->owner, now);
	if (ct)
		ct->flags |= SL_CT_WANTS_POD_SNAT;
	return true;
}
