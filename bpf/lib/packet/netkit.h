/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include <linux/if_ether.h>
#include <stddef.h>
#include "../base/compiler.h"
#include "../base/config.h"
#include "../base/ctx.h"

/*
 * A netkit pair runs sl_from_pod while the pod transmits: skb->dev is the host end already, but the
 * packet has not been received there. So it has come in by no device, bpf_redirect_peer() drops it,
 * and nothing has compared its header with what the kernel believes of it (drivers/net/netkit.c).
 */
static __always_inline bool from_netkit(const struct __sk_buff *skb)
{
	return cfg_netkit && !skb->ingress_ifindex;
}

/* Does the stack look behind a header of this type? */
static __always_inline bool is_stack_proto(__be16 proto)
{
	return proto == bpf_htons(ETH_P_IP) || proto == bpf_htons(ETH_P_IPV6) || proto == bpf_htons(ETH_P_8021Q) ||
	       proto == bpf_htons(ETH_P_8021AD);
}

/*
 * Would the host take the packet for another one than the header says? A veth derives skb->protocol
 * from the header and takes a VLAN tag out of it before programs run. A netkit device does neither:
 * a socket of AF_PACKET names any protocol (sll_protocol), and a priority tag hides an IP header.
 */
static __always_inline bool netkit_hides_protocol(struct __sk_buff *skb)
{
	struct {
		__be16 proto;
		__be16 tci;
	} h;

	if (bpf_skb_load_bytes(skb, offsetof(struct ethhdr, h_proto), &h, sizeof(h)))
		return true;
	if ((__be16)skb->protocol != h.proto)
		return is_stack_proto((__be16)skb->protocol);
	return (h.proto == bpf_htons(ETH_P_8021Q) || h.proto == bpf_htons(ETH_P_8021AD)) &&
	       !(h.tci & bpf_htons(0x0fff));
}
