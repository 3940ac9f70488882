/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "odd.h"
#include "rewrite.h"

/*
 * Changes of a packet that the second parser has read, wherever its headers are: by
 * helpers throughout. Each returns 0, or a negative error after which the packet must
 * be dropped. What checksums are told is explained in rewrite.h.
 */

/* Is the address part of the L4 checksum? Later fragments have none; ICMP has no pseudo header (RFC 792). */
static __always_inline bool __sums_address(const struct sl_head *h)
{
	__u8 proto = h->p.tuple.proto;

	return h->kind != SL_ODD_LATER && (proto == IPPROTO_TCP || proto == IPPROTO_UDP || proto == IPPROTO_ICMPV6);
}

static __always_inline int __odd_addr4(struct __sk_buff *skb, const struct sl_head *h, bool source, const __u8 *to)
{
	__u32 at = h->l3_off + (source ? offsetof(struct iphdr, saddr) : offsetof(struct iphdr, daddr));
	__be32 old = addr_v4(h->p.tuple.local), new = addr_v4(to);
	long err = 0;

	if (__sums_address(h))
		err = bpf_l4_csum_replace(skb, __csum_off(&h->p), old, new,
					  sizeof(new) | BPF_F_PSEUDO_HDR | __csum_flags(&h->p));
	if (!err)
		err = bpf_l3_csum_replace(skb, h->l3_off + offsetof(struct iphdr, check), old, new, sizeof(new));
	if (!err)
		err = bpf_skb_store_bytes(skb, at, &new, sizeof(new), 0);
	return (int)err;
}

static __always_inline int __odd_addr6(struct __sk_buff *skb, const struct sl_head *h, bool source, const __u8 *to)
{
	__u32 at = h->l3_off + (source ? offsetof(struct ipv6hdr, saddr) : offsetof(struct ipv6hdr, daddr));
	__s64 diff = bpf_csum_diff((__be32 *)h->p.tuple.local, 16, (__be32 *)to, 16, 0);
	long err = 0;

	if (diff < 0)
		return (int)diff;
	if (__sums_address(h))
		err = bpf_l4_csum_replace(skb, __csum_off(&h->p), 0, (__u64)diff,
					  BPF_F_PSEUDO_HDR | __csum_flags(&h->p));
	if (!err)
		err = bpf_skb_store_bytes(skb, at, to, 16, BPF_F_RECOMPUTE_CSUM);
	return (int)err;
}

/* Replaces the local address: the source or the destination. */
static __always_inline __must_check int odd_rewrite_addr(struct __sk_buff *skb, const struct sl_head *h, bool source,
							 const __u8 *to)
{
	if (addr_equal(h->p.tuple.local, to))
		return 0;
	return h->p.family == 4 ? __odd_addr4(skb, h, source, to) : __odd_addr6(skb, h, source, to);
}

/* Where a port of the packet is: an echo has one field, its identifier. */
static __always_inline __u32 __port_off(const struct sl_pkt *p, bool source)
{
	if (p->echo)
		return p->l4_off + offsetof(struct sl_icmp_echo, id);
	return p->l4_off + (source ? 0 : sizeof(__be16));
}

static __always_inline int __odd_port(struct __sk_buff *skb, const struct sl_pkt *p, bool source, __be16 old,
				      __be16 new)
{
	long err;

	if (old == new)
		return 0;
	if (!proto_has_free_ports(p->tuple.proto))
		return -1;
	err = bpf_l4_csum_replace(skb, __csum_off(p), old, new, sizeof(new) | __csum_flags(p));
	return err ? (int)err : (int)bpf_skb_store_bytes(skb, __port_off(p, source), &new, sizeof(new), 0);
}

/* Replaces the packet's local end, as rewrite_packet() does, and the port of the remote one where to has another. */
static __always_inline __must_check int odd_rewrite(struct __sk_buff *skb, const struct sl_head *h, enum sl_dir dir,
						    const struct sl_tuple *to)
{
	int err;

	if (likely(h->plain))
		return rewrite_packet(skb, &h->p, dir, to, false) ?: rewrite_remote_port(skb, &h->p, dir, to);
	err = odd_rewrite_addr(skb, h, dir == SL_TX, to->local);
	if (!err)
		err = __odd_port(skb, &h->p, dir == SL_TX, h->p.tuple.local_port, to->local_port);
	return err ? err : __odd_port(skb, &h->p, dir == SL_RX, h->p.tuple.remote_port, to->remote_port);
}

/* Takes one hop, as the stack would have done; the caller knows that more than one is left. */
static __always_inline __must_check int odd_hop(struct __sk_buff *skb, const struct sl_head *h)
{
	__u8 ttl = h->p.ttl - 1;
	int err;

	if (h->p.family == 6)
		return (int)bpf_skb_store_bytes(skb, h->l3_off + offsetof(struct ipv6hdr, hop_limit), &ttl, sizeof(ttl),
						BPF_F_RECOMPUTE_CSUM);
	err = (int)bpf_l3_csum_replace(skb, h->l3_off + offsetof(struct iphdr, check),
				       bpf_htons((__u16)(h->p.ttl << 8)), bpf_htons((__u16)(ttl << 8)), sizeof(__u16));
	return err ? err : (int)bpf_skb_store_bytes(skb, h->l3_off + offsetof(struct iphdr, ttl), &ttl, sizeof(ttl), 0);
}
