/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "parse.h"

/*
 * Changes of a packet that the fast parser has read. L4 checksums go through the helpers, which know
 * the three states of a checksum (none, partial, complete). The rest is written in place, which saves
 * a third of the cost: for a program that does so, the verifier makes the headers of a cloned packet
 * private before the first instruction.
 * Each function returns 0, or a negative error after which the packet must be dropped.
 */

/* The len bytes at off. NULL if the packet's linear part ends before. Get it anew after every helper. */
static __always_inline void *pkt_at(struct __sk_buff *skb, __u32 off, __u32 len)
{
	void *at = (void *)(long)skb->data + off;

	return at + len <= (void *)(long)skb->data_end ? at : NULL;
}

static __always_inline __u32 csum_off(const struct sl_pkt *p)
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
static __always_inline __u64 csum_flags(const struct sl_pkt *p)
{
	return p->tuple.proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
}

/* RFC 1624: the header checksum after a 32-bit word at a 16-bit boundary has changed. */
static __always_inline __u32 csum_change(__u32 sum, __u32 old, __u32 new)
{
	return sum + (~old & 0xffff) + (~old >> 16) + (new & 0xffff) + (new >> 16);
}

static __always_inline __sum16 csum_fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (__sum16)~sum;
}

/* IPv4 header: address and hop in one store. Its own checksum compensates, so a sum over the packet stays right. */
static __always_inline int rewrite_ip4(struct __sk_buff *skb, const struct sl_pkt *p, bool source, const __u8 *from,
				       const __u8 *addr, bool hop)
{
	struct iphdr *in = pkt_at(skb, ETH_HLEN, sizeof(*in));
	__be32 new = addr_v4(addr), old = addr_v4(from);
	struct iphdr ip;
	__u32 sum;
	int err;

	if (unlikely(!in))
		return -1;
	__builtin_memcpy(&ip, in, sizeof(ip));
	sum = csum_change((__u16)~ip.check, old, new);
	if (source)
		ip.saddr = new;
	else
		ip.daddr = new;
	if (hop) {
		ip.ttl--;
		sum = csum_change(sum, bpf_htons((__u16)(p->ttl << 8)), bpf_htons((__u16)(ip.ttl << 8)));
	}
	ip.check = csum_fold(sum);
	/* ICMP has no pseudo header (RFC 792). */
	if (old != new && p->tuple.proto != IPPROTO_ICMP) {
		err = bpf_l4_csum_replace(skb, csum_off(p), old, new, sizeof(new) | BPF_F_PSEUDO_HDR | csum_flags(p));
		if (unlikely(err))
			return err;
	}
	in = pkt_at(skb, ETH_HLEN, sizeof(*in));
	if (unlikely(!in))
		return -1;
	__builtin_memcpy(in, &ip, sizeof(ip));
	return 0;
}

/*
 * IPv6 header: address and hop in one store. It has no checksum. So a sum over the whole packet
 * (CHECKSUM_COMPLETE) follows what is stored (BPF_F_RECOMPUTE_CSUM) and what changes in the L4
 * checksum (BPF_F_PSEUDO_HDR). For the address the two cancel out, as they must.
 */
static __always_inline int rewrite_ip6(struct __sk_buff *skb, const struct sl_pkt *p, bool source, const __u8 *from,
				       const __u8 *addr, bool hop)
{
	struct ipv6hdr *in = pkt_at(skb, ETH_HLEN, sizeof(*in));
	struct ipv6hdr ip;
	__s64 diff;
	int err;

	if (unlikely(!in))
		return -1;
	__builtin_memcpy(&ip, in, sizeof(ip));
	addr_copy(source ? &ip.saddr : &ip.daddr, addr);
	if (hop)
		ip.hop_limit--;
	if (!addr_equal(from, addr)) {
		diff = bpf_csum_diff((__be32 *)from, 16, (__be32 *)addr, 16, 0);
		if (unlikely(diff < 0))
			return (int)diff;
		err = bpf_l4_csum_replace(skb, csum_off(p), 0, (__u64)diff, BPF_F_PSEUDO_HDR | csum_flags(p));
		if (unlikely(err))
			return err;
	}
	return bpf_skb_store_bytes(skb, ETH_HLEN, &ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM);
}

static __always_inline int rewrite_port(struct __sk_buff *skb, const struct sl_pkt *p, bool source, __be16 old,
					__be16 new)
{
	__u32 off = p->l4_off;
	__be16 *at;
	int err;

	if (old == new)
		return 0;
	if (unlikely(p->echo))
		off += offsetof(struct sl_icmp_echo, id);
	else if (!source)
		off += sizeof(__be16);
	err = bpf_l4_csum_replace(skb, csum_off(p), old, new, sizeof(new) | csum_flags(p));
	if (unlikely(err))
		return err;
	/* The mask tells the verifier what the parser guarantees. */
	at = pkt_at(skb, off & 0x7f, sizeof(*at));
	if (unlikely(!at))
		return -1;
	*at = new;
	return 0;
}

/*
 * Replaces the packet's local end: its source on SL_TX, its destination on SL_RX. If hop, takes one
 * hop as the stack would; the caller knows that more than one is left. Does not change the tuple in
 * p.
 */
static __always_inline __must_check int rewrite_packet(struct __sk_buff *skb, const struct sl_pkt *p, enum sl_dir dir,
						       const struct sl_tuple *to, bool hop)
{
	bool source = dir == SL_TX;
	int err;

	if (!hop && addr_equal(p->tuple.local, to->local))
		err = 0;
	else if (p->family == 4)
		err = rewrite_ip4(skb, p, source, p->tuple.local, to->local, hop);
	else
		err = rewrite_ip6(skb, p, source, p->tuple.local, to->local, hop);
	if (unlikely(err))
		return err;
	return rewrite_port(skb, p, source, p->tuple.local_port, to->local_port);
}

/*
 * Replaces the remote end: its destination on SL_TX, its source on SL_RX. Of connections whose client has another port
 * (SL_CT_CLIENT_PORT), and that netfilter translates (SL_CT_NF_NAT). A function of its own: most packets need none of it.
 */
static __noinline __must_check int sl_rewrite_remote(struct __sk_buff *skb, const struct sl_pkt *p, bool source,
						     const struct sl_tuple *to)
{
	int err = 0;

	if (addr_equal(p->tuple.remote, to->remote))
		err = 0;
	else if (p->family == 4)
		err = rewrite_ip4(skb, p, source, p->tuple.remote, to->remote, false);
	else
		err = rewrite_ip6(skb, p, source, p->tuple.remote, to->remote, false);
	return err ? err : rewrite_port(skb, p, source, p->tuple.remote_port, to->remote_port);
}

static __always_inline __must_check int rewrite_remote(struct __sk_buff *skb, const struct sl_pkt *p, enum sl_dir dir,
						       const struct sl_tuple *to)
{
	return sl_rewrite_remote(skb, p, dir == SL_RX, to);
}

static __always_inline __must_check int rewrite_macs(struct __sk_buff *skb, const __u8 *dst, const __u8 *src)
{
	struct ethhdr *eth = pkt_at(skb, 0, sizeof(*eth));

	if (unlikely(!eth))
		return -1;
	__builtin_memcpy(eth->h_dest, dst, ETH_ALEN);
	__builtin_memcpy(eth->h_source, src, ETH_ALEN);
	return 0;
}
