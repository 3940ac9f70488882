/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../packet/rewrite.h"
#include "../packet/rewrite_full.h"

/*
 * Rewrites both ends of a packet at a pod's device, for hairpin and pod-side SNAT, and holds the
 * scratch that those use.
 */

/* A packet and what is built from it: too big for the stack, which the callers share. */
struct sl_hairpin_ctx {
	struct sl_pkt p;
	struct sl_pkt reversed; /* the same with its ends swapped */
	struct sl_tuple to;
	struct sl_tuple key;
	struct sl_tuple target; /* for hairpin_rewrite() */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sl_hairpin_ctx);
} sl_hpin_scratch SEC(".maps");

static __always_inline struct sl_hairpin_ctx *hairpin_scratch(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&sl_hpin_scratch, &zero);
}

/*
 * Gives the packet the two ends of target. dir: of the packet, enum sl_dir. A function of its own,
 * for the stack it takes. Returns 0, or a negative error after which the packet must be dropped.
 * in: hairpin_scratch()->p, ->target  out: ->p.tuple, ->reversed, ->to
 */
__noinline int sl_hpin_rewrite(struct __sk_buff *skb, __u32 dir)
{
	struct sl_hairpin_ctx *ctx = hairpin_scratch();

	if (!ctx)
		return -1;
	ctx->reversed = ctx->p;
	tuple_reverse(&ctx->reversed.tuple, &ctx->p);
	ctx->to = ctx->reversed.tuple;
	addr_copy(ctx->to.local, ctx->target.remote);
	if (!ctx->p.echo) /* its identifier belongs to the local end; there is no other port */
		ctx->to.local_port = ctx->target.remote_port;
	if (dir == SL_TX) {
		if (rewrite_packet(skb, &ctx->reversed, SL_RX, &ctx->to, false) ||
		    rewrite_packet(skb, &ctx->p, SL_TX, &ctx->target, false))
			return -1;
	} else {
		if (rewrite_packet(skb, &ctx->reversed, SL_TX, &ctx->to, false) ||
		    rewrite_packet(skb, &ctx->p, SL_RX, &ctx->target, false))
			return -1;
	}
	ctx->p.tuple = ctx->target;
	return 0;
}

/* Swaps the ends of a packet that the full parser has read. spare: the stack has no room. */
static __always_inline void ip_pkt_reverse(struct sl_ip_pkt *pkt, struct sl_tuple *spare)
{
	tuple_reverse(spare, &pkt->p);
	pkt->p.tuple = *spare;
}

/* For a packet whose ends are swapped: sets to, which gives the packet target's far end and near port. */
static __always_inline void hairpin_far_end(struct sl_tuple *to, const struct sl_pkt *reversed,
					    const struct sl_tuple *target)
{
	*to = reversed->tuple;
	addr_copy(to->local, target->remote);
	if (reversed->echo) { /* has one port */
		to->local_port = target->local_port;
		return;
	}
	to->local_port = target->remote_port;
	to->remote_port = target->local_port;
}

/*
 * sl_hpin_rewrite() for a packet that the full parser has read.
 * in: hairpin_scratch()->target, full_scratch()->outer  out: ->p.tuple, ->to, full_scratch()->inner
 */
__noinline int sl_hpin_rw_full(struct __sk_buff *skb, __u32 dir)
{
	struct sl_hairpin_ctx *ctx = hairpin_scratch();
	struct sl_full_ctx *full = full_scratch();

	if (!ctx || !full)
		return -1;
	full->inner = full->outer;
	ip_pkt_reverse(&full->inner, &ctx->to);
	hairpin_far_end(&ctx->to, &full->inner.p, &ctx->target);
	if (full_rewrite(skb, &full->inner, dir == SL_TX ? SL_RX : SL_TX, &ctx->to))
		return -1;
	ctx->p.tuple = ctx->target;
	return 0;
}

/* full: the packet is in full_scratch(), and the functions of rewrite_full.h change it. */
static __always_inline __must_check int hairpin_rewrite(struct __sk_buff *skb, __u32 full, enum sl_dir dir)
{
	return full ? sl_hpin_rw_full(skb, dir) : sl_hpin_rewrite(skb, dir);
}
