/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "rewrite_full.h"

/*
 * Translation of ICMP errors: the addresses of the error itself, and the addresses and ports of the
 * packet inside it, by which the receiver finds its socket (RFC 5508 4, RFC 4443 2.4).
 * Every change is of whole 16-bit words, so all of them add up to one change of the ICMP checksum.
 * A sum over the whole packet (CHECKSUM_COMPLETE) stays right: data and checksum cancel out.
 */

/* One's complement sum of a change in the ICMP message: seed for the next, negative on error. */
static __always_inline __s64 csum_diff4(__u32 old, __u32 new, __s64 diff)
{
	return bpf_csum_diff(&old, sizeof(old), &new, sizeof(new), (__wsum)diff);
}

/* Replaces a 16-bit field. */
static __always_inline __s64 store_u16(struct __sk_buff *skb, __u32 off, __u16 old, __u16 new, __s64 diff)
{
	if (bpf_skb_store_bytes(skb, off, &new, sizeof(new), 0))
		return -1;
	return csum_diff4(old, new, diff);
}

/* Folds a change into a checksum field, RFC 1624. */
static __always_inline __sum16 csum_apply(__sum16 sum, __s64 diff)
{
	__u64 s = (__u64)(__u16)~sum + (__u32)diff;

	s = (s & 0xffff) + ((s >> 16) & 0xffff) + (s >> 32);
	s = (s & 0xffff) + (s >> 16);
	s = (s & 0xffff) + (s >> 16);
	return (__sum16)~s;
}

/*
 * The L4 checksum of the packet inside, if the error has kept it. covered: what changed in the
 * bytes it covers. A UDP checksum of 0 stays 0.
 */
static __always_inline __s64 inner_l4_csum(struct __sk_buff *skb, const struct sl_pkt *p, __s64 covered, __s64 diff)
{
	__u32 off = csum_off(p);
	__sum16 old, new;

	/* Other protocols have no checksum there, or it does not cover the addresses. */
	if (!proto_has_free_ports(p->tuple.proto))
		return diff;
	if (bpf_skb_load_bytes(skb, off, &old, sizeof(old)))
		return diff;
	if (p->tuple.proto == IPPROTO_UDP && !old)
		return diff;
	new = csum_apply(old, covered);
	if (p->tuple.proto == IPPROTO_UDP && !new)
		new = 0xffff;
	return store_u16(skb, off, old, new, diff);
}

/* Sets an address of the packet inside, source or destination. Returns the change. */
static __always_inline __s64 inner_set_addr(struct __sk_buff *skb, const struct sl_ip_pkt *pkt, bool source,
					    const __u8 *to)
{
	__be32 v4 = addr_v4(to);
	__u32 off = pkt->l3_off;
	__u32 at;

	if (pkt->p.family == 4) {
		at = off + (source ? offsetof(struct iphdr, saddr) : offsetof(struct iphdr, daddr));
		if (bpf_skb_store_bytes(skb, at, &v4, sizeof(v4), 0))
			return -1;
		return csum_diff4(addr_v4(pkt->p.tuple.local), v4, 0);
	}
	at = off + (source ? offsetof(struct ipv6hdr, saddr) : offsetof(struct ipv6hdr, daddr));
	if (bpf_skb_store_bytes(skb, at, to, 16, 0))
		return -1;
	return bpf_csum_diff((__be32 *)pkt->p.tuple.local, 16, (__be32 *)to, 16, 0);
}

/* The header checksum of the IPv4 packet inside, after its address has changed. */
static __always_inline __s64 inner_ip_csum(struct __sk_buff *skb, const struct sl_ip_pkt *pkt, __s64 changed,
					   __s64 diff)
{
	__u32 off = pkt->l3_off + offsetof(struct iphdr, check);
	__sum16 old;

	if (bpf_skb_load_bytes(skb, off, &old, sizeof(old)))
		return -1;
	return store_u16(skb, off, old, csum_apply(old, changed), diff);
}

/*
 * Gives the packet inside the local end of to, and its remote port. Returns the change of the ICMP
 * message, negative on error.
 */
static __always_inline __s64 inner_rewrite(struct __sk_buff *skb, const struct sl_ip_pkt *pkt, bool source,
					   const struct sl_tuple *to)
{
	const struct sl_pkt *p = &pkt->p;
	__s64 diff, covered, addr = inner_set_addr(skb, pkt, source, to->local);

	if (addr < 0)
		return addr;
	diff = addr;
	if (p->family == 4)
		diff = inner_ip_csum(skb, pkt, addr, diff);
	if (diff < 0)
		return diff;
	/* ICMP has no pseudo header (RFC 792). */
	covered = p->tuple.proto == IPPROTO_ICMP ? 0 : addr;
	if (p->tuple.local_port != to->local_port) {
		covered = csum_diff4(p->tuple.local_port, to->local_port, covered);
		diff = store_u16(skb, port_off(p, source), p->tuple.local_port, to->local_port, diff);
	}
	if (diff >= 0 && p->tuple.remote_port != to->remote_port) {
		covered = csum_diff4(p->tuple.remote_port, to->remote_port, covered);
		diff = store_u16(skb, port_off(p, !source), p->tuple.remote_port, to->remote_port, diff);
	}
	if (diff < 0)
		return diff;
	return inner_l4_csum(skb, p, covered, diff);
}

/*
 * Translates an ICMP error that travels in direction dir. The packet inside gets the local end of
 * to, and so does the error itself if it has the same local address. (The node's errors about
 * packets to a pod have the node's address already.)
 */
static __always_inline __must_check int icmp_rewrite_error(struct __sk_buff *skb, const struct sl_full_ctx *full,
							   enum sl_dir dir, const struct sl_tuple *to)
{
	__s64 diff = inner_rewrite(skb, &full->inner, dir == SL_RX, to);
	int err;

	if (diff < 0)
		return (int)diff;
	err = bpf_l4_csum_replace(skb, csum_off(&full->outer.p), 0, (__u64)diff, 0);
	if (err || !addr_equal(full->outer.p.tuple.local, full->inner.p.tuple.local))
		return err;
	return full_rewrite_addr(skb, &full->outer, dir == SL_TX, to->local);
}
