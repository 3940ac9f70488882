/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "parse_full.h"
#include "rewrite.h"

/*
 * Changes of a packet that the full parser has read, wherever its headers are: by helpers throughout.
 * Each function returns 0, or a negative error after which the packet must be dropped. rewrite.h
 * explains the checksums.
 */

/*
 * Does the L4 checksum cover the address? Later fragments have none; ICMP has no pseudo header (RFC
 * 792).
 */
static __always_inline bool l4_csum_covers_addr(const struct sl_ip_pkt *pkt)
{
	__u8 proto = pkt->p.tuple.proto;

	return pkt->kind != SL_FULL_FRAG_NEXT &&
	       (proto == IPPROTO_TCP || proto == IPPROTO_UDP || proto == IPPROTO_ICMPV6);
}

static __always_inline int full_rewrite_addr4(struct __sk_buff *skb, const struct sl_ip_pkt *pkt, bool source,
					      const __u8 *to)
{
	__u32 at = pkt->l3_off + (source ? offsetof(struct iphdr, saddr) : offsetof(struct iphdr, daddr));
	__be32 old = addr_v4(pkt->p.tuple.local), new = addr_v4(to);
	long err = 0;

	if (l4_csum_covers_addr(pkt))
		err = bpf_l4_csum_replace(skb, csum_off(&pkt->p), old, new,
					  sizeof(new) | BPF_F_PSEUDO_HDR | csum_flags(&pkt->p));
	if (!err)
		err = bpf_l3_csum_replace(skb, pkt->l3_off + offsetof(struct iphdr, check), old, new, sizeof(new));
	if (!err)
		err = bpf_skb_store_bytes(skb, at, &new, sizeof(new), 0);
	return (int)err;
}

static __always_inline int full_rewrite_addr6(struct __sk_buff *skb, const struct sl_ip_pkt *pkt, bool source,
					      const __u8 *to)
{
	__u32 at = pkt->l3_off + (source ? offsetof(struct ipv6hdr, saddr) : offsetof(struct ipv6hdr, daddr));
	__s64 diff = bpf_csum_diff((__be32 *)pkt->p.tuple.local, 16, (__be32 *)to, 16, 0);
	long err = 0;

	if (diff < 0)
		return (int)diff;
	if (l4_csum_covers_addr(pkt))
		err = bpf_l4_csum_replace(skb, csum_off(&pkt->p), 0, (__u64)diff,
					  BPF_F_PSEUDO_HDR | csum_flags(&pkt->p));
	if (!err)
		err = bpf_skb_store_bytes(skb, at, to, 16, BPF_F_RECOMPUTE_CSUM);
	return (int)err;
}

/* Replaces the local address: the source or the destination. */
static __always_inline __must_check int full_rewrite_addr(struct __sk_buff *skb, const struct sl_ip_pkt *pkt,
							  bool source, const __u8 *to)
{
	if (addr_equal(pkt->p.tuple.local, to))
		return 0;
	return pkt->p.family == 4 ? full_rewrite_addr4(skb, pkt, source, to) : full_rewrite_addr6(skb, pkt, source, to);
}

/* Where a port of the packet is. An echo has one field, its identifier. */
static __always_inline __u32 port_off(const struct sl_pkt *p, bool source)
{
	if (p->echo)
		return p->l4_off + offsetof(struct sl_icmp_echo, id);
	return p->l4_off + (source ? 0 : sizeof(__be16));
}

static __always_inline int full_rewrite_port(struct __sk_buff *skb, const struct sl_pkt *p, bool source, __be16 old,
					     __be16 new)
{
	long err;

	if (old == new)
		return 0;
	if (!proto_has_free_ports(p->tuple.proto))
		return -1;
	err = bpf_l4_csum_replace(skb, csum_off(p), old, new, sizeof(new) | csum_flags(p));
	return err ? (int)err : (int)bpf_skb_store_bytes(skb, port_off(p, source), &new, sizeof(new), 0);
}

/*
 * Replaces the packet's local end, as rewrite_packet() does, and its remote port if to has another
 * one.
 */
static __always_inline __must_check int full_rewrite(struct __sk_buff *skb, const struct sl_ip_pkt *pkt,
						     enum sl_dir dir, const struct sl_tuple *to)
{
	int err;

	if (likely(pkt->from_fast_parser))
		return rewrite_packet(skb, &pkt->p, dir, to, false)
			       ?: rewrite_port(skb, &pkt->p, dir == SL_RX, pkt->p.tuple.remote_port, to->remote_port);
	err = full_rewrite_addr(skb, pkt, dir == SL_TX, to->local);
	if (!err)
		err = full_rewrite_port(skb, &pkt->p, dir == SL_TX, pkt->p.tuple.local_port, to->local_port);
	return err ? err : full_rewrite_port(skb, &pkt->p, dir == SL_RX, pkt->p.tuple.remote_port, to->remote_port);
}

/* Takes one hop, as the stack would; the caller knows that more than one is left. */
static __always_inline __must_check int full_take_hop(struct __sk_buff *skb, const struct sl_ip_pkt *pkt)
{
	__u8 ttl = pkt->p.ttl - 1;
	int err;

	if (pkt->p.family == 6)
		return (int)bpf_skb_store_bytes(skb, pkt->l3_off + offsetof(struct ipv6hdr, hop_limit), &ttl,
						sizeof(ttl), BPF_F_RECOMPUTE_CSUM);
	err = (int)bpf_l3_csum_replace(skb, pkt->l3_off + offsetof(struct iphdr, check),
				       bpf_htons((__u16)(pkt->p.ttl << 8)), bpf_htons((__u16)(ttl << 8)),
				       sizeof(__u16));
	return err ? err
		   : (int)bpf_skb_store_bytes(skb, pkt->l3_off + offsetof(struct iphdr, ttl), &ttl, sizeof(ttl), 0);
}
