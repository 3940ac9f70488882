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

	if (unlikely(ep->flags & SL_EP_QUEUE_RX))
		return (int)bpf_redirect(ifindex, 0);
	count_rx(skb, endpoint_stats(ifindex), true);
	return (int)bpf_redirect_peer(ifindex, 0);
}

/* Hands a translated packet that has lost its hop to the pod behind ep. Kernel 5.10. */
static __always_inline int fast_to_pod(struct __sk_buff *skb, const struct sl_endpoint *ep)
{
	__u32 ifindex = ep->ifindex;

	if (unlikely(rewrite_macs(skb, ep->mac, ep->gateway_mac)))
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

/* How a packet leaves by the uplink that its flow has learned. */
struct sl_route {
	struct bpf_redir_neigh nh; /* the next hop, if nh.nh_family is not 0; else the frame is addressed so: */
	__u8 link_dst[ETH_ALEN];
	__u8 link_src[ETH_ALEN];
};

/*
 * Asks the FIB as the stack would for this packet: from the pod's address, in
 * by the device the pod is routed from. True when it leads out by the uplink the
 * flow has learned, and the packet fits; nh is the next hop then. What it says is kept in f, if the
 * neighbour is known.
 */
static __always_inline bool __ask_fib(struct __sk_buff *skb, const struct sl_pkt *p, const struct sl_endpoint *ep,
				      struct sl_flow *f, struct bpf_redir_neigh *nh, __u64 now)
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
	if (fib.ifindex != f->out_ifindex)
		return false;
	/*
	 * The stack has sent the flow by another next hop of the device, or who that was cannot be told: it knows what the
	 * question leaves out, a mark above all.
	 */
	if (f->route_link == SL_ROUTE_LINK && (rc != BPF_FIB_LKUP_RET_SUCCESS || !mac_equal(fib.dmac, f->route_dst)))
		return false;
	nh->nh_family = fib.family;
	if (fib.family == AF_INET)
		nh->ipv4_nh = fib.ipv4_dst;
	else
		addr_copy(nh->ipv6_nh, fib.ipv6_dst);
	/* Since 5.12 tot_len is the MTU of the route now. */
	if (rc == BPF_FIB_LKUP_RET_SUCCESS)
		flow_hold_route(f, fib.dmac, fib.smac, fib.tot_len > p->seg_len ? fib.tot_len : p->seg_len, now);
	return true;
}

/*
 * How a packet the pod sends leaves. As the flow's last one did for a while, by a plain redirect, which asks neither FIB nor neighbour
 * table: the two were a third of the program's cost. A changed route or neighbour counts that much later. The packet after that, and
 * one that is longer, asks again, and is sent by way of the neighbour, so that the kernel goes on probing it. Two
 * CPUs may write what is held at once; the values are the same but for the moment in which
 * a route changes, when a mixture can send one packet to a neighbour that is not there.
 */
static __always_inline bool fast_route(struct __sk_buff *skb, const struct sl_pkt *p, const struct sl_endpoint *ep,
				       struct sl_flow *f, struct sl_route *r, __u64 now)
{
	if (likely(now < f->route_until && p->seg_len <= f->route_len && f->route_link == SL_ROUTE_LINK)) {
		__builtin_memcpy(r->link_dst, f->route_dst, ETH_ALEN);
		__builtin_memcpy(r->link_src, f->route_src, ETH_ALEN);
		return true;
	}
	f->route_until = 0;
	return f->out_ifindex && __ask_fib(skb, p, ep, f, &r->nh, now);
}

/* Sends a translated packet out by the uplink. */
static __always_inline int fast_send(struct __sk_buff *skb, __u32 out_ifindex, struct sl_route *r)
{
	if (unlikely(r->nh.nh_family))
		return (int)bpf_redirect_neigh(out_ifindex, &r->nh, sizeof(r->nh), 0);
	if (unlikely(rewrite_macs(skb, r->link_dst, r->link_src)))
		return TC_ACT_SHOT;
	return (int)bpf_redirect(out_ifindex, 0);
}
