/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../conntrack/conntrack.h"

/*
 * Is the destination of a packet still an address of the node? sl_node_addrs is as old as the last
 * ADD or resync, and a hostIP need not be on the node at all (a standby address).
 */

/*
 * Does the stack forward what comes by the device ifindex for the local end of the tuple? Then the
 * address is on another node now. False also where the kernel does not tell: an address without a
 * route, or a device that does not forward. Returns 1 or 0. Global, for the stack it takes.
 * in: ct_scratch()->key
 */
__noinline int sl_fib_forwards(struct __sk_buff *skb, __u32 ifindex)
{
	struct bpf_fib_lookup fib = {.ifindex = ifindex};
	struct sl_ct_scratch *s = ct_scratch();
	const struct sl_tuple *t;
	long rc;

	if (!skb || !s)
		return 0;
	t = &s->key;
	fib.l4_protocol = t->proto;
	fib.sport = t->remote_port;
	fib.dport = t->local_port;
	if (addr_is_v4(t->local)) {
		fib.family = AF_INET;
		fib.ipv4_src = addr_v4(t->remote);
		fib.ipv4_dst = addr_v4(t->local);
	} else {
		fib.family = AF_INET6;
		addr_copy(fib.ipv6_src, t->remote);
		addr_copy(fib.ipv6_dst, t->local);
	}
	rc = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	/* RTN_LOCAL is BPF_FIB_LKUP_RET_NOT_FWDED, as are routes that forward nothing. */
	return rc == BPF_FIB_LKUP_RET_SUCCESS || rc == BPF_FIB_LKUP_RET_NO_NEIGH ||
	       rc == BPF_FIB_LKUP_RET_FRAG_NEEDED || rc == BPF_FIB_LKUP_RET_UNSUPP_LWT;
}

/*
 * sl_fib_forwards() for a packet that opens a connection to t->local.
 * out: ct_scratch()->key
 */
static __always_inline bool addr_forwarded(struct __sk_buff *skb, const struct sl_tuple *t, __u32 ifindex)
{
	struct sl_ct_scratch *s = ct_scratch();

	if (!s)
		return false;
	s->key = *t;
	return sl_fib_forwards(skb, ifindex);
}
