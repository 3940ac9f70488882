//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Host end of a pod's veth, tc ingress: everything the pod sends. First hook of
 * the pod's sending direction: it drops what is spoofed, opens the flow record,
 * and sends confirmed flows past the stack.
 */
#define SL_PROGRAM SL_PROGRAM_FROM_POD
#include "lib/base/compiler.h"
#include "lib/base/config.h"
#include "lib/base/ctx.h"
#include "lib/endpoint/endpoint_cache.h"
#include "lib/fastpath/cb_mark.h"
#include "lib/fastpath/fastpath.h"
#include "lib/nat/hairpin_slow.h"
#include "lib/policy/policy.h"

/* Addresses that every host may send from before it has one, and on its link. */
static __always_inline bool is_link_scope(const __u8 *ip)
{
	return addr_is_any(ip) || addr_is_link_local6(ip);
}

/* Is the device the packet came from another one of the pod that has its source address? */
static __always_inline bool same_pod(__u32 ifindex, const struct sl_endpoint *ep)
{
	struct sl_endpoint_stats *st = endpoint_stats(ifindex);

	return st && ep->pod && st->pod == ep->pod;
}

/* Asks the policy of the device for a packet whose flow has no verdict of it. */
static __always_inline enum sl_drop_reason pod_out_admit(struct __sk_buff *skb, const struct sl_pkt *p,
							 const struct sl_endpoint *ep, struct sl_ct_entry *ct)
{
	bool pod_opens = !ct || (ct->flags & SL_CT_POD_OPENED);
	enum sl_drop_reason reason = policy_ask(skb, p, ep->ifindex, pod_opens, 0);

	if (!reason && ct)
		ct->policy = ep->policy;
	return reason;
}

/*
 * The record of the packet's flow, fresh if the packet opens one; in *flow NULL when there is none to keep. Under
 * a policy every admitted packet has one: without it the answer would not be admitted.
 */
static __always_inline enum sl_drop_reason track(struct __sk_buff *skb, const struct sl_pkt *p,
						 const struct sl_endpoint *ep, struct sl_ct_entry **entry, __u64 now)
{
	struct sl_ct_entry *ct = ct_lookup_entry(&p->tuple, ep->owner, now);
	enum sl_drop_reason reason;
	struct sl_ct_scratch *s;

	*entry = NULL;
	if (ct && unlikely(ct_is_new_connection(ct, p, SL_TX)))
		ct = NULL;
	/* An answer by the pod's door has its verdict from where it came in. */
	if (unlikely(!ct) && pod_snat_is_reply(&p->tuple, now))
		return SL_DROP_NONE;
	if (unlikely((ct ? ct->policy : 0) != ep->policy)) {
		reason = pod_out_admit(skb, p, ep, ct);
		if (reason)
			return reason;
	}
	if (unlikely(!ct)) {
		if (!pkt_opens(p) && (!ep->policy || pkt_answers(p)))
			return SL_DROP_NONE;
		s = ct_scratch();
		if (!s)
			return SL_DROP_NONE;
		ct_init(&s->entry, ep->owner, SL_CT_POD_OPENED, now);
		s->entry.policy = ep->policy;
		ct = ct_insert(&p->tuple, &s->entry);
		if (!ct)
			return SL_DROP_NONE; /* not recorded: slow, but whole */
	}
	*entry = ct_update(&p->tuple, ct, p, SL_TX, skb->len, now);
	return SL_DROP_NONE;
}

static __always_inline int fast_to_local_pod(struct __sk_buff *skb, const struct sl_pkt *p,
					     struct sl_endpoint_stats *st, __u64 now)
{
	struct sl_endpoint *peer = endpoint_lookup(p->tuple.remote);
	struct sl_tuple back;
	struct sl_ct_entry *ct;
	int verdict;

	if (!peer || p->seg_len > peer->mtu)
		return SL_NEXT;
	tuple_reverse(&back, p);
	ct = ct_lookup_entry(&back, peer->owner, now);
	/* The peer's record is gone, or its policy is another now: learn again. */
	if (!ct || ct->policy != peer->policy)
		return SL_NEXT;
	if (!(peer->flags & SL_EP_QDISC_RX)) /* else sl_to_pod does */
		ct_update(&back, ct, p, SL_RX, skb->len, now);
	verdict = fast_pod_to_pod(skb, p, peer);
	if (st && verdict == TC_ACT_REDIRECT)
		st->tx_fast++;
	return verdict;
}

static __always_inline int fast_to_uplink(struct __sk_buff *skb, const struct sl_pkt *p, const struct sl_endpoint *ep,
					  struct sl_ct_entry *ct, struct sl_endpoint_stats *st, __u64 now)
{
	__u32 out = ct->out_ifindex, flags = ct->flags;
	struct sl_nexthop route = {};
	int verdict;

	if (unlikely(!route_cached_or_fib(skb, p, ep, ct, &route, now)))
		return SL_NEXT;
	if ((flags & SL_CT_HAS_REVERSE) && !ct_ensure_reverse(&p->tuple, ct))
		return SL_NEXT;
	if (unlikely(flags & SL_CT_CLIENT_PORT) && rewrite_remote_port(skb, p, SL_TX, &ct->other))
		return drop(skb, SL_DROP_REWRITE, ep->ifindex);
	if (unlikely(rewrite_packet(skb, p, SL_TX, flags & SL_CT_NAT ? &ct->other : &p->tuple, true)))
		return drop(skb, SL_DROP_REWRITE, ep->ifindex);
	ct_delete_if_closed(&p->tuple, ct, p);
	cb_mark(skb);
	verdict = fast_xmit(skb, out, &route);
	if (unlikely(verdict == TC_ACT_SHOT))
		return drop(skb, SL_DROP_REWRITE, ep->ifindex);
	if (st)
		st->tx_fast++;
	return verdict;
}

/* By way of the stack; to a published port of this node, with the pod as destination. */
static __always_inline int slow_path(struct __sk_buff *skb, const struct sl_pkt *p, const struct sl_ct_entry *ct)
{
	/* It has left by an uplink, or has been to another pod: it is not for the node. */
	if (ct && (ct->flags & (SL_CT_TX_SEEN_LAST | SL_CT_NAT)))
		return SL_NEXT;
	return hairpin_from_pod(skb, p) == TC_ACT_SHOT ? TC_ACT_SHOT : SL_NEXT;
}

/* What has no record of its own: sources of the link, another device's address, what the first parser gives up. own: the source is the device's. */
static __always_inline int pod_out_slow(struct __sk_buff *skb, struct sl_pkt *p, enum sl_parsed parsed, bool own_addr,
					__u64 now)
{
	enum sl_drop_reason reason;

	if (is_addr_discovery(p->tuple.local, p->tuple.remote))
		return SL_NEXT;
	reason = policy_device(skb, p, parsed, skb->ifindex, SL_TX, 0, now);
	if (reason)
		return drop(skb, reason, skb->ifindex);
	return own_addr && parsed != SL_PARSED_L4 ? hairpin_slow(skb, SL_TX) : SL_NEXT;
}

SEC("tc")
int sl_from_pod(struct __sk_buff *skb)
{
	struct sl_pkt p = {};
	enum sl_parsed parsed = parse_packet(skb, &p, SL_TX);
	__u64 now = clock_now();
	enum sl_drop_reason reason;
	struct sl_endpoint_stats *st = NULL;
	struct sl_endpoint *ep;
	struct sl_ct_entry *ct;

	if (unlikely(parsed == SL_PARSED_NONE))
		return SL_NEXT;
	if (unlikely(parsed == SL_PARSED_PRIO_STACKED))
		return drop(skb, SL_DROP_UNPARSABLE, skb->ifindex);
	/* See sl_from_uplink. */
	if (unlikely(addr_is_loopback(p.tuple.remote)))
		return drop(skb, SL_DROP_LOOPBACK_POD, skb->ifindex);
	ep = endpoint_cached(p.tuple.local, now);
	if (unlikely(!ep || ep->ifindex != skb->ifindex)) {
		/* A pod on two networks answers by whatever device its routes say; the stack takes it from there. */
		if (cfg_anti_spoof && !is_link_scope(p.tuple.local) && !(ep && same_pod(skb->ifindex, ep)))
			return drop(skb, SL_DROP_SPOOFED_IP, skb->ifindex);
		ep = NULL;
	} else {
		if (cfg_anti_spoof && unlikely(!mac_equal(p.src_mac, ep->mac)))
			return drop(skb, SL_DROP_SPOOFED_MAC, ep->ifindex);
		st = endpoint_stats(ep->ifindex);
		count_tx(skb, st);
		endpoint_set_admit_mark(skb, ep);
	}
	if (unlikely(!ep || parsed != SL_PARSED_L4))
		return pod_out_slow(skb, &p, parsed, ep != NULL, now);
	reason = track(skb, &p, ep, &ct, now);
	if (unlikely(reason))
		return drop(skb, reason, ep->ifindex);
	if (!ct || (ep->flags & SL_EP_IFB_TX) || !fast_allowed(ct, &p))
		return slow_path(skb, &p, ct);
	if (unlikely(ct->flags & SL_CT_PEER_LOCAL))
		return fast_to_local_pod(skb, &p, st, now);
	return fast_to_uplink(skb, &p, ep, ct, st, now);
}

char _license[] SEC("license") = "Dual BSD/GPL";
