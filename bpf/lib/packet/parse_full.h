/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "parse.h"

/*
 * The full parser: fragments, IPv6 extension headers, SCTP, ICMP errors and the packets inside them.
 * It copies headers out of the packet by helpers, so it works at any offset and in any memory.
 * Its result, sl_full_ctx, is also the parameter block of the slow path: full_ctx_init() puts there
 * what the fast parser has read. The verifier checks the parser once, as a global function.
 */

enum sl_full_kind {
	SL_FULL_NONE,	    /* not IP, or malformed: not for Sluice */
	SL_FULL_OPAQUE,	    /* the addresses are set; nothing else is usable */
	SL_FULL_TUPLE,	    /* the whole tuple is set; ports are 0 if the protocol has none */
	SL_FULL_FRAG_NEXT,  /* a later fragment: the addresses and frag_id are set */
	SL_FULL_ICMP_ERROR, /* an ICMP error; the packet inside begins SL_ICMP_ERROR_HLEN after l4_off */
	SL_FULL_V4MAPPED,   /* IPv6 with a v4-mapped source or destination: see parse_ip6() */
};

/* The headers of one IP packet. p.l4_off counts from the start of the frame, as in parse.h. */
struct sl_ip_pkt {
	struct sl_pkt p;
	__u32 l3_off;
	__u32 kind;	       /* enum sl_full_kind */
	__be32 frag_id;	       /* of the datagram, for a fragment */
	__u8 frag_proto;       /* the protocol that every fragment of the datagram names */
	__u8 first_frag;       /* the first one of several fragments */
	__u8 from_fast_parser; /* the fast parser has read it: p's link addresses are set */
	__u8 pad[1];
};

/* A packet, and the one inside if it is an ICMP error. A program never nests in itself on one CPU. */
struct sl_full_ctx {
	struct sl_ip_pkt outer;
	struct sl_ip_pkt inner;
	struct sl_tuple key; /* of the conntrack entry, as the pod sees the packet: memory for the lookup */
	__u32 ct_flags;	     /* of the entry, for what is to be done with the packet */
	__u32 pad;
	__u8 copy[40]; /* of the header being read: too big for the stack, which the callers share */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sl_full_ctx);
} sl_full_scratch SEC(".maps");

static __always_inline struct sl_full_ctx *full_scratch(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&sl_full_scratch, &zero);
}

/*
 * Takes over what the fast parser has read.
 * out: full_scratch()->outer
 */
static __always_inline bool full_ctx_init(const struct sl_pkt *p)
{
	struct sl_full_ctx *full = full_scratch();

	if (!full)
		return false;
	__builtin_memset(&full->outer, 0, sizeof(full->outer));
	full->outer.p = *p;
	full->outer.l3_off = ETH_HLEN;
	full->outer.kind = SL_FULL_TUPLE;
	full->outer.from_fast_parser = 1;
	return true;
}

/*
 * Bytes of an ICMP error before the packet inside, and what is left of its L4 header at least (RFC
 * 792, RFC 4443).
 */
#define SL_ICMP_ERROR_HLEN 8
#define SL_ICMP_INNER_L4 8

/*
 * RFC 792: 3 unreachable, 4 source quench, 11 time exceeded, 12 parameter problem. A redirect
 * concerns neighbours only.
 */
static __always_inline bool icmp4_is_error(__u8 type)
{
	return type == 3 || type == 4 || type == 11 || type == 12;
}

/* RFC 4443: 1 unreachable, 2 too big, 3 time exceeded, 4 parameter problem. */
static __always_inline bool icmp6_is_error(__u8 type)
{
	return type >= 1 && type <= 4;
}

static __always_inline __u32 parse_full_icmp(struct sl_pkt *p, const struct sl_icmp_echo *ih, enum sl_dir dir)
{
	bool v4 = p->tuple.proto == IPPROTO_ICMP;

	if (v4 != (p->family == 4))
		return SL_FULL_OPAQUE;
	if (v4 ? icmp4_is_error(ih->type) : icmp6_is_error(ih->type))
		return SL_FULL_ICMP_ERROR;
	if (ih->type != (v4 ? SL_ICMP4_ECHO_REQUEST : SL_ICMP6_ECHO_REQUEST) &&
	    ih->type != (v4 ? SL_ICMP4_ECHO_REPLY : SL_ICMP6_ECHO_REPLY))
		return SL_FULL_OPAQUE;
	pkt_set_echo(p, dir, ih->type == SL_ICMP4_ECHO_REQUEST || ih->type == SL_ICMP6_ECHO_REQUEST, ih->id);
	return SL_FULL_TUPLE;
}

/* inner: the packet is what an ICMP error has kept of it. */
static __always_inline __u32 parse_full_l4(struct __sk_buff *skb, struct sl_ip_pkt *pkt, __u8 *copy, enum sl_dir dir,
					   bool inner)
{
	struct sl_pkt *p = &pkt->p;
	bool whole_tcp = p->tuple.proto == IPPROTO_TCP && !inner;
	__u32 need = p->l4_off - pkt->l3_off + (whole_tcp ? sizeof(struct tcphdr) : SL_ICMP_INNER_L4);
	struct udphdr *ports = (struct udphdr *)copy; /* TCP has them at the same place */

	/* Their checksums cover the addresses, and the programs do not fix them. */
	if (p->tuple.proto == IPPROTO_UDPLITE || p->tuple.proto == IPPROTO_DCCP)
		return SL_FULL_OPAQUE;
	/* Bytes beyond the length in the header are padding. */
	if (!proto_has_free_ports(p->tuple.proto) && p->tuple.proto != IPPROTO_SCTP)
		return SL_FULL_TUPLE; /* identified by the addresses alone, as in netfilter */
	if (p->seg_len < need && !skb->gso_size)
		return SL_FULL_OPAQUE;
	if (whole_tcp ? bpf_skb_load_bytes(skb, p->l4_off, copy, sizeof(struct tcphdr))
		      : bpf_skb_load_bytes(skb, p->l4_off, copy, SL_ICMP_INNER_L4))
		return SL_FULL_OPAQUE;
	switch (p->tuple.proto) {
	case IPPROTO_TCP:
		if (!inner)
			pkt_set_tcp(p, (struct tcphdr *)copy,
				    skb->gso_size ? skb->len - p->l4_off : p->seg_len - (p->l4_off - pkt->l3_off));
		pkt_set_ports(p, dir, ports->source, ports->dest);
		if (!inner && skb->gso_size)
			p->seg_len = p->l4_off - pkt->l3_off + ((struct tcphdr *)copy)->doff * 4 + skb->gso_size;
		return SL_FULL_TUPLE;
	case IPPROTO_UDP:
		if (!inner && skb->gso_size)
			p->seg_len = p->l4_off - pkt->l3_off + sizeof(struct udphdr) + skb->gso_size;
		pkt_set_ports(p, dir, ports->source, ports->dest);
		return SL_FULL_TUPLE;
	case IPPROTO_SCTP:
		pkt_set_ports(p, dir, ports->source, ports->dest);
		return SL_FULL_TUPLE;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		return parse_full_icmp(p, (struct sl_icmp_echo *)copy, dir);
	default:
		return SL_FULL_OPAQUE;
	}
}

static __always_inline __u32 parse_full_ip4(struct __sk_buff *skb, struct sl_ip_pkt *pkt, __u8 *copy, enum sl_dir dir,
					    bool inner)
{
	struct iphdr *ip = (struct iphdr *)copy;
	struct sl_pkt *p = &pkt->p;

	if (bpf_skb_load_bytes(skb, pkt->l3_off, copy, sizeof(*ip)) || ip->ihl < 5)
		return SL_FULL_NONE;
	p->family = 4;
	p->ttl = ip->ttl;
	p->seg_len = bpf_ntohs(ip->tot_len);
	p->l4_off = pkt->l3_off + (__u32)ip->ihl * 4;
	p->tuple.proto = ip->protocol;
	addr_from_v4(p->tuple.local, dir == SL_TX ? ip->saddr : ip->daddr);
	addr_from_v4(p->tuple.remote, dir == SL_TX ? ip->daddr : ip->saddr);
	pkt->frag_id = ip->id;
	pkt->frag_proto = ip->protocol;
	if (ip->frag_off & bpf_htons(0x1fff))
		return SL_FULL_FRAG_NEXT;
	pkt->first_frag = (ip->frag_off & bpf_htons(0x2000)) != 0;
	return parse_full_l4(skb, pkt, copy, dir, inner);
}

/*
 * Extension headers that the parser follows: each one once, and two more (RFC 8200 4.1 has seven in
 * all).
 */
#define SL_MAX_EXT_HEADERS 8

/* A fragment header (RFC 8200 4.5), and the first bytes of the others. */
struct sl_ext_header {
	__u8 next;
	__u8 len;      /* in 8 bytes, without the first 8; AH: in 4 bytes, without the first 8 (RFC 4302 2.2) */
	__be16 detail; /* fragment: offset and M; routing: type, segments left */
	__be32 frag_id;
};

static __always_inline bool is_ext_header(__u8 proto)
{
	return proto == IPPROTO_HOPOPTS || proto == IPPROTO_ROUTING || proto == IPPROTO_DSTOPTS ||
	       proto == IPPROTO_FRAGMENT || proto == IPPROTO_AH;
}

/*
 * Follows the extension headers to the L4 header. Each one has at least 8 bytes, and names the next
 * one. In a routing header with segments left, the destination is not the last one, which the
 * checksum covers.
 */
static __always_inline __u32 parse_full_ext(struct __sk_buff *skb, struct sl_ip_pkt *pkt, __u8 *copy)
{
	struct sl_ext_header *e = (struct sl_ext_header *)copy;
	__u32 off = pkt->p.l4_off, i;
	__u8 proto = pkt->p.tuple.proto;

	/* Kernel 5.10 refuses some shapes of this loop: "back-edge from insn". */
#pragma unroll
	for (i = 0; i < SL_MAX_EXT_HEADERS; i++) {
		if (!is_ext_header(proto)) {
			pkt->p.l4_off = off;
			pkt->p.tuple.proto = proto;
			return SL_FULL_TUPLE;
		}
		if (bpf_skb_load_bytes(skb, off, copy, sizeof(*e)))
			return SL_FULL_OPAQUE;
		if (proto == IPPROTO_ROUTING && (e->detail & bpf_htons(0xff)))
			return SL_FULL_OPAQUE;
		if (proto == IPPROTO_FRAGMENT) {
			pkt->frag_id = e->frag_id;
			pkt->frag_proto = IPPROTO_FRAGMENT;
			if (e->detail & bpf_htons(0xfff8))
				return SL_FULL_FRAG_NEXT;
			pkt->first_frag = (e->detail & bpf_htons(1)) != 0;
		}
		off += proto == IPPROTO_FRAGMENT ? 8 : proto == IPPROTO_AH ? (e->len + 2) * 4 : (e->len + 1) * 8;
		proto = e->next;
	}
	return SL_FULL_OPAQUE;
}

static __always_inline __u32 parse_full_ip6(struct __sk_buff *skb, struct sl_ip_pkt *pkt, __u8 *copy, enum sl_dir dir,
					    bool inner)
{
	struct ipv6hdr *ip = (struct ipv6hdr *)copy;
	struct sl_pkt *p = &pkt->p;
	__u32 kind;

	if (bpf_skb_load_bytes(skb, pkt->l3_off, copy, sizeof(*ip)))
		return SL_FULL_NONE;
	p->family = 6;
	p->ttl = ip->hop_limit;
	p->seg_len = sizeof(*ip) + bpf_ntohs(ip->payload_len);
	p->l4_off = pkt->l3_off + sizeof(*ip);
	p->tuple.proto = ip->nexthdr;
	addr_copy(p->tuple.local, dir == SL_TX ? &ip->saddr : &ip->daddr);
	addr_copy(p->tuple.remote, dir == SL_TX ? &ip->daddr : &ip->saddr);
	if (addr_is_v4(p->tuple.local) || addr_is_v4(p->tuple.remote))
		return SL_FULL_V4MAPPED;
	kind = parse_full_ext(skb, pkt, copy);
	return kind == SL_FULL_TUPLE ? parse_full_l4(skb, pkt, copy, dir, inner) : kind;
}

/*
 * Reads the IP packet at l3_off of the frame. Returns its kind. dir: enum sl_dir. inner: not 0 for
 * the packet inside an ICMP error. Kernels before 5.12 let a global function take the context and
 * scalars only.
 * out: full_scratch()->outer, or ->inner if inner
 */
__noinline int sl_parse_full(struct __sk_buff *skb, __u32 l3_off, __u32 dir, __u32 inner)
{
	struct sl_full_ctx *full = full_scratch();
	struct sl_ip_pkt *pkt;
	__u8 version = 0;

	if (!full)
		return SL_FULL_NONE;
	pkt = inner ? &full->inner : &full->outer;
	__builtin_memset(pkt, 0, sizeof(*pkt));
	pkt->l3_off = l3_off;
	if (bpf_skb_load_bytes(skb, l3_off, &version, sizeof(version)))
		return SL_FULL_NONE;
	switch (version >> 4) {
	case 4:
		pkt->kind = parse_full_ip4(skb, pkt, full->copy, dir, inner);
		break;
	case 6:
		pkt->kind = parse_full_ip6(skb, pkt, full->copy, dir, inner);
		break;
	}
	return (int)pkt->kind;
}

/*
 * Reads the packet inside an ICMP error; that packet went the other way. True if its tuple is
 * known.
 * in: full->outer  out: full->inner
 */
static __always_inline bool parse_full_inner(struct __sk_buff *skb, const struct sl_full_ctx *full, enum sl_dir dir)
{
	__u32 off = full->outer.p.l4_off + SL_ICMP_ERROR_HLEN;

	return sl_parse_full(skb, off, dir == SL_TX ? SL_RX : SL_TX, 1) == SL_FULL_TUPLE &&
	       full->inner.p.family == full->outer.p.family;
}
