/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include <linux/if_ether.h>
#include <stddef.h>
#include "addr.h"
#include "edt_maps.h"
#include "net.h"

/* What becomes of a packet. */
struct sl_departure {
	__u64 at;   /* when it may leave */
	__u64 wait; /* from now, 0 = at once */
};

/* Offsets of the addresses in the IP headers. */
#define __SRC4 12
#define __DST4 16
#define __SRC6 8
#define __DST6 24

/* Is the packet one of those that are limited? By the address of the other end; what is not IP has none. */
static __always_inline bool edt_applies(struct __sk_buff *skb, const struct sl_edt *e, __u32 number)
{
	struct sl_edt_net key = {.prefix_len = 160, .number = number};
	bool out = e->flags & SL_EDT_EGRESS, listed = false;

	if (!(e->flags & (SL_EDT_LISTED | SL_EDT_UNLISTED)))
		return true;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		key.ip[10] = key.ip[11] = 0xff;
		listed = !bpf_skb_load_bytes_relative(skb, out ? __DST4 : __SRC4, &key.ip[12], 4, BPF_HDR_START_NET);
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		listed = !bpf_skb_load_bytes_relative(skb, out ? __DST6 : __SRC6, key.ip, 16, BPF_HDR_START_NET);
	}
	listed = listed && net_find(&sl_edt_nets, &key, &key.prefix_len, key.ip);
	return listed == !!(e->flags & SL_EDT_LISTED);
}

/* Shares of the rate: of one flow that counts as sparse, and of all such flows together. */
#define __FLOW_SHARE 8
#define __SPARSE_SHARE 4
/* Packets that a sparse flow may send in one go. */
#define __SPARSE_BURST 4
/* Longest packet of a sparse flow, in bytes: two frames. A longer one would hold up the others. */
#define __SPARSE_LEN 3028
/* How long a flow is remembered as a busy one. */
#define __BUSY_FOR (100 * 1000000ULL)

static __always_inline __u64 __later(__u64 a, __u64 b)
{
	return a > b ? a : b;
}

/* When a packet may leave at the latest, if its flow is sparse; tail otherwise. Pays from the sparse flows' share. */
static __always_inline __u64 __sparse(struct sl_edt *e, const struct sl_edt_flow *f, __u64 now, __u64 cost, __u64 tail)
{
	__u64 turn = __later(e->sparse, now), at = __later(turn, f->last);

	if (f->paid > now + cost * __FLOW_SHARE * __SPARSE_BURST || at >= tail)
		return tail;
	e->sparse = turn + cost * __SPARSE_SHARE;
	return at;
}

/*
 * The moment at which a packet may leave. clock is a token bucket turned into time: it is when everything sent so far
 * would be through at the rate, never further back than the burst.
 *
 * One clock is one queue, and a queue keeps an echo or a handshake waiting behind a download. A flow that uses less than
 * an eighth of the rate is let past it: it pays like all others, but leaves before its turn, though never before its own
 * last packet. All such flows together get a quarter of the rate, so that a flood of small flows waits like any other
 * traffic.
 *
 * wanted: a later time that the sender asked for (pacing, SO_TXTIME), else 0. False: it would wait too long.
 */
static __always_inline bool edt_depart(struct sl_edt *e, __u32 len, __u32 hash, __u64 now, __u64 wanted,
				       struct sl_departure *d)
{
	struct sl_edt_flow *f = &e->flow[hash % SL_EDT_FLOWS];
	__u64 cost = (__u64)len * 1000000000ULL / e->rate, earliest = now > e->burst ? now - e->burst : 0;
	__u64 start, busy;
	bool late = false;

	bpf_spin_lock(&e->lock);
	start = __later(e->clock, earliest);
	d->at = __later(start, now);
	if (d->at > now && len <= __SPARSE_LEN)
		d->at = __sparse(e, f, now, cost, d->at);
	d->wait = d->at - now;
	if (d->wait > e->horizon) {
		late = true;
		e->drops++;
	} else {
		d->at = __later(d->at, wanted);
		busy = __later(f->paid, now) + cost * __FLOW_SHARE;
		f->paid = busy < now + __BUSY_FOR ? busy : now + __BUSY_FOR;
		f->last = d->at;
		e->clock = start + cost;
		e->bytes += len;
		e->packets++;
		e->waited += d->wait;
		e->marks += d->wait > e->mark;
	}
	bpf_spin_unlock(&e->lock);
	return !late;
}
