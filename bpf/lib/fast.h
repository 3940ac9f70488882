/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "endpoint.h"
#include "flow.h"
#include "metrics.h"
#include "rewrite.h"

/*
 * The learned path. Everything that is odd goes to the stack, which answers as
 * it always did (ICMP errors, neighbour resolution, fragmentation).
 */

/* May this packet of a live flow leave the stack out? */
static __always_inline bool fast_allowed(const struct sl_flow *f, const struct sl_pkt *p)
{
	if (cfg_fast_path == SL_FAST_OFF || (f->flags & SL_FLOW_CONFIRMED) != SL_FLOW_CONFIRMED || p->ttl <= 1)
		return false;
	if (cfg_fast_path == SL_FAST_DIRECT && (f->flags & SL_FLOW_DNAT))
		return true;
	return (f->flags & SL_FLOW_ASSURED) && !(p->tcp_flags & SL_TCP_SYN);
}

/*
 * With SL_FAST_DIRECT a hostPort's flow counts as confirmed before anything was seen of its way: nobody else is asked about
 * it. It goes out where it came in if the FIB says so. Not where each packet has to see the pod's door, nor
 * by a device without Ethernet header.
 */
static __always_inline void fast_direct(struct sl_flow *f, __u32 ifindex)
{
	if (cfg_fast_path != SL_FAST_DIRECT || !cfg_l2_len || (f->flags & SL_FLOW_MASQ))
		return;
	f->flags |= SL_FLOW_CONFIRMED;
	f->out_ifindex = ifindex;
}

/*
 * Over the last device, into the pod. A pod whose ingress is limited gets its packets by the egress of the host end, where
 * the qdisc is: that still leaves out the stack, but not sl_pod_ingress, which counts them.
 */
static __always_inline int __into_pod(struct __sk_buff *skb, const struct sl_endpoint *ep)
{
	__u32 ifindex = ep->ifindex;

	if (ep->flags & SL_EP_QUEUE_RX)
		return (int)bpf_redirect(ifindex, 0);
	count_rx(skb, endpoint_stats(ifindex), true);
	return (int)bpf_redirect_peer(ifindex, 0);
}

/* Hands a translated packet that has lost its hop to the pod behind ep. Kernel 5.10. */
static __always_inline int fast_to_pod(struct __sk_buff *skb, const struct sl_endpoint *ep)
{
	__u32 ifindex = ep->ifindex;

	if (rewrite_macs(skb, ep->mac, ep->gateway_mac))
		return drop(skb, SL_DROP_REWRITE, ifindex);
	return __into_pod(skb, ep);
}

/*
 * From pod to pod on this node. Bridged frames (addressed to the peer's own MAC)
 * stay as they are; routed ones lose a hop and get the peer's MAC. The frame was
 * not for the host end's MAC, so the stack of the peer would take it for somebody
 * else's unless told otherwise.
 */
static __always_inline int fast_pod_to_pod(struct __sk_buff *skb, const struct sl_pkt *p,
					   const struct sl_endpoint *peer)
{
	bool bridged = mac_equal(p->dst_mac, peer->mac);
	__u32 ifindex = peer->ifindex;

	if (!bridged &&
	    (rewrite_packet(skb, p, SL_TX, &p->tuple, true) || rewrite_macs(skb, peer->mac, peer->gateway_mac)))
		return drop(skb, SL_DROP_REWRITE, ifindex);
	if (skb->pkt_type != PACKET_HOST && bpf_skb_change_type(skb, PACKET_HOST))
		return drop(skb, SL_DROP_REWRITE, ifindex);
	return __into_pod(skb, peer);
}

/*
 * Asks the FIB as the stack would for this packet: from the pod's address, in
 * by the device the pod is routed from. True when it leads out by the uplink the
 * flow has learned, and the packet fits; nh is the next hop then.
 */
static __always_inline bool __ask_fib(struct __sk_buff *skb, const struct sl_pkt *p, const struct sl_endpoint *ep,
				      __u32 out_ifindex, struct bpf_redir_neigh *nh)
{
	struct bpf_fib_lookup fib = {
		.ifindex = ep->route_ifindex,
		.l4_protocol = p->tuple.proto,
		.sport = p->tuple.local_port,
		.dport = p->tuple.remote_port,
		.tot_len = (__u16)p->seg_len,
	};
	long rc;

	if (p->family == 4) {
		fib.family = AF_INET;
		fib.ipv4_src = addr_v4(p->tuple.local);
		fib.ipv4_dst = addr_v4(p->tuple.remote);
	} else {
		fib.family = AF_INET6;
		addr_copy(fib.ipv6_src, p->tuple.local);
		addr_copy(fib.ipv6_dst, p->tuple.remote);
	}
	rc = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	/* Without a neighbour entry the redirect resolves it. */
	if (rc != BPF_FIB_LKUP_RET_SUCCESS && rc != BPF_FIB_LKUP_RET_NO_NEIGH)
		return false;
	if (fib.ifindex != out_ifindex)
		return false;
	nh->nh_family = fib.family;
	if (fib.family == AF_INET)
		nh->ipv4_nh = fib.ipv4_dst;
	else
		addr_copy(nh->ipv6_nh, fib.ipv6_dst);
	return true;
}

/* How long an answer of the FIB holds for a flow: less than a queue may hold a packet, many packets of a busy flow. */
#define SL_ROUTE_HOLD (10 * 1000000ULL)

/*
 * The next hop of a packet the pod sends. The lookup is a third of the program's
 * cost, so its answer is kept in the flow for 10 ms: a changed route counts that
 * much later. A longer packet asks again, since the answer covers the MTU. Two
 * CPUs may write it at once; the values are the same but for the moment in which
 * a route changes, when a mixture can send one packet to a neighbour that is not there.
 */
static __always_inline bool fast_route(struct __sk_buff *skb, const struct sl_pkt *p, const struct sl_endpoint *ep,
				       struct sl_flow *f, struct bpf_redir_neigh *nh, __u64 now)
{
	if (now < f->route_until && p->seg_len <= f->route_len) {
		nh->nh_family = f->route_family;
		addr_copy(nh->ipv6_nh, f->route_hop);
		return true;
	}
	f->route_until = 0;
	if (!f->out_ifindex || !__ask_fib(skb, p, ep, f->out_ifindex, nh))
		return false;
	f->route_family = (__u16)nh->nh_family;
	addr_copy(f->route_hop, nh->ipv6_nh);
	f->route_len = p->seg_len;
	f->route_until = now + SL_ROUTE_HOLD;
	return true;
}
