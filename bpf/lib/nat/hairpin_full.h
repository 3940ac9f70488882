/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../packet/fragment.h"
#include "hairpin.h"
#include "../packet/icmp_error.h"

/*
 * Hairpin and pod-side SNAT for what the full parser reads: fragments, extension headers, SCTP, and the
 * ICMP errors about any packet. Of such a packet only the far end changes: where hairpin.h says
 * G:q -> B:b becomes A:p' -> B:b, the end that is not the pod of this device. So this header swaps the
 * ends of the tuples, and the functions that change a local end do the work.
 */

/* sl_frag_key.dir at a pod's device, apart from that at an uplink. */
static __always_inline enum sl_dir pod_frag_dir(__u32 dir)
{
	return (enum sl_dir)(dir | 2);
}

static __always_inline enum sl_dir opposite_dir(__u32 dir)
{
	return dir == SL_TX ? SL_RX : SL_TX;
}

/*
 * Notes the address of the first fragment, for the later ones. A function of its own, for the stack
 * it takes.
 * in: full_scratch()->outer, hairpin_scratch()->p
 */
__noinline int sl_hpin_frag(__u32 dir)
{
	struct sl_full_ctx *full = full_scratch();
	struct sl_hairpin_ctx *ctx = hairpin_scratch();

	if (!full || !ctx)
		return 0;
	if (addr_equal(full->outer.p.tuple.remote, ctx->p.tuple.remote))
		frag_forget(&full->outer, pod_frag_dir(dir));
	else
		frag_note(&full->outer, pod_frag_dir(dir), ctx->p.tuple.remote, clock_now());
	return 0;
}

/*
 * A packet with ports: the first fragment, or one with extension headers. It goes the way of any
 * packet; the later fragments follow it.
 * in: full_scratch()->outer  out: hairpin_scratch()
 */
static __always_inline int hairpin_full_tuple(struct __sk_buff *skb, __u32 dir)
{
	struct sl_full_ctx *full = full_scratch();
	struct sl_hairpin_ctx *ctx = hairpin_scratch();
	int verdict;

	if (!full || !ctx)
		return SL_NEXT;
	ctx->p = full->outer.p;
	verdict = dir == SL_TX ? sl_hairpin_from_pod(skb, 1) : sl_hairpin_to_pod(skb, 1);
	if (verdict == TC_ACT_SHOT)
		return verdict;
	if (full->outer.first_frag)
		sl_hpin_frag(dir);
	return SL_NEXT;
}

/*
 * A later fragment.
 * in: full->outer  out: full->outer.p.tuple, ctx->to
 */
static __always_inline int hairpin_frag_next(struct __sk_buff *skb, struct sl_full_ctx *full,
					     struct sl_hairpin_ctx *ctx, __u32 dir)
{
	struct sl_frag *fr = frag_lookup(&full->outer, pod_frag_dir(dir), clock_now());
	__u8 to[16] __attribute__((aligned(4)));

	if (!fr)
		return SL_NEXT;
	addr_copy(to, fr->to);
	ip_pkt_reverse(&full->outer, &ctx->to);
	return full_rewrite_addr(skb, &full->outer, dir == SL_RX, to) ? drop(skb, SL_DROP_REWRITE, skb->ifindex)
								      : SL_NEXT;
}

/*
 * Sets ctx->target to what the packet inside an ICMP error was before its translation. SL_TX: the
 * pod got that packet. SL_RX: the pod sent it. False: it was not translated.
 * in: full->inner  out: ctx->key, ctx->target
 */
static __always_inline bool hairpin_before(struct sl_full_ctx *full, struct sl_hairpin_ctx *ctx, __u64 owner, __u32 dir,
					   __u64 now)
{
	__u32 reverse = dir == SL_TX ? SL_CT_POD_SNAT : SL_CT_HAIRPIN,
	      forward = dir == SL_TX ? SL_CT_HAIRPIN : SL_CT_POD_SNAT;
	struct sl_ct_entry *ct;

	ctx->key = full->inner.p.tuple;
	ct = ct_lookup(&ctx->key, now);
	if (!hairpin_is_reverse(ct, reverse, owner)) {
		if (forward == SL_CT_POD_SNAT)
			ctx->key.side = SL_CT_SIDE_POD_SNAT;
		ct = ct_lookup_entry(&ctx->key, owner, now);
		if (!ct || !(ct->flags & forward))
			return false;
	}
	ctx->target = ct->other;
	ctx->target.side = SL_CT_SIDE_POD;
	return true;
}

/*
 * An ICMP error: translates the packet inside, and the error's own far end where it is the same
 * address.
 * in: full->outer  out: full->inner, ctx->key, ctx->target, ctx->to
 */
static __always_inline int hairpin_icmp_error(struct __sk_buff *skb, struct sl_full_ctx *full,
					      struct sl_hairpin_ctx *ctx, __u32 dir)
{
	struct sl_endpoint *ep;

	if (!parse_full_inner(skb, full, dir == SL_TX ? SL_TX : SL_RX) ||
	    !addr_equal(full->outer.p.tuple.local, full->inner.p.tuple.local))
		return SL_NEXT;
	ep = endpoint_lookup(full->inner.p.tuple.local);
	if (!ep || !hairpin_before(full, ctx, ep->owner, dir, clock_now()))
		return SL_NEXT;
	ip_pkt_reverse(&full->outer, &ctx->to);
	ip_pkt_reverse(&full->inner, &ctx->to);
	hairpin_far_end(&ctx->to, &full->inner.p, &ctx->target);
	return icmp_rewrite_error(skb, full, opposite_dir(dir), &ctx->to) ? drop(skb, SL_DROP_REWRITE, skb->ifindex)
									  : SL_NEXT;
}

/*
 * An ICMP error or a later fragment. A function of its own, for the stack it takes.
 * in: full_scratch()->outer  out: hairpin_scratch()
 */
__noinline int sl_hpin_related(struct __sk_buff *skb, __u32 dir)
{
	struct sl_full_ctx *full = full_scratch();
	struct sl_hairpin_ctx *ctx = hairpin_scratch();

	if (!full || !ctx)
		return SL_NEXT;
	return full->outer.kind == SL_FULL_ICMP_ERROR ? hairpin_icmp_error(skb, full, ctx, dir)
						      : hairpin_frag_next(skb, full, ctx, dir);
}

/*
 * A packet that the fast parser cannot read, at a pod's device. dir: enum sl_dir. Inlined: the
 * frames of its callees would be too many.
 */
static __always_inline int hairpin_full(struct __sk_buff *skb, __u32 dir)
{
	switch (sl_parse_full(skb, ETH_HLEN, dir, 0)) {
	case SL_FULL_TUPLE:
		return hairpin_full_tuple(skb, dir);
	case SL_FULL_ICMP_ERROR:
	case SL_FULL_FRAG_NEXT:
		return sl_hpin_related(skb, dir);
	default:
		return SL_NEXT;
	}
}
