//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Host end of a pod's veth, tc ingress: everything the pod sends. First hook of
 * the pod's sending direction: it drops what is spoofed, opens the flow record,
 * and sends confirmed flows past the stack.
 */
#define SL_PROGRAM SL_PROGRAM_POD_EGRESS
#include "lib/compiler.h"
#include "lib/config.h"
#include "lib/fast.h"
#include "lib/passed.h"
#include "lib/policy.h"
#include "lib/recent_pod.h"
#include "lib/turn_odd.h"

/* Addresses that every host may send from before it has one, and on its link. */
static __always_inline bool __link_scope(const __u8 *ip)
{
	return addr_is_any(ip) || addr_is_link_local6(ip);
}

/* Is the device the packet came from another one of the pod that has its source address? */
static __always_inline bool __same_pod(__u32 ifindex, const struct sl_endpoint *ep)
{
	struct sl_endpoint_stats *st = endpoint_stats(ifindex);

	return st && ep->pod && st->pod == ep->pod;
}

/* Asks the policy of the device for a packet whose flow has no verdict of it. */
static __always_inline enum sl_drop_reason __admit(struct __sk_buff *skb, const struct sl_pkt *p,
						   const struct sl_endpoint *ep, struct sl_flow *f)
{
	bool pod_opens = !f || (f->flags & SL_FLOW_POD_OPENED);
	enum sl_drop_reason reason = policy_ask(skb, p, ep->ifindex, pod_opens, 0);

	if (!reason && f)
		f->policy = ep->policy;
	return reason;
}

/*
 * The record of the packet's flow, fresh if the packet opens one; in *flow NULL when there is none to keep. Under
 * a policy every admitted packet has one: without it the answer would not be admitted.
 */
static __always_inline enum sl_drop_reason __track(struct __sk_buff *skb, const struct sl_pkt *p,
						   const struct sl_endpoint *ep, struct sl_flow **flow, __u64 now)
{
	struct sl_flow *f = flow_record(&p->tuple, ep->owner, now);
	enum sl_drop_reason reason;
	struct sl_flow_scratch *s;

	*flow = NULL;
	if (f && unlikely(flow_reopened(f, p, SL_TX)))
		f = NULL;
	/* An answer by the pod's door has its verdict from where it came in. */
	if (unlikely(!f) && turn_is_answer(&p->tuple, now))
		return SL_DROP_NONE;
	if (unlikely((f ? f->policy : 0) != ep->policy)) {
		reason = __admit(skb, p, ep, f);
		if (reason)
			return reason;
	}
	if (unlikely(!f)) {
		if (!pkt_opens(p) && (!ep->policy || pkt_answers(p)))
			return SL_DROP_NONE;
		s = flow_scratch();
		if (!s)
			return SL_DROP_NONE;
		flow_init(&s->rec, ep->owner, SL_FLOW_POD_OPENED, now);
		s->rec.policy = ep->policy;
		f = flow_insert(&p->tuple, &s->rec);
		if (!f)
			return SL_DROP_NONE; /* not recorded: slow, but whole */
	}
	*flow = flow_touch(&p->tuple, f, p, SL_TX, skb->len, now);
	return SL_DROP_NONE;
}

static __always_inline int __fast_local(struct __sk_buff *skb, const struct sl_pkt *p, struct sl_endpoint_stats *st,
					__u64 now)
{
	struct sl_endpoint *peer = endpoint_lookup(p->tuple.remote);
	struct sl_tuple back;
	struct sl_flow *f;
	int verdict;

	if (!peer || p->seg_len > peer->mtu)
		return SL_PASS;
	tuple_reverse(&back, p);
	f = flow_record(&back, peer->owner, now);
	/* The peer's record is gone, or its policy is another now: learn again. */
	if (!f || f->policy != peer->policy)
		return SL_PASS;
	if (!(peer->flags & SL_EP_QUEUE_RX)) /* else sl_pod_ingress does */
		flow_touch(&back, f, p, SL_RX, skb->len, now);
	verdict = fast_pod_to_pod(skb, p, peer);
	if (st && verdict == TC_ACT_REDIRECT)
		st->tx_fast++;
	return verdict;
}

static __always_inline int __fast_out(struct __sk_buff *skb, const struct sl_pkt *p, const struct sl_endpoint *ep,
				      struct sl_flow *f, struct sl_endpoint_stats *st, __u64 now)
{
	__u32 out = f->out_ifindex, flags = f->flags;
	struct sl_route route = {};
	int verdict;

	if (unlikely(!fast_route(skb, p, ep, f, &route, now)))
		return SL_PASS;
	if ((flags & SL_FLOW_INDEXED) && !flow_ensure_index(&p->tuple, f))
		return SL_PASS;
	if (unlikely(flags & SL_FLOW_REMAP) && rewrite_remote_port(skb, p, SL_TX, &f->other))
		return drop(skb, SL_DROP_REWRITE, ep->ifindex);
	if (unlikely(rewrite_packet(skb, p, SL_TX, flags & SL_FLOW_NAT ? &f->other : &p->tuple, true)))
		return drop(skb, SL_DROP_REWRITE, ep->ifindex);
	flow_end(&p->tuple, f, p);
	passed_note(skb);
	verdict = fast_send(skb, out, &route);
	if (unlikely(verdict == TC_ACT_SHOT))
		return drop(skb, SL_DROP_REWRITE, ep->ifindex);
	if (st)
		st->tx_fast++;
	return verdict;
}

/* By way of the stack; to a published port of this node, with the pod as destination. */
static __always_inline int __slow(struct __sk_buff *skb, const struct sl_pkt *p, const struct sl_flow *f)
{
	/* It has left by an uplink, or has been to another pod: it is not for the node. */
	if (f && (f->flags & (SL_FLOW_TX_CONFIRM | SL_FLOW_NAT)))
		return SL_PASS;
	return turn_out(skb, p) == TC_ACT_SHOT ? TC_ACT_SHOT : SL_PASS;
}

/* What has no record of its own: sources of the link, another device's address, what the first parser gives up. own: the source is the device's. */
static __always_inline int __odd(struct __sk_buff *skb, struct sl_pkt *p, enum sl_parsed parsed, bool own, __u64 now)
{
	enum sl_drop_reason reason;

	if (policy_seeks(p->tuple.local, p->tuple.remote))
		return SL_PASS;
	reason = policy_device(skb, p, parsed, skb->ifindex, SL_TX, 0, now);
	if (reason)
		return drop(skb, reason, skb->ifindex);
	return own && parsed != SL_PARSED_L4 ? turn_odd(skb, SL_TX) : SL_PASS;
}

SEC("tc")
int sl_pod_egress(struct __sk_buff *skb)
{
	struct sl_pkt p = {};
	enum sl_parsed parsed = parse_packet(skb, &p, SL_TX);
	__u64 now = clock_now();
	enum sl_drop_reason reason;
	struct sl_endpoint_stats *st = NULL;
	struct sl_endpoint *ep;
	struct sl_flow *f;

	if (unlikely(parsed == SL_PARSED_NONE))
		return SL_PASS;
	if (unlikely(parsed == SL_PARSED_TAGS))
		return drop(skb, SL_DROP_OPAQUE, skb->ifindex);
	/* See sl_upl_ingress. */
	if (unlikely(addr_is_loopback(p.tuple.remote)))
		return drop(skb, SL_DROP_LOOPBACK_POD, skb->ifindex);
	ep = recent_pod(p.tuple.local, now);
	if (unlikely(!ep || ep->ifindex != skb->ifindex)) {
		/* A pod on two networks answers by whatever device its routes say; the stack takes it from there. */
		if (cfg_anti_spoof && !__link_scope(p.tuple.local) && !(ep && __same_pod(skb->ifindex, ep)))
			return drop(skb, SL_DROP_SPOOFED_IP, skb->ifindex);
		ep = NULL;
	} else {
		if (cfg_anti_spoof && unlikely(!mac_equal(p.src_mac, ep->mac)))
			return drop(skb, SL_DROP_SPOOFED_MAC, ep->ifindex);
		st = endpoint_stats(ep->ifindex);
		count_tx(skb, st);
		endpoint_mark(skb, ep);
	}
	if (unlikely(!ep || parsed != SL_PARSED_L4))
		return __odd(skb, &p, parsed, ep != NULL, now);
	reason = __track(skb, &p, ep, &f, now);
	if (unlikely(reason))
		return drop(skb, reason, ep->ifindex);
	if (!f || (ep->flags & SL_EP_QUEUE_TX) || !fast_allowed(f, &p))
		return __slow(skb, &p, f);
	if (unlikely(f->flags & SL_FLOW_LOCAL_PEER))
		return __fast_local(skb, &p, st, now);
	return __fast_out(skb, &p, ep, f, st, now);
}

char _license[] SEC("license") = "Dual BSD/GPL";
