/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../conntrack/conntrack.h"

/*
 * With SL_FAST_DIRECT the stack does not see the first packet of a hostPort's connection, and so does
 * not ask whether its source can be true (martians, rp_filter).
 */

/*
 * Do packets of the pod to the source go out by the device that the packet came in by? An address of
 * the node, its gateways or its pods is behind no uplink. ifindex: the device the pod is routed from.
 * Returns 1 or 0. Global, for the stack it takes.
 * in: ct_scratch()->claim, the tuple that the pod sees
 */
__noinline int sl_source_route(struct __sk_buff *skb, __u32 ifindex)
{
	struct bpf_fib_lookup fib = {.ifindex = ifindex};
	struct sl_ct_scratch *s = ct_scratch();
	const struct sl_tuple *t;
	long rc;

	if (!skb || !s)
		return 0;
	t = &s->claim;
	if (addr_is_multicast(t->remote) || addr_is_any(t->remote))
		return 0;
	fib.l4_protocol = t->proto;
	fib.sport = t->local_port;
	fib.dport = t->remote_port;
	if (addr_is_v4(t->local)) {
		fib.family = AF_INET;
		fib.ipv4_src = addr_v4(t->local);
		fib.ipv4_dst = addr_v4(t->remote);
	} else {
		fib.family = AF_INET6;
		addr_copy(fib.ipv6_src, t->local);
		addr_copy(fib.ipv6_dst, t->remote);
	}
	rc = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	return (rc == BPF_FIB_LKUP_RET_SUCCESS || rc == BPF_FIB_LKUP_RET_NO_NEIGH) && fib.ifindex == skb->ifindex;
}

/*
 * With SL_FAST_DIRECT a hostPort's connection counts as confirmed from its first packet on, if its
 * source is where answers go. Any other source is for the stack to judge. Not where each packet needs
 * pod-side SNAT, nor on an L3 uplink. ifindex: as for sl_source_route().
 * in: ct_scratch()->claim
 */
static __always_inline void fast_confirm_now(struct __sk_buff *skb, struct sl_ct_entry *ct, __u32 ifindex)
{
	if (cfg_fast_path != SL_FAST_DIRECT || !cfg_l2_len || (ct->flags & SL_CT_WANTS_POD_SNAT) ||
	    !sl_source_route(skb, ifindex))
		return;
	ct->flags |= SL_CT_SEEN_LAST;
	ct->out_ifindex = skb->ifindex;
}
