/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "odd_rewrite.h"
#include "rewrite.h"

/* Changes of both ends of a packet at a pod's device, for turn.h, which says what for. */

/* A packet and what is built from it: too big for the stack, which callers share. */
struct sl_turn {
	struct sl_pkt p;
	struct sl_pkt back; /* the same with its ends exchanged */
	struct sl_tuple to;
	struct sl_tuple key;
	struct sl_tuple want; /* for turn_set() */
	__u32 start;	      /* place of the first try for a port */
	__u32 odd; /* 1: the packet is in the scratch of the second parser, whose functions change it (turn_odd.h) */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sl_turn);
} sl_turn_scratch SEC(".maps");

static __always_inline struct sl_turn *turn_scratch(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&sl_turn_scratch, &zero);
}

/*
 * Puts the ends of t->want in the place of the packet's own. dir: of the packet, enum
 * sl_dir. A function of its own, for the stack it takes. Returns 0, or the packet must be dropped.
 */
__noinline int sl_turn_set(struct __sk_buff *skb, __u32 dir)
{
	struct sl_turn *t = turn_scratch();

	if (!t)
		return -1;
	t->back = t->p;
	tuple_reverse(&t->back.tuple, &t->p);
	t->to = t->back.tuple;
	addr_copy(t->to.local, t->want.remote);
	if (!t->p.echo) /* its identifier is the local end's, and there is no other port */
		t->to.local_port = t->want.remote_port;
	if (dir == SL_TX) {
		if (rewrite_packet(skb, &t->back, SL_RX, &t->to, false) ||
		    rewrite_packet(skb, &t->p, SL_TX, &t->want, false))
			return -1;
	} else {
		if (rewrite_packet(skb, &t->back, SL_TX, &t->to, false) ||
		    rewrite_packet(skb, &t->p, SL_RX, &t->want, false))
			return -1;
	}
	t->p.tuple = t->want;
	return 0;
}

/* Exchanges the ends of a packet that the second parser has read. room: the stack has none left. */
static __always_inline void head_reverse(struct sl_head *h, struct sl_tuple *room)
{
	tuple_reverse(room, &h->p);
	h->p.tuple = *room;
}

/* For a packet whose ends have been exchanged: the tuple that gives it want's far end, and its port of the near one. */
static __always_inline void turn_far_end(struct sl_tuple *to, const struct sl_pkt *reversed,
					 const struct sl_tuple *want)
{
	*to = reversed->tuple;
	addr_copy(to->local, want->remote);
	if (reversed->echo) { /* has one port */
		to->local_port = want->local_port;
		return;
	}
	to->local_port = want->remote_port;
	to->remote_port = want->local_port;
}

/* sl_turn_set() for a packet in the scratch of the second parser, where inner is free. */
__noinline int sl_turn_set_odd(struct __sk_buff *skb, __u32 dir)
{
	struct sl_turn *t = turn_scratch();
	struct sl_odd *o = odd_scratch();

	if (!t || !o)
		return -1;
	o->inner = o->outer;
	head_reverse(&o->inner, &t->to);
	turn_far_end(&t->to, &o->inner.p, &t->want);
	if (odd_rewrite(skb, &o->inner, dir == SL_TX ? SL_RX : SL_TX, &t->to))
		return -1;
	t->p.tuple = t->want;
	return 0;
}

static __always_inline __must_check int turn_set(struct __sk_buff *skb, const struct sl_turn *t, enum sl_dir dir)
{
	return t->odd ? sl_turn_set_odd(skb, dir) : sl_turn_set(skb, dir);
}
