/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include <linux/if_ether.h>
#include <linux/in.h>
#include <stddef.h>
#include "../base/addr.h"
#include "../base/lpm.h"
#include "../base/time.h"
#include "edt_types.h"

/*
 * Rate limits by earliest departure time (EDT): when may a packet leave? The fq qdisc waits until then.
 */

/*
 * Limits by number. The filter carries the number as its class. The loader makes and removes
 * entries; the program changes clocks and counters from all CPUs, under the entry's lock.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct sl_edt_limit);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_edt_limits SEC(".maps");

/* Networks that a limit includes or excludes. Written by the loader only. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct sl_edt_cidr);
	__type(value, __u32);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_edt_cidrs SEC(".maps");

/* When a packet may leave. */
struct sl_departure {
	__u64 at;   /* when it may leave */
	__u64 wait; /* from now, 0 = at once */
};

/* Offsets of the addresses in the IP headers. */
#define IP4_PROTO_OFF 9
#define IP4_SRC_OFF 12
#define IP4_DST_OFF 16
#define IP6_PROTO_OFF 6
#define IP6_SRC_OFF 8
#define IP6_DST_OFF 24

/*
 * Does the limit apply to the packet? The address of the other end decides; a packet that is not IP
 * has none.
 */
static __always_inline bool edt_applies(struct __sk_buff *skb, const struct sl_edt_limit *e, __u32 number)
{
	struct sl_edt_cidr key = {.prefix_len = 160, .number = number};
	bool out = e->flags & SL_EDT_EGRESS, listed = false;

	if (!(e->flags & (SL_EDT_ONLY | SL_EDT_EXCEPT)))
		return true;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		key.ip[10] = key.ip[11] = 0xff;
		listed = !bpf_skb_load_bytes_relative(skb, out ? IP4_DST_OFF : IP4_SRC_OFF, &key.ip[12], 4,
						      BPF_HDR_START_NET);
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		listed = !bpf_skb_load_bytes_relative(skb, out ? IP6_DST_OFF : IP6_SRC_OFF, key.ip, 16,
						      BPF_HDR_START_NET);
	}
	listed = listed && lpm_lookup_in_family(&sl_edt_cidrs, &key, &key.prefix_len, key.ip);
	return listed == !!(e->flags & SL_EDT_ONLY);
}

/* Shares of the rate: 1/8 for a flow that counts as sparse, 1/4 for all such flows together. */
#define SL_EDT_SPARSE_SHARE 8
#define SL_EDT_ALL_SPARSE_SHARE 4
/* Packets that a sparse flow may send at once. */
#define SL_EDT_SPARSE_BURST 4
/* Longest packet of a sparse flow, in bytes: two frames. A longer one would hold up the others. */
#define SL_EDT_SPARSE_MAX_LEN 3028
/* How long a flow counts as busy. */
#define SL_EDT_BUSY_TTL (100 * NSEC_PER_MSEC)

static __always_inline __u64 later_of(__u64 a, __u64 b)
{
	return a > b ? a : b;
}

/*
 * When a packet of a sparse flow may leave at the latest; tail if the flow is not sparse. Takes
 * from the sparse flows' share.
 */
static __always_inline __u64 edt_sparse_departure(struct sl_edt_limit *e, const struct sl_edt_flow *f, __u64 now,
						  __u64 cost, __u64 tail)
{
	__u64 due = later_of(e->sparse, now), at = later_of(due, f->last);

	if (f->busy_until > now + cost * SL_EDT_SPARSE_SHARE * SL_EDT_SPARSE_BURST || at >= tail)
		return tail;
	e->sparse = due + cost * SL_EDT_ALL_SPARSE_SHARE;
	return at;
}

/*
 * When a packet may leave. False: it would wait too long. clock is a token bucket turned into time:
 * everything sent so far is through at that time, at the rate. It is never further back than the
 * burst.
 *
 * One clock is one queue, and a queue makes an echo or a handshake wait behind a download. So a
 * flow that uses less than an eighth of the rate overtakes it. It pays like all others, but leaves
 * before its turn, never before its own last packet. All such flows together get a quarter of the
 * rate: a flood of small flows waits like any other traffic.
 *
 * wanted: a later time that the sender asked for (pacing, SO_TXTIME), else 0.
 */
static __always_inline bool edt_depart(struct sl_edt_limit *e, __u32 len, __u32 hash, __u64 now, __u64 wanted,
				       struct sl_departure *d)
{
	struct sl_edt_flow *f = &e->flow[hash % SL_EDT_FLOWS];
	__u64 cost = (__u64)len * NSEC_PER_SEC / e->rate, earliest = now > e->burst ? now - e->burst : 0;
	__u64 start, busy;
	bool late = false;

	bpf_spin_lock(&e->lock);
	start = later_of(e->clock, earliest);
	d->at = later_of(start, now);
	if (d->at > now && len <= SL_EDT_SPARSE_MAX_LEN)
		d->at = edt_sparse_departure(e, f, now, cost, d->at);
	d->wait = d->at - now;
	if (d->wait > e->horizon) {
		late = true;
		e->drops++;
	} else {
		d->at = later_of(d->at, wanted);
		busy = later_of(f->busy_until, now) + cost * SL_EDT_SPARSE_SHARE;
		f->busy_until = busy < now + SL_EDT_BUSY_TTL ? busy : now + SL_EDT_BUSY_TTL;
		f->last = d->at;
		e->clock = start + cost;
		e->bytes += len;
		e->packets++;
		e->queued_ns += d->wait;
		e->marks += d->wait > e->mark;
	}
	bpf_spin_unlock(&e->lock);
	return !late;
}

/* Offset of the data offset in the TCP header. */
#define TCP_DOFF_OFF 12

/*
 * Length of the headers that each segment of a GSO packet repeats: those that the stack counts on
 * egress (qdisc_pkt_len_init). Of a tunnel only the outer ones, and no extension headers.
 */
static __always_inline __u32 edt_segment_header_len(struct __sk_buff *skb)
{
	__u32 l3_len = 40, proto_off = IP6_PROTO_OFF;
	__u8 b = 0;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		bpf_skb_load_bytes_relative(skb, 0, &b, 1, BPF_HDR_START_NET);
		l3_len = (b & 15) * 4;
		proto_off = IP4_PROTO_OFF;
	} else if (skb->protocol != bpf_htons(ETH_P_IPV6)) {
		return ETH_HLEN;
	}
	bpf_skb_load_bytes_relative(skb, proto_off, &b, 1, BPF_HDR_START_NET);
	if (b == IPPROTO_UDP)
		return ETH_HLEN + l3_len + 8;
	if (b != IPPROTO_TCP)
		return ETH_HLEN + l3_len;
	bpf_skb_load_bytes_relative(skb, l3_len + TCP_DOFF_OFF, &b, 1, BPF_HDR_START_NET);
	return ETH_HLEN + l3_len + (b >> 4) * 4;
}

/*
 * Does a packet of the pod come within rate and burst? The burst has room for all that departure
 * times may let through (loader: RateLimit.slack), so traffic that has them always passes.
 *
 * wire_len is not set on ingress. The cost is at most the sum of what sl_edt has charged for the
 * same frames, which loses less than 1 ns for each.
 */
static __always_inline bool edt_police(struct __sk_buff *skb, struct sl_edt_limit *e)
{
	__u32 len = skb->len, segs = skb->gso_segs, gso_size = skb->gso_size;
	__u64 now = bpf_ktime_get_ns(), earliest = now > e->burst ? now - e->burst : 0;
	__u64 cost, start;
	bool pass;

	if (gso_size && !segs)
		segs = len / gso_size;
	if (segs < 2)
		segs = 1;
	else
		len += (segs - 1) * edt_segment_header_len(skb);
	cost = (__u64)len * NSEC_PER_SEC / e->rate;
	cost -= cost < segs ? cost : segs - 1;

	bpf_spin_lock(&e->lock);
	start = later_of(e->clock, earliest);
	pass = start <= now;
	if (pass) {
		e->clock = start + cost;
		e->bytes += len;
		e->packets++;
	} else {
		e->drops++;
	}
	bpf_spin_unlock(&e->lock);
	return pass;
}
