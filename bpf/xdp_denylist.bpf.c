//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Uplink, XDP: before anything else sees a packet. Drops what comes from a network of the denylist,
 * and loopback addresses, which must not be on a wire (RFC 1122 3.2.1.3, RFC 4291 2.5.3). Looks
 * behind up to two VLAN tags. Attached only while the denylist is not empty.
 */
#define SL_PROGRAM SL_PROGRAM_XDP_DENYLIST
#include "lib/base/compiler.h"
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include "lib/base/addr.h"
#include "lib/base/config.h"
#include "lib/base/lpm.h"
#include "lib/denylist/denylist.h"
#include "lib/drop/drop_event.h"

struct sl_vlan {
	__be16 tci;
	__be16 proto;
};

/* Copies the first bytes of the packet into e. */
static __always_inline void event_capture_xdp(struct xdp_md *ctx, struct sl_event *e)
{
	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 i;

	e->len = (__u32)(end - data);
	e->l2_len = ETH_HLEN;
	e->captured = 0;
#pragma unroll
	for (i = 0; i < SL_EVENT_BYTES; i++) {
		if (data + i + 1 > end)
			break;
		e->data[i] = data[i];
		e->captured = (__u8)(i + 1);
	}
}

/* As sl_drop(), but inlined: under a flood every call counts, and the stack has room here. */
static __always_inline int drop_xdp(struct xdp_md *ctx, enum sl_drop_reason reason)
{
	struct sl_event_state *cpu = drop_count(ctx->ingress_ifindex, 0, reason);
	struct sl_event *e;

	if (!cpu)
		return XDP_DROP;
	e = event_reserve(cpu);
	if (!e)
		return XDP_DROP;
	event_capture_xdp(ctx, e);
	bpf_ringbuf_submit(e, 0);
	return XDP_DROP;
}

/* SL_DROP_NONE: the packet may come in. */
static __always_inline enum sl_drop_reason judge(struct sl_cidr *from, const __u8 *to)
{
	if (addr_is_loopback(from->ip) || addr_is_loopback(to))
		return SL_DROP_LOOPBACK;
	return denylist_match(from) ? SL_DROP_DENIED : SL_DROP_NONE;
}

SEC("xdp")
int sl_xdp_denylist(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct sl_cidr from = {.prefix_len = 128};
	struct ethhdr *eth = data;
	enum sl_drop_reason reason;
	__be16 proto;
	__u8 to[16] __attribute__((aligned(4)));
	void *l3;
	int i;

	/* 1. parse: link header, VLAN tags, addresses */
	l3 = eth + 1;
	if (l3 > end)
		return XDP_PASS;
	proto = eth->h_proto;
#pragma unroll
	for (i = 0; i < 2; i++) {
		struct sl_vlan *tag = l3;

		if (proto != bpf_htons(ETH_P_8021Q) && proto != bpf_htons(ETH_P_8021AD))
			break;
		if ((void *)(tag + 1) > end)
			return XDP_PASS;
		proto = tag->proto;
		l3 = tag + 1;
	}
	if (proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = l3;

		if ((void *)(ip + 1) > end)
			return XDP_PASS;
		addr_from_v4(from.ip, ip->saddr);
		addr_from_v4(to, ip->daddr);
	} else if (proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = l3;

		if ((void *)(ip + 1) > end)
			return XDP_PASS;
		addr_copy(from.ip, &ip->saddr);
		addr_copy(to, &ip->daddr);
	} else {
		return XDP_PASS;
	}
	/* 2. judge */
	reason = judge(&from, to);
	return reason ? drop_xdp(ctx, reason) : XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
