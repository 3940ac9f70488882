//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Host veth, tc ingress, or the pod's end of a netkit pair: everything the pod sends. First hook of the pod's sending direction. It
 * drops spoofed packets, opens the conntrack entry, and redirects confirmed connections past the
 * stack.
 */
#define SL_PROGRAM SL_PROGRAM_FROM_POD
#include "lib/base/compiler.h"
#include "lib/base/config.h"
#include "lib/base/ctx.h"
#include "lib/endpoint/endpoint_cache.h"
#include "lib/fastpath/cb_mark.h"
#include "lib/fastpath/fastpath.h"
#include "lib/nat/hairpin_full.h"
#include "lib/nat/hostport_answer.h"
#include "lib/nat/tunnel.h"
#include "lib/packet/csum_judge.h"
#include "lib/packet/netkit.h"
#include "lib/policy/policy.h"

/* Addresses that every host may send from: before it has one, and on its link. */
static __always_inline bool is_link_scope(const __u8 *ip)
{
	return addr_is_any(ip) || addr_is_link_local6(ip);
}

/*
 * Does nothing say that the packet answers what ep's policy admitted? The entry is then from the uplink's
 * hook, which made it for a datagram that the policy has denied since: what the pod sends is its own.
 */
static __always_inline bool was_denied(const struct sl_ct_entry *ct, const struct sl_endpoint *ep)
{
	return ep->policy && !ct->policy && !(ct->flags & (SL_CT_POD_OPENED | SL_CT_REPLIED));
}

/*
 * Evaluates the device's policy for a packet whose connection it has not admitted yet: for the destination that netfilter has
 * given it, where that is known. opens: the entry that there may be is not of this connection. Returns an enum
 * sl_drop_reason.
 * A function of its own, for the stack it takes.
 * in: pkt_scratch()
 */
__noinline int sl_from_pod_admit(struct __sk_buff *skb, __u32 opens)
{
	const struct sl_pkt *p = pkt_scratch();
	struct sl_ct_scratch *s = ct_scratch();
	struct sl_ct_entry *ct = NULL;
	enum sl_drop_reason reason;
	bool pod_opens;
	struct sl_endpoint *ep;

	ep = p && s ? endpoint_lookup(p->tuple.local) : NULL;
	if (!ep)
		return SL_DROP_POLICY_RACE;
	if (!opens)
		ct = ct_lookup_entry(&p->tuple, ep->owner, clock_now());
	pod_opens = !ct || (ct->flags & SL_CT_POD_OPENED);
	reason = policy_verdict(skb, policy_asked(ct, p, pod_opens), ep->ifindex, pod_opens, SL_POLICY_Q_LATER);
	if (ct && !reason)
		policy_admitted(ct, s, ep->policy);
	return (int)reason;
}

/*
 * Finds the conntrack entry of the packet's connection, or creates it if the packet opens one.
 * *entry is NULL if there is none to keep. Under a policy every admitted packet has an entry:
 * without it the answer would not be admitted.
 */
static __always_inline enum sl_drop_reason track(struct __sk_buff *skb, const struct sl_pkt *p,
						 const struct sl_endpoint *ep, struct sl_ct_entry **entry, __u64 now)
{
	struct sl_ct_entry *ct = ct_lookup_entry(&p->tuple, ep->owner, now);
	enum sl_drop_reason reason;
	struct sl_ct_scratch *s;
	int refused;

	*entry = NULL;
	if (ct && unlikely(ct_is_new_connection(ct, p, SL_TX)))
		ct = NULL;
	/* The hook where the connection came in has admitted a reply through pod-side SNAT. */
	if (unlikely(!ct) && pod_snat_is_reply(&p->tuple, now))
		return SL_DROP_NONE;
	if (unlikely((ct ? ct->policy : 0) != ep->policy)) {
		if (ct && was_denied(ct, ep))
			ct = NULL;
		reason = (enum sl_drop_reason)sl_from_pod_admit(skb, !ct);
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
		s->claim = p->tuple;
		refused = sl_ct_opening(ct_kind(p->tuple.proto, SL_CT_POD_OPENED));
		if (!sl_hp_answers(p->tuple.proto) && refused)
			return SL_DROP_CT_SHARE;
		if (ep->policy)
			policy_admitted(&s->entry, s, ep->policy);
		ct = ct_begin(&p->tuple, s);
		if (!ct)
			return SL_DROP_NONE; /* no entry: the packet takes the slow path */
	}
	*entry = ct_update(&p->tuple, ct, p, SL_TX, skb->len, now);
	return SL_DROP_NONE;
}

/* own: the sender's entry */
static __always_inline int fast_to_local_pod(struct __sk_buff *skb, const struct sl_pkt *p,
					     const struct sl_ct_entry *own, __u64 now)
{
	bool nf_nat = own->flags & SL_CT_NF_NAT;
	const struct sl_tuple *to = nf_nat ? &own->other : &p->tuple;
	struct sl_endpoint *peer = endpoint_lookup(to->remote);
	struct sl_ct_scratch *s = ct_scratch(); /* the key is too big for the stack of kernels before 6.9 */
	struct sl_ct_entry *ct;

	if (!s || !peer || p->seg_len > peer->mtu)
		return SL_NEXT;
	tuple_reverse(&s->key, p);
	if (unlikely(nf_nat))
		tuple_swap(&s->key, to);
	ct = ct_lookup_entry(&s->key, peer->owner, now);
	/* The peer's entry has gone, or its policy is another one now: learn again. */
	if (!ct || ct->policy != peer->policy)
		return SL_NEXT;
	if (!by_host_end(peer, from_netkit(skb))) /* else sl_to_pod does */
		ct_update(&s->key, ct, p, SL_RX, skb->len, now);
	if (unlikely(nf_nat) && rewrite_remote(skb, p, SL_TX, to))
		return drop(skb, SL_DROP_REWRITE, peer->ifindex);
	return fast_pod_to_pod(skb, p, peer, to);
}

static __always_inline int fast_to_uplink(struct __sk_buff *skb, const struct sl_pkt *p, const struct sl_endpoint *ep,
					  struct sl_ct_entry *ct, __u64 now)
{
	__u32 out = ct->out_ifindex, flags = ct->flags;
	struct sl_nexthop route = {};
	int verdict;

	if (unlikely(!route_cached_or_fib(skb, p, ep, ct, &route, now)))
		return SL_NEXT;
	if ((flags & SL_CT_HAS_REVERSE) && !ct_ensure_reverse(&p->tuple, ct))
		return SL_NEXT;
	if (unlikely(flags & (SL_CT_CLIENT_PORT | SL_CT_NF_NAT)) && rewrite_remote(skb, p, SL_TX, &ct->other))
		return drop(skb, SL_DROP_REWRITE, ep->ifindex);
	if (unlikely(rewrite_packet(skb, p, SL_TX, flags & (SL_CT_NAT | SL_CT_NF_NAT) ? &ct->other : &p->tuple, true)))
		return drop(skb, SL_DROP_REWRITE, ep->ifindex);
	ct_delete_if_closed(&p->tuple, ct, p, SL_TX);
	cb_mark(skb);
	verdict = fast_xmit(skb, out, &route, flags & SL_CT_OUT_BARE);
	return unlikely(verdict == TC_ACT_SHOT) ? drop(skb, SL_DROP_REWRITE, ep->ifindex) : verdict;
}

/* The slow path. A packet to a published port of this node gets the pod as its destination. */
static __always_inline int slow_path(struct __sk_buff *skb, const struct sl_pkt *p, const struct sl_ct_entry *ct)
{
	/* The connection has left by an uplink, or has reached another pod: it is not for the node. */
	if (ct && ((ct->flags & (SL_CT_TX_SEEN_LAST | SL_CT_NAT | SL_CT_NF_NAT | SL_CT_PEER_LOCAL)) || ct->out_ifindex))
		return SL_NEXT;
	return hairpin_from_pod(skb, p) == TC_ACT_SHOT ? TC_ACT_SHOT : SL_NEXT;
}

/*
 * Packets without an entry of their own: link-scope sources, another device's address, and what the
 * fast parser cannot read. own_addr: the source is this device's address.
 */
static __always_inline int from_pod_other(struct __sk_buff *skb, struct sl_pkt *p, enum sl_parsed parsed, bool own_addr,
					  __u64 now)
{
	enum sl_drop_reason reason;

	/* A node without anti-spoofing lets pods speak for other addresses, but those under a policy are no routers. */
	if (parsed != SL_PARSED_L4 && may_be_false_nd(p) && (cfg_anti_spoof || policy_device_of(skb->ifindex))) {
		reason = (enum sl_drop_reason)sl_false_nd(skb, cfg_anti_spoof);
		if (reason)
			return drop(skb, reason, skb->ifindex);
	}
	if (unlikely(addr_is_any(p->tuple.local))) {
		if (is_addr_discovery(skb, p, parsed, SL_TX))
			return SL_NEXT;
		if (cfg_anti_spoof)
			return drop(skb, SL_DROP_SPOOFED_IP, skb->ifindex);
	}
	if (parsed == SL_PARSED_L4 ? to_tunnel(skb, p, skb->ifindex) : sl_to_tunnel_full(skb, skb->ifindex))
		return drop(skb, SL_DROP_TUNNEL, skb->ifindex);
	reason = policy_admit_device(skb, p, parsed, skb->ifindex, SL_TX, 0, now);
	if (reason)
		return drop(skb, reason, skb->ifindex);
	return own_addr && parsed != SL_PARSED_L4 ? hairpin_full(skb, SL_TX) : SL_NEXT;
}

/* A packet of a connection of the pod behind ep: phases 4 and 5 of sl_from_pod. */
static __always_inline int from_pod_known(struct __sk_buff *skb, const struct sl_pkt *p, const struct sl_endpoint *ep,
					  __u64 now)
{
	struct sl_ct_entry *ct;
	enum sl_drop_reason reason;

	/* 4. policy and conntrack */
	reason = track(skb, p, ep, &ct, now);
	if (unlikely(reason))
		return drop(skb, reason, ep->ifindex);
	/* 5. forward: slow path, to a pod of this node, or out by an uplink */
	if (!ct || (ep->flags & SL_EP_IFB_TX) || !fast_take(ct, p, SL_TX, now)) {
		/* No tunnel answers, and the fast path is for what was answered. */
		if (to_tunnel(skb, p, ep->route_ifindex))
			return drop(skb, SL_DROP_TUNNEL, ep->ifindex);
		if (ct)
			nf_show_rst(skb, ct, p, SL_TX);
		return slow_path(skb, p, ct);
	}
	if (unlikely(ct->flags & SL_CT_PEER_LOCAL))
		return fast_to_local_pod(skb, p, ct, now);
	return fast_to_uplink(skb, p, ep, ct, now);
}

SEC("tc")
int sl_from_pod(struct __sk_buff *skb)
{
	struct sl_pkt *p = pkt_scratch();
	__u64 now = clock_now();
	enum sl_drop_reason reason;
	enum sl_parsed parsed;
	struct sl_endpoint *ep;
	int verdict;

	/* 1. parse: what is not IP is for the stack, if it is not IP for the stack either */
	if (!p)
		return SL_NEXT;
	strip_priority_tag(skb);
	parsed = parse_packet(skb, p, SL_TX);
	if (from_netkit(skb) && unlikely(netkit_hides_protocol(skb)))
		return drop(skb, SL_DROP_UNPARSABLE, skb->ifindex);
	if (csum_misplaced(skb, p, parsed))
		return drop(skb, SL_DROP_CSUM_PLACE, skb->ifindex);
	if (unlikely(parsed == SL_PARSED_NONE)) {
		reason = cfg_anti_spoof ? (enum sl_drop_reason)sl_false_arp(skb) : SL_DROP_NONE;
		return reason ? drop(skb, reason, skb->ifindex) : SL_NEXT;
	}
	reason = parse_refused(parsed);
	if (unlikely(reason))
		return drop(skb, reason, skb->ifindex);
	/* sl_from_uplink says why. */
	if (unlikely(addr_is_loopback(p->tuple.remote)))
		return drop(skb, SL_DROP_LOOPBACK_POD, skb->ifindex);
	/* 2. endpoint: whose address is the source? Drop what is spoofed */
	ep = endpoint_cached(p->tuple.local, now);
	if (unlikely(!ep || ep->ifindex != skb->ifindex)) {
		/*
		 * A pod on two networks answers through the device its routes name. The stack takes
		 * it from there.
		 */
		if (cfg_anti_spoof && !is_link_scope(p->tuple.local) && !(ep && same_pod(skb->ifindex, ep)))
			return drop(skb, SL_DROP_SPOOFED_IP, skb->ifindex);
		ep = NULL;
	} else {
		if (cfg_anti_spoof && unlikely(!mac_equal(p->src_mac, ep->mac)))
			return drop(skb, SL_DROP_SPOOFED_MAC, ep->ifindex);
		endpoint_set_admit_mark(skb, ep);
	}
	if (likely(ep && parsed == SL_PARSED_L4))
		verdict = from_pod_known(skb, p, ep, now);
	else /* 3. what has no conntrack entry of its own */
		verdict = from_pod_other(skb, p, parsed, ep != NULL, now);
	if (unlikely(!ep || verdict == TC_ACT_SHOT))
		return verdict;
	/* 6. count. At the end: a pointer to the counters, kept from phase 2, doubles what the verifier follows */
	count_tx(skb, endpoint_stats(skb->ifindex), verdict == TC_ACT_REDIRECT);
	return verdict;
}

char _license[] SEC("license") = "Dual BSD/GPL";
