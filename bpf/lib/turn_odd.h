/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "frag.h"
#include "icmp.h"
#include "turn.h"

/*
 * What the second parser reads, on its way through a hairpin or a pod's door: fragments, extension headers, SCTP, and the ICMP
 * errors about either. Of such a packet only the far end changes: where turn.h says G:q -> B:b becomes A:p' -> B:b, the
 * end that is no pod of the device. So the tuples are turned around here, and the functions that change a local end do.
 */

/* sl_frag_key.dir of the fragments at a pod's device, apart from those at an uplink. */
static __always_inline enum sl_dir __frag_dir(__u32 dir)
{
	return (enum sl_dir)(dir | 2);
}

static __always_inline enum sl_dir __opposite(__u32 dir)
{
	return dir == SL_TX ? SL_RX : SL_TX;
}

/* Notes where the first fragment in the scratch has gone, for the rest. A function of its own, for the stack it takes. */
__noinline int sl_turn_note(__u32 dir)
{
	struct sl_odd *o = odd_scratch();
	struct sl_turn *t = turn_scratch();

	if (!o || !t)
		return 0;
	if (addr_equal(o->outer.p.tuple.remote, t->p.tuple.remote))
		frag_forget(&o->outer, __frag_dir(dir));
	else
		frag_note(&o->outer, __frag_dir(dir), t->p.tuple.remote, clock_now());
	return 0;
}

/* The first fragment, or what has headers of its own: as any packet, and the rest of the datagram goes where it does. */
static __always_inline int __turn_first(struct __sk_buff *skb, __u32 dir)
{
	struct sl_odd *o = odd_scratch();
	struct sl_turn *t = turn_scratch();
	int verdict;

	if (!o || !t)
		return SL_PASS;
	t->p = o->outer.p;
	t->odd = 1;
	verdict = dir == SL_TX ? sl_turn_out(skb) : sl_turn_in(skb);
	t->odd = 0;
	if (verdict == TC_ACT_SHOT)
		return verdict;
	if (o->outer.more)
		sl_turn_note(dir);
	return SL_PASS;
}

/* The rest of a datagram. */
static __always_inline int __turn_later(struct __sk_buff *skb, struct sl_odd *o, struct sl_turn *t, __u32 dir)
{
	struct sl_frag *fr = frag_lookup(&o->outer, __frag_dir(dir), clock_now());
	__u8 to[16];

	if (!fr)
		return SL_PASS;
	addr_copy(to, fr->to);
	head_reverse(&o->outer, &t->to);
	return odd_rewrite_addr(skb, &o->outer, dir == SL_RX, to) ? drop(skb, SL_DROP_REWRITE, skb->ifindex) : SL_PASS;
}

/*
 * What the packet that an error is about was before it was turned, in t->want. It is the pod's own (dir is SL_TX), which got it, or somebody else's
 * (SL_RX), about what the pod sent. False: it was not turned.
 */
static __always_inline bool __turn_before(struct sl_odd *o, struct sl_turn *t, __u64 owner, __u32 dir, __u64 now)
{
	__u32 index = dir == SL_TX ? SL_FLOW_DOOR : SL_FLOW_TURNED,
	      record = dir == SL_TX ? SL_FLOW_TURNED : SL_FLOW_DOOR;
	struct sl_flow *f;

	t->key = o->inner.p.tuple;
	f = flow_lookup(&t->key, now);
	if (!__turn_index(f, index, owner)) {
		if (record == SL_FLOW_DOOR)
			t->key.pad[0] = SL_SIDE_DOOR;
		f = flow_record(&t->key, owner, now);
		if (!f || !(f->flags & record))
			return false;
	}
	t->want = f->other;
	t->want.pad[0] = 0;
	return true;
}

/* An ICMP error: the packet it is about, and its own far end where that is the packet's. */
static __always_inline int __turn_error(struct __sk_buff *skb, struct sl_odd *o, struct sl_turn *t, __u32 dir)
{
	struct sl_endpoint *ep;

	if (!odd_parse_inner(skb, o, dir == SL_TX ? SL_TX : SL_RX) ||
	    !addr_equal(o->outer.p.tuple.local, o->inner.p.tuple.local))
		return SL_PASS;
	ep = endpoint_lookup(o->inner.p.tuple.local);
	if (!ep || !__turn_before(o, t, ep->owner, dir, clock_now()))
		return SL_PASS;
	head_reverse(&o->outer, &t->to);
	head_reverse(&o->inner, &t->to);
	turn_far_end(&t->to, &o->inner.p, &t->want);
	return icmp_rewrite_error(skb, o, __opposite(dir), &t->to) ? drop(skb, SL_DROP_REWRITE, skb->ifindex) : SL_PASS;
}

/* An ICMP error or a later fragment, in the scratch. A function of its own, for the stack it takes. */
__noinline int sl_turn_rest(struct __sk_buff *skb, __u32 dir)
{
	struct sl_odd *o = odd_scratch();
	struct sl_turn *t = turn_scratch();

	if (!o || !t)
		return SL_PASS;
	return o->outer.kind == SL_ODD_ERROR ? __turn_error(skb, o, t, dir) : __turn_later(skb, o, t, dir);
}

/* A packet that the first parser gave up, at a pod's device. dir: enum sl_dir. No function: the frames of what it calls would be too many. */
static __always_inline int turn_odd(struct __sk_buff *skb, __u32 dir)
{
	switch (sl_odd_parse(skb, ETH_HLEN, dir, 0)) {
	case SL_ODD_L4:
		return __turn_first(skb, dir);
	case SL_ODD_ERROR:
	case SL_ODD_LATER:
		return sl_turn_rest(skb, dir);
	default:
		return SL_PASS;
	}
}
