/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../conntrack/conntrack.h"
#include "../conntrack/nf_conn.h"
#include "../drop/drop.h"
#include "../endpoint/endpoint.h"
#include "../packet/netkit.h"
#include "../packet/rewrite.h"
#include "cb_mark.h"

/*
 * The fast path: redirects packets of a confirmed connection past the stack. Whatever needs the stack
 * (ICMP errors, neighbour resolution, fragmentation) goes there and is answered as without Sluice.
 */

/* With SL_FAST_DIRECT the stack has not seen a hostPort's connection from its beginning: there is nothing to confirm. */
static __always_inline bool fast_unconfirmed(const struct sl_ct_entry *ct)
{
	return cfg_fast_path == SL_FAST_DIRECT && (ct->flags & SL_CT_DNAT);
}

/* May this packet of a live connection bypass the stack, if the connection need not be confirmed again? */
static __always_inline bool fast_allowed(const struct sl_ct_entry *ct, const struct sl_pkt *p)
{
	if (cfg_fast_path == SL_FAST_OFF || (ct->flags & SL_CT_SEEN_LAST) != SL_CT_SEEN_LAST || p->ttl <= 1)
		return false;
	/* Options are for routers: source routes that the node refuses, alerts, records of the way. So are extension headers. */
	if (unlikely(p->l4_off != cfg_l2_len + (p->family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr))))
		return false;
	return fast_unconfirmed(ct) ||
	       ((ct->flags & SL_CT_ASSURED) && !(p->tcp_flags & SL_TCP_SYN) && !nf_must_see(ct, p));
}

/*
 * Does netfilter still have the entry whose translation ct has learned? If not (conntrack -D, as kube-proxy does when an endpoint of
 * UDP goes; no room; its time is over), the packet goes to the stack, and netfilter decides anew. The address may
 * have become that of another entry, which has other tuples, but never of anything else while the kernel has entries there
 * (SLAB_TYPESAFE_BY_RCU). A read where there is no memory any more fails. Kernel 5.5 (bpf_probe_read_kernel).
 */
static __noinline bool sl_nf_conn_lives(const struct sl_ct_entry *ct)
{
	struct sl_ct_scratch *s = ct_scratch();

	return s && ct->nf_conn && !sl_nf_read(ct->nf_conn, s) && s->nf_hash == ct->nf_hash &&
	       (s->nf.status & (SL_IPS_CONFIRMED | SL_IPS_DYING)) == SL_IPS_CONFIRMED;
}

/*
 * Puts the packet on the fast path, if it may be there, and if netfilter still has the entry whose translation was learned. If it
 * is time to confirm the connection again, that begins instead.
 */
static __always_inline bool fast_take(struct sl_ct_entry *ct, const struct sl_pkt *p, enum sl_dir dir, __u64 now)
{
	if (!fast_allowed(ct, p) || (unlikely(ct->flags & SL_CT_NF_NAT) && !sl_nf_conn_lives(ct)))
		return false;
	return fast_unconfirmed(ct) || !ct_relearn_if_due(ct, p, dir, now);
}

/*
 * Does the packet go through the egress of the host veth, and so through sl_to_pod, which counts it?
 * It has to where the pod's ingress is limited, for the qdisc is there, and where it comes from a
 * netkit device, which has no ingress to leave out. Either way it bypasses the stack.
 */
static __always_inline bool by_host_end(const struct sl_endpoint *ep, bool netkit_sender)
{
	return netkit_sender || (ep->flags & SL_EP_QDISC_RX);
}

/* Redirects into the pod. netkit_sender: it comes from a netkit device. */
static __always_inline int redirect_into_pod(struct __sk_buff *skb, const struct sl_endpoint *ep, bool netkit_sender)
{
	__u32 ifindex = ep->ifindex;

	if (netkit_sender)
		cb_mark(skb);
	if (unlikely(by_host_end(ep, netkit_sender)))
		return (int)bpf_redirect(ifindex, 0);
	count_rx(skb, endpoint_stats(ifindex), true);
	return (int)bpf_redirect_peer(ifindex, 0);
}

/*
 * Hands a translated packet, whose hop is taken, to the pod behind ep. Kernel 5.10. ct_flags: of its
 * connection. Netfilter of the node has noted what came by a bridge, and bpf_redirect_peer() of older
 * kernels (Debian's 5.10) does not take that off: netfilter in the pod would believe it. The egress
 * of the host veth does.
 */
static __always_inline int fast_to_pod(struct __sk_buff *skb, const struct sl_endpoint *ep, __u32 ct_flags)
{
	__u32 ifindex = ep->ifindex;

	if (unlikely(rewrite_macs(skb, ep->mac, ep->gateway_mac)))
		return drop(skb, SL_DROP_REWRITE, ifindex);
	if (unlikely(ct_flags & SL_CT_BRIDGE))
		return (int)bpf_redirect(ifindex, 0);
	return redirect_into_pod(skb, ep, false);
}

/*
 * From pod to pod on this node. A bridged frame (addressed to the peer's own MAC) stays as it is. A
 * routed one loses a hop and gets the peer's MAC. The frame was not for the host veth's MAC, so the
 * pod's stack would ignore it without another packet type. to: the tuple that it gets, whose remote end it has already.
 */
static __always_inline int fast_pod_to_pod(struct __sk_buff *skb, const struct sl_pkt *p,
					   const struct sl_endpoint *peer, const struct sl_tuple *to)
{
	bool bridged = mac_equal(p->dst_mac, peer->mac);
	__u32 ifindex = peer->ifindex;

	if (rewrite_packet(skb, p, SL_TX, to, !bridged) ||
	    (!bridged && rewrite_macs(skb, peer->mac, peer->gateway_mac)))
		return drop(skb, SL_DROP_REWRITE, ifindex);
	if (skb->pkt_type != PACKET_HOST && bpf_skb_change_type(skb, PACKET_HOST))
		return drop(skb, SL_DROP_REWRITE, ifindex);
	return redirect_into_pod(skb, peer, from_netkit(skb));
}

/* The next hop of a packet that leaves by the uplink of its connection. */
struct sl_nexthop {
	struct bpf_redir_neigh
		nh; /* for bpf_redirect_neigh(), if nh.nh_family is not 0; else the link addresses count */
	__u8 link_dst[ETH_ALEN];
	__u8 link_src[ETH_ALEN];
};

/*
 * Asks the FIB as the stack would for this packet: from the pod's address, in by the device the pod
 * is routed from. True if the packet fits and leaves by the uplink that the connection has learned;
 * nh is the next hop then. Caches it in ct, if the neighbour is known.
 */
static __always_inline bool fib_lookup_nexthop(struct __sk_buff *skb, const struct sl_pkt *p,
					       const struct sl_endpoint *ep, struct sl_ct_entry *ct,
					       struct bpf_redir_neigh *nh, __u64 now)
{
	/* Routing comes behind the translation of the destination, and before that of the source. */
	const struct sl_tuple *to = ct->flags & SL_CT_NF_NAT ? &ct->other : &p->tuple;
	struct bpf_fib_lookup fib = {
		.ifindex = ep->route_ifindex,
		.l4_protocol = p->tuple.proto,
		.sport = p->tuple.local_port,
		.dport = to->remote_port,
		.tot_len = (__u16)p->seg_len,
	};
	long rc;

	if (p->family == 4) {
		fib.family = AF_INET;
		fib.ipv4_src = addr_v4(p->tuple.local);
		fib.ipv4_dst = addr_v4(to->remote);
	} else {
		fib.family = AF_INET6;
		addr_copy(fib.ipv6_src, p->tuple.local);
		addr_copy(fib.ipv6_dst, to->remote);
	}
	rc = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	/* Without a neighbour entry the redirect resolves it. */
	if (rc != BPF_FIB_LKUP_RET_SUCCESS && rc != BPF_FIB_LKUP_RET_NO_NEIGH)
		return false;
	if (fib.ifindex != ct->out_ifindex)
		return false;
	/*
	 * The stack has used another next hop of the device, or the FIB does not tell which. The
	 * stack knows what this lookup leaves out, above all a mark.
	 */
	if (unlikely(ct->flags & SL_CT_OUT_BARE)) { /* no neighbour there */
		ct->nexthop_len = p->seg_len;
		ct->nexthop_until = now + SL_NEXTHOP_TTL;
		return true;
	}
	if (ct->nexthop_len && (rc != BPF_FIB_LKUP_RET_SUCCESS || !mac_equal(fib.dmac, ct->nexthop_dst)))
		return false;
	nh->nh_family = fib.family;
	if (fib.family == AF_INET)
		nh->ipv4_nh = fib.ipv4_dst;
	else
		addr_copy(nh->ipv6_nh, fib.ipv6_dst);
	/* Since 5.12 tot_len holds the route's MTU now. */
	if (rc == BPF_FIB_LKUP_RET_SUCCESS)
		ct_cache_nexthop(ct, fib.dmac, fib.smac, fib.tot_len > p->seg_len ? fib.tot_len : p->seg_len, now);
	return true;
}

/*
 * Finds the next hop of a packet that the pod sends. For a while that is the next hop of the last
 * packet: a plain redirect, without FIB and neighbour table, which were a third of the program's
 * cost. A changed route or neighbour counts that much later. After that, and for a longer packet,
 * the FIB is asked again, and the packet goes through the neighbour table, so that the kernel goes
 * on probing the neighbour.
 *
 * Two CPUs may write the cache at once. The values are the same, except while a route changes: then
 * a mixture can send one packet to a neighbour that is not there.
 */
static __always_inline bool route_cached_or_fib(struct __sk_buff *skb, const struct sl_pkt *p,
						const struct sl_endpoint *ep, struct sl_ct_entry *ct,
						struct sl_nexthop *r, __u64 now)
{
	if (likely(now < ct->nexthop_until && p->seg_len <= ct->nexthop_len)) {
		__builtin_memcpy(r->link_dst, ct->nexthop_dst, ETH_ALEN);
		__builtin_memcpy(r->link_src, ct->nexthop_src, ETH_ALEN);
		return true;
	}
	ct->nexthop_until = 0;
	return ct->out_ifindex && fib_lookup_nexthop(skb, p, ep, ct, &r->nh, now);
}

/* Sends a translated packet out by the uplink. bare: that has no Ethernet header, so the kernel takes off the pod's. */
static __always_inline int fast_xmit(struct __sk_buff *skb, __u32 out_ifindex, struct sl_nexthop *r, bool bare)
{
	if (unlikely(bare))
		return (int)bpf_redirect(out_ifindex, 0);
	if (unlikely(r->nh.nh_family))
		return (int)bpf_redirect_neigh(out_ifindex, &r->nh, sizeof(r->nh), 0);
	if (unlikely(rewrite_macs(skb, r->link_dst, r->link_src)))
		return TC_ACT_SHOT;
	return (int)bpf_redirect(out_ifindex, 0);
}
