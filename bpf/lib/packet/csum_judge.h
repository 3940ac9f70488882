/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "csum_place.h"
#include "parse_full.h"

/*
 * Whether the place where the kernel will still write is one that a stack of a pod, or of a virtual machine in it, would name.
 */

/*
 * What programs read of a frame that is not IP to them: an ARP packet, or two VLAN tags and an IPv4 header behind them. The checksum
 * of UDP behind one tag is beyond.
 */
#define SL_CSUM_LINK_LEN (ETH_HLEN + 28)

/* Offset of the checksum in an SCTP header, and the header's length (RFC 9260 3). */
#define SL_SCTP_CSUM_OFF 8
#define SL_SCTP_HLEN 12

/* Is at the place of p's checksum, or behind its headers? In a tunnel's packet it is the one of the packet inside. */
static __always_inline bool csum_place_is_right(const struct sl_pkt *p, __s32 at)
{
	__s32 off = at - p->l4_off;

	if (off < 0)
		return false;
	switch (p->tuple.proto) {
	case IPPROTO_TCP:
		return off == (__s32)offsetof(struct tcphdr, check) || off >= (__s32)sizeof(struct tcphdr);
	case IPPROTO_UDP:
		return off == (__s32)offsetof(struct udphdr, check) || off >= (__s32)sizeof(struct udphdr);
	case IPPROTO_SCTP:
		return off == SL_SCTP_CSUM_OFF || off >= SL_SCTP_HLEN;
	case IPPROTO_ICMP: /* the stack makes these itself, and an error has another packet in it */
	case IPPROTO_ICMPV6:
		return false;
	default:
		return true;
	}
}

/*
 * csum_misplaced() for what the fast parser cannot read. A function of its own, for the stack it takes. No stack leaves the checksum
 * of a fragment to others.
 * out: full_scratch()->outer
 */
static __noinline int sl_csum_full(struct __sk_buff *skb, __s32 at)
{
	__u32 kind = (__u32)sl_parse_full(skb, ETH_HLEN, SL_TX, 0);
	struct sl_full_ctx *full = full_scratch();

	if (!full || (kind != SL_FULL_TUPLE && kind != SL_FULL_OPAQUE) || full->outer.first_frag)
		return 1;
	return !csum_place_is_right(&full->outer.p, at);
}

/* Would the kernel write into what the programs judge of a pod's packet? */
static __always_inline bool csum_misplaced(struct __sk_buff *skb, const struct sl_pkt *p, enum sl_parsed parsed)
{
	__s32 at = sl_csum_place(skb);

	if (at == SL_CSUM_MADE)
		return false;
	if (likely(parsed == SL_PARSED_L4))
		return unlikely(!csum_place_is_right(p, at));
	return parsed == SL_PARSED_L3 ? sl_csum_full(skb, at) : at < SL_CSUM_LINK_LEN;
}
