//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Uplink, tc egress: what pods send out by way of the stack. Last hook of the
 * sending direction: it translates (answers of a hostPort, masquerade) and
 * confirms that nobody else did.
 */
#define SL_PROGRAM SL_PROGRAM_UPLINK_EGRESS
#include "lib/compiler.h"
#include "lib/config.h"
#include "lib/endpoint.h"
#include "lib/frag.h"
#include "lib/icmp.h"
#include "lib/metrics.h"
#include "lib/passed.h"
#include "lib/sent.h"
#include "lib/snat.h"

/* The packet leaves as it is, and with it the rest of its datagram. */
static __always_inline int __leave(const struct sl_odd *o, __u64 now)
{
	if (o->outer.more)
		frag_note(&o->outer, SL_TX, o->outer.p.tuple.local, now);
	return SL_PASS;
}

/* Translates the packet of a flow that has an outside tuple. */
static __always_inline int __translate(struct __sk_buff *skb, const struct sl_odd *o, const struct sl_endpoint *ep,
				       const struct sl_flow *f, __u64 now)
{
	if (odd_rewrite(skb, &o->outer, SL_TX, &f->other))
		return drop(skb, SL_DROP_REWRITE, ep->ifindex);
	if (o->outer.more)
		frag_note(&o->outer, SL_TX, f->other.local, now);
	return SL_PASS;
}

/* The same tuple left the pod and arrived here: note the way it took, which holds for what follows at once. */
static __always_inline void __confirm(struct __sk_buff *skb, const struct sl_odd *o, struct sl_flow *f, __u64 now)
{
	const struct sl_pkt *p = &o->outer.p;

	/* By a device without Ethernet header the stack goes on sending: there is no neighbour to redirect to. */
	if (!(f->flags & SL_FLOW_TX_FIRST) || !cfg_l2_len)
		return;
	if (f->out_ifindex != skb->ifindex)
		f->out_ifindex = skb->ifindex;
	if (!(f->flags & SL_FLOW_TX_CONFIRM))
		f->flags |= SL_FLOW_TX_CONFIRM;
	if (o->outer.plain)
		flow_hold_route(f, p->dst_mac, p->src_mac, p->seg_len, now);
}

/*
 * A flow the pod opens and that must not show the pod's address: gets an outside
 * tuple, once. f: the record pod_egress made, or NULL when it saw another tuple
 * (a Service address that netfilter translated).
 */
static __always_inline int __masquerade(struct __sk_buff *skb, const struct sl_odd *o, const struct sl_endpoint *ep,
					struct sl_flow *f, __u64 now)
{
	struct sl_flow_scratch *s = flow_scratch();
	const struct sl_pkt *p = &o->outer.p;
	enum sl_drop_reason reason;

	if (!s)
		return drop(skb, SL_DROP_FLOW_TABLE, ep->ifindex);
	if (f)
		s->rec = *f;
	else
		flow_init(&s->rec, ep->owner, SL_FLOW_POD_OPENED, now);
	reason = snat_allocate(skb, p, s);
	if (reason)
		return drop(skb, reason, ep->ifindex);
	f = flow_insert(&p->tuple, &s->rec);
	if (!f)
		return drop(skb, SL_DROP_FLOW_TABLE, ep->ifindex);
	if (!(f->flags & SL_FLOW_TX_FIRST)) {
		__sync_fetch_and_add(&f->tx_packets, 1);
		__sync_fetch_and_add(&f->tx_bytes, skb->len);
	}
	__confirm(skb, o, f, now);
	return __translate(skb, o, ep, f, now);
}

/* Answers of a connection whose opening went by another way than our uplinks: they keep the pod's address, as will all that follow. */
static __always_inline int __adopt_inbound(struct __sk_buff *skb, const struct sl_odd *o, const struct sl_endpoint *ep,
					   __u64 now)
{
	struct sl_flow_scratch *s = flow_scratch();

	if (s) {
		flow_init(&s->rec, ep->owner, SL_FLOW_REPLIED, now);
		s->rec.tx_packets = 1;
		s->rec.tx_bytes = skb->len;
		flow_insert(&o->outer.p.tuple, &s->rec);
	}
	return __leave(o, now);
}

/* A packet of a pod, in the scratch's outer. A function of its own, so that both parsers can end in it. */
__noinline int sl_slow_out(struct __sk_buff *skb)
{
	struct sl_odd *o = odd_scratch();
	__u64 now = clock_now();
	const struct sl_pkt *p;
	struct sl_endpoint *ep;
	struct sl_flow *f;

	if (!o)
		return SL_PASS;
	p = &o->outer.p;
	ep = endpoint_lookup(p->tuple.local);
	if (!ep) { /* the node's own, or translated before it got here */
		if (sent_loose(skb, p->tuple.proto))
			sl_note_sent(&p->tuple, now);
		return SL_PASS;
	}
	f = flow_record(&p->tuple, ep->owner, now);
	/* pod_egress replaced the record if this SYN opens anew; where it saw another tuple, it could not. */
	if (f && !(f->flags & SL_FLOW_TX_FIRST) && flow_reopened(f, p, SL_TX))
		f = NULL;
	/* The pod that was the other end is gone, and its address is somewhere outside now. */
	if (f && ((f->flags & SL_FLOW_LOCAL_PEER) ||
		  (f->flags & (SL_FLOW_MASQ | SL_FLOW_POD_OPENED)) == (SL_FLOW_MASQ | SL_FLOW_POD_OPENED)))
		f = NULL;
	if (f && (f->flags & SL_FLOW_NAT)) {
		if (!(f->flags & SL_FLOW_TX_FIRST))
			f->last_seen = now;
		/* The way back belongs to another flow by now: start anew with a tuple of our own. */
		if ((f->flags & SL_FLOW_INDEXED) && !flow_ensure_index(&p->tuple, f) && (f->flags & SL_FLOW_SNAT))
			return __masquerade(skb, o, ep, NULL, now);
		__confirm(skb, o, f, now);
		return __translate(skb, o, ep, f, now);
	}
	if (f && (!(f->flags & SL_FLOW_POD_OPENED) || (f->flags & SL_FLOW_REPLIED))) {
		__confirm(skb, o, f, now);
		return __leave(o, now);
	}
	if (!endpoint_masquerades(ep, p->tuple.local, p->tuple.remote)) {
		if (f)
			__confirm(skb, o, f, now);
		return __leave(o, now);
	}
	if (!f &&
	    ((p->tcp_flags & (SL_TCP_SYN | SL_TCP_ACK)) == (SL_TCP_SYN | SL_TCP_ACK) || p->echo == SL_ECHO_ANSWERS))
		return __adopt_inbound(skb, o, ep, now);
	return __masquerade(skb, o, ep, f, now);
}

/*
 * An ICMP error about a packet that came for a pod, from the pod or from the node's own
 * stack: to whoever sent that packet it must speak of the address that he knows.
 */
__noinline int sl_error_out(struct __sk_buff *skb)
{
	const struct sl_tuple *outer, *inner;
	struct sl_odd *o = odd_scratch();
	struct sl_endpoint *sender, *ep;
	struct sl_flow *f = NULL;

	if (!o)
		return SL_PASS;
	outer = &o->outer.p.tuple;
	inner = &o->inner.p.tuple;
	sender = endpoint_lookup(outer->local);
	if (odd_parse_inner(skb, o, SL_TX) && (!sender || addr_equal(outer->local, inner->local))) {
		ep = endpoint_lookup(inner->local);
		f = ep ? flow_record(inner, ep->owner, clock_now()) : NULL;
	}
	if (f && (f->flags & SL_FLOW_NAT))
		return icmp_rewrite_error(skb, o, SL_TX, &f->other)
			       ? drop(skb, SL_DROP_REWRITE, sender ? sender->ifindex : 0)
			       : SL_PASS;
	if (!f && sender && endpoint_masquerades(sender, outer->local, outer->remote))
		return drop(skb, SL_DROP_ICMP_ORPHAN, sender->ifindex);
	return SL_PASS;
}

/* The rest of a datagram of a pod leaves as its first fragment did; without that one not at all if it must not show the pod. */
__noinline int sl_later_out(struct __sk_buff *skb)
{
	struct sl_odd *o = odd_scratch();
	const struct sl_tuple *t;
	struct sl_endpoint *ep;
	struct sl_frag *fr;
	__u8 to[16];

	if (!o)
		return SL_PASS;
	t = &o->outer.p.tuple;
	ep = endpoint_lookup(t->local);
	if (!ep)
		return SL_PASS;
	fr = frag_lookup(&o->outer, SL_TX, clock_now());
	if (!fr)
		return endpoint_masquerades(ep, t->local, t->remote) ? drop(skb, SL_DROP_FRAGMENT, ep->ifindex)
								     : SL_PASS;
	addr_copy(to, fr->to);
	return odd_rewrite_addr(skb, &o->outer, true, to) ? drop(skb, SL_DROP_REWRITE, ep->ifindex) : SL_PASS;
}

/* Nothing that we could translate: of a masqueraded pod it does not leave. */
static __always_inline int __opaque(struct __sk_buff *skb, const struct sl_odd *o)
{
	const struct sl_tuple *t = &o->outer.p.tuple;
	struct sl_endpoint *ep = endpoint_lookup(t->local);

	return ep && endpoint_masquerades(ep, t->local, t->remote) ? drop(skb, SL_DROP_OPAQUE, ep->ifindex) : SL_PASS;
}

/* What the first parser left: see odd.h. */
static __always_inline int __odd(struct __sk_buff *skb)
{
	struct sl_odd *o = odd_scratch();

	if (!o)
		return SL_PASS;
	switch (sl_odd_parse(skb, cfg_l2_len, SL_TX, 0)) {
	case SL_ODD_ERROR:
		return sl_error_out(skb);
	case SL_ODD_LATER:
		return sl_later_out(skb);
	case SL_ODD_L4:
		return sl_slow_out(skb);
	case SL_ODD_L3:
		return __opaque(skb, o);
	default:
		return SL_PASS;
	}
}

SEC("tc")
int sl_upl_egress(struct __sk_buff *skb)
{
	struct sl_pkt p = {};

	if (!cfg_l2_len)
		return __odd(skb);
	/* Pods' frames have lost a tag of VLAN 0 on their way here: what has one is the node's own, which wants it. */
	if (passed(skb) || skb->vlan_present)
		return SL_PASS;
	switch (parse_packet(skb, &p, SL_TX)) {
	case SL_PARSED_L3:
		return __odd(skb);
	case SL_PARSED_L4:
		/* Most of what the node sends is its own: not to be detained. */
		if ((!endpoint_lookup(p.tuple.local) && !sent_loose(skb, p.tuple.proto)) || !odd_from_plain(&p))
			return SL_PASS;
		return sl_slow_out(skb);
	default:
		return SL_PASS;
	}
}

char _license[] SEC("license") = "Dual BSD/GPL";
