/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/config.h"

/*
 * Where the kernel will still write into a packet.
 *
 * A sender may leave the checksum to whoever transmits last (CHECKSUM_PARTIAL). It names the place, and two bytes are written there
 * behind every program: by the driver, by the card, or before the packet goes to a process. A pod's stack names the checksum of its
 * L4 header, but a packet socket or a TAP device names any place (PACKET_VNET_HDR), and the sender can choose what will be written by
 * what else is in the packet. So an allowed port would become a denied one, and an address another pod's.
 *
 * __sk_buff does not tell the place. The loader finds it in the kernel's BTF (loader/ebpfload/csum_place.go).
 */

/* Bytes of sk_buff that have it all: from the one with ip_summed to the end of mac_header. */
#define SL_CSUM_PART 64
/* What sl_csum_place() returns of a packet whose checksum is made, and on a kernel that does not tell. */
#define SL_CSUM_MADE (-(1 << 20))

/*
 * Where the kernel will write, from the Ethernet header on. That may be before it, where a header would go that is yet to come.
 * One read for all members: a packet of the pod's own stack has them all set. Kernel 5.5 (bpf_probe_read_kernel).
 */
static __noinline int sl_csum_place(struct __sk_buff *skb)
{
	__u8 part[SL_CSUM_PART] __attribute__((aligned(8)));
	const __u16 *start, *mac;

	/* The context of a tc program is the packet itself (struct sk_buff). */
	if (!cfg_csum_mask || bpf_probe_read_kernel(part, sizeof(part), (void *)skb + cfg_csum_part))
		return SL_CSUM_MADE;
	/* CHECKSUM_PARTIAL is 3: both bits of ip_summed. */
	if ((part[0] & cfg_csum_mask) != cfg_csum_mask)
		return SL_CSUM_MADE;
	start = (__u16 *)(part + cfg_csum_start);
	mac = (__u16 *)(part + cfg_csum_mac);
	return start[0] + start[1] - *mac; /* csum_start, csum_offset */
}
