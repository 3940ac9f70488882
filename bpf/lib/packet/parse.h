/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include "../base/addr.h"
#include "../base/tuple.h"
#include "../drop/drop_reasons.h"

/*
 * The fast parser: Ethernet, IPv4 or IPv6 without fragments and extension headers, then TCP, UDP or
 * ICMP echo. It reads the packet in place. What it cannot read is left to parse_full.h.
 */

/*
 * ICMP and ICMPv6 echo messages have one layout (RFC 792, RFC 4443 4.1). The kernel's header for it
 * needs the C library's socket headers.
 */
struct sl_icmp_echo {
	__u8 type;
	__u8 code;
	__sum16 checksum;
	__be16 id;
	__be16 seq;
};

#define SL_ICMP4_ECHO_REPLY 0
#define SL_ICMP4_ECHO_REQUEST 8
#define SL_ICMP6_ECHO_REQUEST 128
#define SL_ICMP6_ECHO_REPLY 129

/* Which end of the packet is "local" in the tuple. */
enum sl_dir {
	SL_TX, /* from the pod: local = source */
	SL_RX, /* toward the pod: local = destination */
};

#define SL_TCP_FIN 0x01
#define SL_TCP_SYN 0x02
#define SL_TCP_RST 0x04
#define SL_TCP_ACK 0x10

/* How far parse_packet() got. */
enum sl_parsed {
	SL_PARSED_NONE,		/* not IP on Ethernet, or malformed: not for Sluice */
	SL_PARSED_PRIO_STACKED, /* one VLAN 0 tag behind another. The stack would remove both; no honest sender does this */
	SL_PARSED_V4MAPPED,	/* IPv6 with a v4-mapped source or destination */
	SL_PARSED_L3,		/* addresses are set; no usable ports (fragment, extension header, other protocol) */
	SL_PARSED_L4,		/* the whole tuple is set */
};

/* What the programs know of a packet. Offsets are from the Ethernet header. */
struct sl_pkt {
	struct sl_tuple tuple;
	__u16 l4_off;
	__u16 seg_len; /* bytes of one IP packet, modulo 65536; for a GSO packet, of one segment */
	__u32 seq;     /* TCP, host byte order, as are the next two */
	__u32 ack;
	__u32 seq_len; /* what the packet takes of the sequence space, with all its segments */
	__u8 family;   /* 4 or 6 */
	__u8 ttl;
	__u8 tcp_flags; /* 0 when not TCP */
	__u8 echo;	/* an ICMP echo: SL_ECHO_ASKS, SL_ECHO_ANSWERS; else 0 */
	__u8 src_mac[ETH_ALEN];
	__u8 dst_mac[ETH_ALEN];
	__u8 zero_window; /* TCP: the receive window is closed */
	__u8 pad[7];
};

#define SL_ECHO_ASKS 1
#define SL_ECHO_ANSWERS 2

/*
 * The packet that a program sees. In a map and not on the stack: the verifier knows nothing of the
 * values in a map, so it follows what comes after the parser once, and not once for each family and
 * protocol. A program never nests in itself on one CPU.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sl_pkt);
} sl_pkt_scratch SEC(".maps");

/* Memory for parse_packet(). NULL for the verifier only. */
static __always_inline struct sl_pkt *pkt_scratch(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&sl_pkt_scratch, &zero);
}

/*
 * Has the protocol ports, or what stands for them, that may change? SCTP's checksum is a CRC over
 * its ports (RFC 9260 6.8).
 */
static __always_inline bool proto_has_free_ports(__u8 proto)
{
	return proto == IPPROTO_TCP || proto == IPPROTO_UDP || proto == IPPROTO_ICMP || proto == IPPROTO_ICMPV6;
}

static __always_inline bool pkt_is_syn(const struct sl_pkt *p)
{
	return (p->tcp_flags & (SL_TCP_SYN | SL_TCP_ACK)) == SL_TCP_SYN;
}

/* May this packet open a connection? Not a TCP packet other than a SYN, nor an echo reply. */
static __always_inline bool pkt_opens(const struct sl_pkt *p)
{
	if (p->tuple.proto == IPPROTO_TCP)
		return pkt_is_syn(p);
	return p->echo != SL_ECHO_ANSWERS;
}

/* Is it the first answer to a connection that the other end opened? */
static __always_inline bool pkt_answers(const struct sl_pkt *p)
{
	return (p->tcp_flags & (SL_TCP_SYN | SL_TCP_ACK)) == (SL_TCP_SYN | SL_TCP_ACK) || p->echo == SL_ECHO_ANSWERS;
}

static __always_inline void pkt_set_ports(struct sl_pkt *p, enum sl_dir dir, __be16 source, __be16 dest)
{
	p->tuple.local_port = dir == SL_TX ? source : dest;
	p->tuple.remote_port = dir == SL_TX ? dest : source;
}

/*
 * The end that asked is part of the tuple, so two pings with one identifier in opposite directions
 * differ.
 */
static __always_inline void pkt_set_echo(struct sl_pkt *p, enum sl_dir dir, bool asks, __be16 id)
{
	bool local_asked = asks == (dir == SL_TX);

	p->echo = asks ? SL_ECHO_ASKS : SL_ECHO_ANSWERS;
	p->tuple.local_port = id;
	p->tuple.remote_port = local_asked ? bpf_htons(SL_ECHO_LOCAL) : bpf_htons(SL_ECHO_REMOTE);
}

/* Sets to to the packet's tuple with its ends swapped: as a peer pod of this node sees it. */
static __always_inline void tuple_reverse(struct sl_tuple *to, const struct sl_pkt *p)
{
	*to = p->tuple;
	addr_copy(to->local, p->tuple.remote);
	addr_copy(to->remote, p->tuple.local);
	if (!p->echo) {
		to->local_port = p->tuple.remote_port;
		to->remote_port = p->tuple.local_port;
		return;
	}
	/* The identifier stays; the end that asked is the other one. */
	to->remote_port =
		p->tuple.remote_port == bpf_htons(SL_ECHO_LOCAL) ? bpf_htons(SL_ECHO_REMOTE) : bpf_htons(SL_ECHO_LOCAL);
}

/* Makes the first len bytes readable at data; false when the packet is shorter. */
static __always_inline bool pull(struct __sk_buff *skb, __u32 len)
{
	if (likely((void *)(long)skb->data + len <= (void *)(long)skb->data_end))
		return true;
	if (skb->len < len)
		return false;
	return bpf_skb_pull_data(skb, len) == 0;
}

/*
 * Takes over the TCP header. bytes: of the header and all that follows, in a GSO packet of all segments. A header that claims
 * to be longer takes a negative length: such a packet advances nothing.
 */
static __always_inline void pkt_set_tcp(struct sl_pkt *p, const struct tcphdr *th, __u32 bytes)
{
	__u8 flags = ((const __u8 *)th)[13];

	p->tcp_flags = flags;
	p->seq = bpf_ntohl(th->seq);
	p->ack = bpf_ntohl(th->ack_seq);
	p->zero_window = !th->window;
	p->seq_len = bytes - (__u32)th->doff * 4 + (flags & SL_TCP_FIN) + ((flags & SL_TCP_SYN) >> 1);
}

static __always_inline enum sl_parsed parse_l4(struct __sk_buff *skb, struct sl_pkt *p, enum sl_dir dir)
{
	/* The mask tells the verifier what the parsers above guarantee: ETH_HLEN + at most 60. */
	__u32 off = p->l4_off & 0x7f;
	__u32 hdr_len = p->tuple.proto == IPPROTO_TCP ? sizeof(struct tcphdr) : sizeof(struct udphdr);
	__u32 l4_len = hdr_len, gso_size = skb->gso_size;
	void *data, *end;

	/*
	 * Bytes beyond the length in the header are padding. A longer GSO packet has 0 there (BIG
	 * TCP).
	 */
	if (unlikely(p->seg_len < off - ETH_HLEN + hdr_len) && !gso_size)
		return SL_PARSED_L3;
	if (unlikely(!pull(skb, off + hdr_len)))
		return SL_PARSED_L3;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;

	switch (p->tuple.proto) {
	case IPPROTO_TCP: {
		struct tcphdr *th = data + off;

		if (unlikely((void *)(th + 1) > end))
			return SL_PARSED_L3;
		pkt_set_ports(p, dir, th->source, th->dest);
		pkt_set_tcp(p, th, gso_size ? skb->len - off : p->seg_len - (off - ETH_HLEN));
		l4_len = (__u32)th->doff * 4;
		break;
	}
	case IPPROTO_UDP: {
		struct udphdr *uh = data + off;

		if (unlikely((void *)(uh + 1) > end))
			return SL_PARSED_L3;
		pkt_set_ports(p, dir, uh->source, uh->dest);
		break;
	}
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6: {
		bool v4 = p->tuple.proto == IPPROTO_ICMP;
		__u8 request = v4 ? SL_ICMP4_ECHO_REQUEST : SL_ICMP6_ECHO_REQUEST;
		__u8 reply = v4 ? SL_ICMP4_ECHO_REPLY : SL_ICMP6_ECHO_REPLY;
		struct sl_icmp_echo *ih = data + off;

		if ((void *)(ih + 1) > end || v4 != (p->family == 4) || (ih->type != request && ih->type != reply))
			return SL_PARSED_L3;
		pkt_set_echo(p, dir, ih->type == request, ih->id);
		break;
	}
	default:
		return SL_PARSED_L3;
	}
	if (gso_size)
		p->seg_len = off - ETH_HLEN + l4_len + gso_size;
	return SL_PARSED_L4;
}

static __always_inline enum sl_parsed parse_ip4(struct __sk_buff *skb, struct sl_pkt *p, enum sl_dir dir)
{
	struct iphdr *ip;

	if (unlikely(!pull(skb, ETH_HLEN + sizeof(*ip))))
		return SL_PARSED_NONE;
	ip = (void *)(long)skb->data + ETH_HLEN;
	if (unlikely((void *)(ip + 1) > (void *)(long)skb->data_end || ip->ihl < 5 || ip->version != 4))
		return SL_PARSED_NONE;
	p->family = 4;
	p->ttl = ip->ttl;
	p->seg_len = bpf_ntohs(ip->tot_len);
	p->l4_off = ETH_HLEN + (__u32)ip->ihl * 4;
	p->tuple.proto = ip->protocol;
	addr_from_v4(p->tuple.local, dir == SL_TX ? ip->saddr : ip->daddr);
	addr_from_v4(p->tuple.remote, dir == SL_TX ? ip->daddr : ip->saddr);
	/* More fragments, or not the first one. */
	if (unlikely(ip->frag_off & bpf_htons(0x3fff)))
		return SL_PARSED_L3;
	return parse_l4(skb, p, dir);
}

static __always_inline enum sl_parsed parse_ip6(struct __sk_buff *skb, struct sl_pkt *p, enum sl_dir dir)
{
	struct ipv6hdr *ip;

	if (unlikely(!pull(skb, ETH_HLEN + sizeof(*ip))))
		return SL_PARSED_NONE;
	ip = (void *)(long)skb->data + ETH_HLEN;
	if (unlikely((void *)(ip + 1) > (void *)(long)skb->data_end || ip->version != 6))
		return SL_PARSED_NONE;
	p->family = 6;
	p->ttl = ip->hop_limit;
	p->seg_len = sizeof(*ip) + bpf_ntohs(ip->payload_len);
	p->l4_off = ETH_HLEN + sizeof(*ip);
	p->tuple.proto = ip->nexthdr;
	addr_copy(p->tuple.local, dir == SL_TX ? &ip->saddr : &ip->daddr);
	addr_copy(p->tuple.remote, dir == SL_TX ? &ip->daddr : &ip->saddr);
	/*
	 * As a key it would look like an IPv4 connection, and Linux gives such a UDP datagram to applications as
	 * IPv4: ip6_rcv_core() passes it, only tcp_v6_conn_request() refuses it (draft-itojun-v6ops-v4mapped-harmful).
	 */
	if (unlikely(addr_is_v4(p->tuple.local) || addr_is_v4(p->tuple.remote)))
		return SL_PARSED_V4MAPPED;
	return parse_l4(skb, p, dir);
}

/*
 * Takes off a tag of VLAN 0, which is only a priority: the stack takes such a frame for an untagged one
 * (__netif_receive_skb_core), and so do the programs. A second one stays, and so does the first if the
 * kernel fails: parse_packet() says SL_PARSED_PRIO_STACKED then.
 */
static __always_inline void strip_priority_tag(struct __sk_buff *skb)
{
	if (unlikely(skb->vlan_present) && !(skb->vlan_tci & 0x0fff))
		bpf_skb_vlan_pop(skb);
}

/*
 * Fills p from an Ethernet frame. A frame with a VLAN tag, in the frame or beside it, is not for Sluice:
 * its addresses belong to another network.
 */
static __always_inline enum sl_parsed parse_packet(struct __sk_buff *skb, struct sl_pkt *p, enum sl_dir dir)
{
	struct ethhdr *eth;

	__builtin_memset(p, 0, sizeof(*p));
	if (unlikely(skb->vlan_present))
		return skb->vlan_tci & 0x0fff ? SL_PARSED_NONE : SL_PARSED_PRIO_STACKED;
	if (unlikely(!pull(skb, ETH_HLEN)))
		return SL_PARSED_NONE;
	eth = (void *)(long)skb->data;
	if (unlikely((void *)(eth + 1) > (void *)(long)skb->data_end))
		return SL_PARSED_NONE;
	__builtin_memcpy(p->src_mac, eth->h_source, ETH_ALEN);
	__builtin_memcpy(p->dst_mac, eth->h_dest, ETH_ALEN);
	if (eth->h_proto == bpf_htons(ETH_P_IP))
		return parse_ip4(skb, p, dir);
	if (eth->h_proto == bpf_htons(ETH_P_IPV6))
		return parse_ip6(skb, p, dir);
	return SL_PARSED_NONE;
}

/*
 * Is there a tag of VLAN 0 inside the frame? At an ingress the kernel has taken it out. What leaves a device has it as the sender wrote
 * it, and every receiver looks for IP behind it, where parse_packet() does not.
 */
static __always_inline bool prio_tag_in_frame(struct __sk_buff *skb)
{
	struct {
		__be16 proto;
		__be16 tci;
	} h;

	if (bpf_skb_load_bytes(skb, offsetof(struct ethhdr, h_proto), &h, sizeof(h)))
		return false;
	return (h.proto == bpf_htons(ETH_P_8021Q) || h.proto == bpf_htons(ETH_P_8021AD)) &&
	       !(h.tci & bpf_htons(0x0fff));
}

/* Why each hook drops a packet that no honest host sends; SL_DROP_NONE for all others. */
static __always_inline enum sl_drop_reason parse_refused(enum sl_parsed parsed)
{
	if (unlikely(parsed == SL_PARSED_V4MAPPED))
		return SL_DROP_V4MAPPED;
	return unlikely(parsed == SL_PARSED_PRIO_STACKED) ? SL_DROP_UNPARSABLE : SL_DROP_NONE;
}
