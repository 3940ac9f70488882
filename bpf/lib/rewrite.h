/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "parse.h"

/*
 * Changes of a packet. All go through the skb helpers, which know about cloned
 * packets and about the three states of a checksum (none, partial, complete).
 * Each returns 0, or a negative error after which the packet must be dropped.
 */

static __always_inline __u32 __csum_off(const struct sl_pkt *p)
{
	switch (p->tuple.proto) {
	case IPPROTO_TCP:
		return p->l4_off + offsetof(struct tcphdr, check);
	case IPPROTO_UDP:
		return p->l4_off + offsetof(struct udphdr, check);
	default: /* ICMP and ICMPv6 agree */
		return p->l4_off + offsetof(struct sl_icmp_echo, checksum);
	}
}

/* A UDP checksum of 0 stays 0 ("none", RFC 768); one that becomes 0 is written as 0xffff. */
static __always_inline __u64 __csum_flags(const struct sl_pkt *p)
{
	return p->tuple.proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
}

static __always_inline int __rewrite_addr4(struct __sk_buff *skb, const struct sl_pkt *p, bool source, __be32 old,
					   __be32 new)
{
	__u32 off = ETH_HLEN + (source ? offsetof(struct iphdr, saddr) : offsetof(struct iphdr, daddr));
	int err;

	err = bpf_l3_csum_replace(skb, ETH_HLEN + offsetof(struct iphdr, check), old, new, sizeof(new));
	if (err)
		return err;
	/* ICMP has no pseudo header (RFC 792). */
	if (p->tuple.proto != IPPROTO_ICMP) {
		err = bpf_l4_csum_replace(skb, __csum_off(p), old, new,
					  sizeof(new) | BPF_F_PSEUDO_HDR | __csum_flags(p));
		if (err)
			return err;
	}
	return bpf_skb_store_bytes(skb, off, &new, sizeof(new), 0);
}

static __always_inline int __rewrite_addr6(struct __sk_buff *skb, const struct sl_pkt *p, bool source, const __u8 *old,
					   const __u8 *new)
{
	__u32 off = ETH_HLEN + (source ? offsetof(struct ipv6hdr, saddr) : offsetof(struct ipv6hdr, daddr));
	__s64 diff = bpf_csum_diff((__be32 *)old, 16, (__be32 *)new, 16, 0);
	int err;

	if (diff < 0)
		return (int)diff;
	err = bpf_l4_csum_replace(skb, __csum_off(p), 0, (__u64)diff, BPF_F_PSEUDO_HDR | __csum_flags(p));
	if (err)
		return err;
	/*
	 * IPv6 has no header checksum, so in the sum over the whole packet
	 * (CHECKSUM_COMPLETE) the new address and the new L4 checksum cancel out.
	 * The helper above subtracts the difference as IPv4 needs it (net/core/utils.c,
	 * inet_proto_csum_replace_by_diff; BPF_F_IPV6 says otherwise only from 6.16
	 * on): give it back. Fails, rightly, in the other checksum states.
	 */
	bpf_csum_update(skb, (__wsum)diff);
	return bpf_skb_store_bytes(skb, off, new, 16, 0);
}

static __always_inline int __rewrite_port(struct __sk_buff *skb, const struct sl_pkt *p, bool source, __be16 old,
					  __be16 new)
{
	__u32 off = p->l4_off;
	int err;

	if (old == new)
		return 0;
	if (p->echo)
		off += offsetof(struct sl_icmp_echo, id);
	else if (!source)
		off += sizeof(__be16);
	err = bpf_l4_csum_replace(skb, __csum_off(p), old, new, sizeof(new) | __csum_flags(p));
	if (err)
		return err;
	return bpf_skb_store_bytes(skb, off, &new, sizeof(new), 0);
}

/* Replaces the packet's local end (its source on SL_TX, its destination on SL_RX). The tuple in p is not changed. */
static __always_inline __must_check int rewrite_local(struct __sk_buff *skb, const struct sl_pkt *p, enum sl_dir dir,
						      const struct sl_tuple *to)
{
	bool source = dir == SL_TX;
	int err = 0;

	if (!addr_equal(p->tuple.local, to->local)) {
		if (p->family == 4)
			err = __rewrite_addr4(skb, p, source, addr_v4(p->tuple.local), addr_v4(to->local));
		else
			err = __rewrite_addr6(skb, p, source, p->tuple.local, to->local);
	}
	if (err)
		return err;
	return __rewrite_port(skb, p, source, p->tuple.local_port, to->local_port);
}

/* One hop less, as the stack would have done. The caller knows that more than one is left. */
static __always_inline __must_check int rewrite_ttl(struct __sk_buff *skb, const struct sl_pkt *p)
{
	__u8 ttl = p->ttl - 1;
	int err;

	if (p->family == 6)
		return bpf_skb_store_bytes(skb, ETH_HLEN + offsetof(struct ipv6hdr, hop_limit), &ttl, 1, 0);
	err = bpf_l3_csum_replace(skb, ETH_HLEN + offsetof(struct iphdr, check), bpf_htons((__u16)(p->ttl << 8)),
				  bpf_htons((__u16)(ttl << 8)), 2);
	if (err)
		return err;
	return bpf_skb_store_bytes(skb, ETH_HLEN + offsetof(struct iphdr, ttl), &ttl, 1, 0);
}

static __always_inline __must_check int rewrite_macs(struct __sk_buff *skb, const __u8 *dst, const __u8 *src)
{
	__u8 macs[2 * ETH_ALEN];

	__builtin_memcpy(macs, dst, ETH_ALEN);
	__builtin_memcpy(macs + ETH_ALEN, src, ETH_ALEN);
	return bpf_skb_store_bytes(skb, 0, macs, sizeof(macs), 0);
}
