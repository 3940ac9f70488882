//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Host veth of a pod with macspoofchk, tc ingress, before sl_from_pod: drops each frame whose source
 * MAC is not the pod's, whatever it carries. It needs no address of the pod. Other pods do not have it.
 */
#define SL_PROGRAM SL_PROGRAM_MAC_CHECK
#include <linux/if_ether.h>
#include <stddef.h>
#include "lib/base/addr.h"
#include "lib/base/compiler.h"
#include "lib/base/config.h"
#include "lib/base/ctx.h"
#include "lib/drop/drop.h"
#include "lib/endpoint/mac_check.h"
#include "lib/packet/csum_place.h"

SEC("tc")
int sl_mac_check(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	struct sl_pod_mac *own = bpf_map_lookup_elem(&sl_pod_macs, &ifindex);
	__u8 src[ETH_ALEN] __attribute__((aligned(2)));
	__s32 csum = sl_csum_place(skb);

	if (unlikely(csum != SL_CSUM_MADE && csum < ETH_HLEN))
		return drop(skb, SL_DROP_CSUM_PLACE, ifindex);
	if (likely(own && !bpf_skb_load_bytes(skb, offsetof(struct ethhdr, h_source), src, sizeof(src)) &&
		   mac_equal(src, own->mac)))
		return SL_NEXT;
	return drop(skb, SL_DROP_SPOOFED_MAC, ifindex);
}

char _license[] SEC("license") = "Dual BSD/GPL";
