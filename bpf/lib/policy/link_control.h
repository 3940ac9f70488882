/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/config.h"
#include "../base/ctx.h"
#include "../endpoint/endpoint.h"
#include "../endpoint/endpoint_stats.h"
#include "../endpoint/podns_device_types.h"
#include "../packet/parse_full.h"

/*
 * What a link needs, and rules must let pass: neighbour discovery and multicast listeners. And what a
 * pod must not send there, whatever the rules say: it would take the addresses of others.
 */

/* Neighbour discovery (RFC 4861), from the first type to the last. */
#define SL_ND_ROUTER_SOLICIT 133
#define SL_ND_ROUTER_ADVERT 134
#define SL_ND_NEIGHBOUR_ADVERT 136
#define SL_ND_REDIRECT 137

/* What routers send by ICMP to hosts of their link (RFC 792, RFC 1256). */
#define SL_ICMP4_REDIRECT 5
#define SL_ICMP4_ROUTER_ADVERT 9

/*
 * Does a packet that a pod of the device dev sends stay on its link? No router forwards link-local
 * addresses, or a packet without a source. Inside a pod's namespace no program knows the subnets.
 */
static __always_inline bool stays_on_link(const struct sl_tuple *t, __u32 dev)
{
	struct sl_endpoint *ep;

	if (addr_is_link_local6(t->local) || addr_is_any(t->local) || addr_is_link_local6(t->remote))
		return true;
	if (addr_is_multicast(t->remote))
		return (t->remote[1] & 0x0f) <= 2; /* of the link (RFC 4291 2.7) */
	if ((dev & SL_PODNS_KEY) || is_node_addr(t->remote))
		return true;
	ep = endpoint_lookup(t->local);
	return ep && addr_same_prefix(t->local, t->remote, ep->prefix_len);
}

/*
 * Neighbour discovery and multicast listeners: a link needs them (RFC 4861, RFC 3810). Their hop
 * limits show that no router has forwarded them. A pod may send such a hop limit to any address.
 */
static __always_inline bool is_link_control(const struct sl_full_ctx *full, __u32 kind, __u32 dir, __u32 dev)
{
	__u8 type = full->copy[0]; /* of what the full parser read last */

	if (kind != SL_FULL_OPAQUE || full->outer.p.family != 6 || full->outer.p.tuple.proto != IPPROTO_ICMPV6)
		return false;
	if (type >= SL_ND_ROUTER_SOLICIT && type <= SL_ND_REDIRECT)
		return full->outer.p.ttl == 255 && (dir == SL_RX || stays_on_link(&full->outer.p.tuple, dev));
	return ((type >= 130 && type <= 132) || type == 143) && full->outer.p.ttl == 1;
}

/*
 * is_link_control() for a packet that is not parsed yet, on its way to a pod or without a source. A
 * function of its own, for the stack it takes.
 */
__noinline int sl_link_control(struct __sk_buff *skb, __u32 dir)
{
	__u32 kind = (__u32)sl_parse_full(skb, ETH_HLEN, dir == SL_RX ? SL_RX : SL_TX, 0);
	struct sl_full_ctx *full = full_scratch();

	return full && is_link_control(full, kind, dir, skb->ifindex);
}

/* Is ep another device of the pod that has the device ifindex? */
static __always_inline bool same_pod(__u32 ifindex, const struct sl_endpoint *ep)
{
	struct sl_endpoint_stats *st = endpoint_stats(ifindex);

	return st && ep->pod && st->pod == ep->pod;
}

/* Has the pod behind the device ifindex the address? */
static __always_inline bool is_own_addr(__u32 ifindex, const __u8 *ip)
{
	struct sl_endpoint *ep = endpoint_lookup(ip);

	return ep && (ep->ifindex == ifindex || same_pod(ifindex, ep));
}

/* May a packet of this protocol be, or hide, one that sl_false_nd() looks for? */
static __always_inline bool may_be_false_nd(const struct sl_pkt *p)
{
	if (p->family == 4)
		return p->tuple.proto == IPPROTO_ICMP;
	return p->tuple.proto == IPPROTO_ICMPV6 || is_ext_header(p->tuple.proto);
}

/*
 * What a pod sends is checked, by an enum sl_drop_reason: it is no router, and with claims not 0 it
 * advertises its own addresses only. No program knows which link-local addresses are its own. A host
 * takes neighbour discovery with a hop limit of 255 only, so a packet with another one may hide what
 * it is.
 */
__noinline int sl_false_nd(struct __sk_buff *skb, __u32 claims)
{
	__u32 kind = (__u32)sl_parse_full(skb, ETH_HLEN, SL_TX, 0);
	struct sl_full_ctx *full = full_scratch();
	__u8 type, *target;

	if (!full || kind != SL_FULL_OPAQUE)
		return SL_DROP_NONE;
	type = full->copy[0];
	if (full->outer.p.tuple.proto == IPPROTO_ICMP && full->outer.p.family == 4)
		return type == SL_ICMP4_REDIRECT || type == SL_ICMP4_ROUTER_ADVERT ? SL_DROP_FALSE_ND : SL_DROP_NONE;
	if (full->outer.p.family != 6 || full->outer.p.ttl != 255)
		return SL_DROP_NONE;
	/* A routing header that is not at its end is for a router, whose next hop gets a lower hop limit. */
	if (full->outer.p.tuple.proto != IPPROTO_ICMPV6)
		return is_ext_header(full->outer.p.tuple.proto) && full->outer.p.tuple.proto != IPPROTO_ROUTING
			       ? SL_DROP_UNPARSABLE
			       : SL_DROP_NONE;
	if (type == SL_ND_ROUTER_ADVERT || type == SL_ND_REDIRECT)
		return SL_DROP_FALSE_ND;
	if (type != SL_ND_NEIGHBOUR_ADVERT || !claims)
		return SL_DROP_NONE;
	target = full->copy;
	if (bpf_skb_load_bytes(skb, full->outer.p.l4_off + 8, target, 16))
		return SL_DROP_FALSE_ND;
	return addr_is_link_local6(target) || is_own_addr(skb->ifindex, target) ? SL_DROP_NONE : SL_DROP_FALSE_ND;
}

/* The sender's part of an ARP packet, behind 8 bytes that the receiver checks (RFC 826). */
struct sl_arp_sender {
	__u8 mac[ETH_ALEN];
	__be32 ip;
} __attribute__((packed));

/*
 * Does an ARP packet of a pod name an address that is not the pod's as its sender's? All who hear it
 * would learn that. A probe names none (RFC 5227).
 */
__noinline int sl_false_arp(struct __sk_buff *skb)
{
	__u8 ip[16] __attribute__((aligned(4)));
	struct sl_arp_sender sender;
	__be16 proto;

	if (bpf_skb_load_bytes(skb, offsetof(struct ethhdr, h_proto), &proto, sizeof(proto)) ||
	    proto != bpf_htons(ETH_P_ARP) || bpf_skb_load_bytes(skb, ETH_HLEN + 8, &sender, sizeof(sender)) ||
	    !sender.ip)
		return SL_DROP_NONE;
	addr_from_v4(ip, sender.ip);
	return is_own_addr(skb->ifindex, ip) ? SL_DROP_NONE : SL_DROP_FALSE_ND;
}
