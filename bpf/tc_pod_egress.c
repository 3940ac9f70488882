//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Host end of a pod's veth, tc ingress: everything the pod sends. First hook of
 * the pod's sending direction: it drops what is spoofed, opens the flow record,
 * and sends confirmed flows past the stack.
 */
#include "lib/compiler.h"
#include "lib/config.h"
#include "lib/fast.h"

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

/* The record of the packet's flow, fresh if the packet opens one; NULL when there is none to keep. */
static __always_inline struct sl_flow *__track(struct __sk_buff *skb, const struct sl_pkt *p,
					       const struct sl_endpoint *ep, __u64 now)
{
	struct sl_flow *f = flow_record(&p->tuple, ep->owner, now);
	struct sl_flow_scratch *s;

	if (!f || flow_reopened(f, p, SL_TX)) {
		if (!pkt_opens(p))
			return NULL;
		s = flow_scratch();
		if (!s)
			return NULL;
		flow_init(&s->rec, ep->owner, SL_FLOW_POD_OPENED, now);
		f = flow_insert(&p->tuple, &s->rec);
		if (!f)
			return NULL; /* not recorded: slow, but whole */
	}
	return flow_touch(&p->tuple, f, p, SL_TX, skb->len, now);
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
	if (!f)
		return SL_PASS; /* the peer's record is gone: learn again */
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
	struct bpf_redir_neigh nh = {};

	if (!fast_route(skb, p, ep, f, &nh, now))
		return SL_PASS;
	if ((flags & SL_FLOW_SNAT) && !flow_ensure_index(&p->tuple, f))
		return SL_PASS;
	if (rewrite_packet(skb, p, SL_TX, flags & SL_FLOW_NAT ? &f->other : &p->tuple, true))
		return drop(SL_DROP_REWRITE, ep->ifindex);
	flow_end(&p->tuple, f, p);
	if (st)
		st->tx_fast++;
	return (int)bpf_redirect_neigh(out, &nh, sizeof(nh), 0);
}

SEC("tc")
int sl_pod_egress(struct __sk_buff *skb)
{
	struct sl_pkt p = {};
	enum sl_parsed parsed = parse_packet(skb, &p, SL_TX);
	__u64 now = bpf_ktime_get_ns();
	struct sl_endpoint_stats *st;
	struct sl_endpoint *ep;
	struct sl_flow *f;

	if (parsed == SL_PARSED_NONE)
		return SL_PASS;
	ep = endpoint_lookup(p.tuple.local);
	if (!ep || ep->ifindex != skb->ifindex) {
		if (!cfg_anti_spoof || __link_scope(p.tuple.local))
			return SL_PASS;
		/* A pod on two networks answers by whatever device its routes say; the stack takes it from there. */
		if (ep && __same_pod(skb->ifindex, ep))
			return SL_PASS;
		return drop(SL_DROP_SPOOFED_IP, skb->ifindex);
	}
	if (cfg_anti_spoof && !mac_equal(p.src_mac, ep->mac))
		return drop(SL_DROP_SPOOFED_MAC, ep->ifindex);

	st = endpoint_stats(ep->ifindex);
	count_tx(skb, st);
	endpoint_mark(skb, ep);
	if (parsed != SL_PARSED_L4)
		return SL_PASS;
	f = __track(skb, &p, ep, now);
	if (!f || !fast_allowed(f, &p))
		return SL_PASS;
	if (f->flags & SL_FLOW_LOCAL_PEER)
		return __fast_local(skb, &p, st, now);
	return __fast_out(skb, &p, ep, f, st, now);
}

char _license[] SEC("license") = "Dual BSD/GPL";
