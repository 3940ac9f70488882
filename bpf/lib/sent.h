/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include <linux/in.h>
#include "clock.h"
#include "hostport.h"
#include "sent_maps.h"

/*
 * Answers to the node's own datagrams. One that comes for a published port is the pod's, unless the node has asked for it: a connected
 * socket says so (sock.h), one that names its peer with each datagram (sendto) does not. What such a socket sends from a
 * published port is noted therefore, as connection tracking has it for the netfilter back ends; sock_awaits() reads it.
 */

/* Notes a datagram of the node's own to t->remote; anything else is let alone. A function of its own, for the stack it takes. */
static __noinline int sl_note_sent(const struct sl_tuple *t, __u64 now)
{
	__u64 *last;

	if (!__hostport_at(t->local, t->local_port, t->proto) && !__hostport_any(t->local, t->local_port, t->proto))
		return 0;
	last = bpf_map_lookup_elem(&sl_sent, t);
	if (last)
		*last = now;
	else
		bpf_map_update_elem(&sl_sent, t, &now, BPF_ANY);
	return 0;
}

/* Is skb, with that protocol, what a socket of this namespace sends without being connected? Forwarded packets have none. */
static __always_inline bool sent_loose(const struct __sk_buff *skb, __u8 proto)
{
	struct bpf_sock *sk = skb->sk;

	return proto == IPPROTO_UDP && sk && !sk->dst_port;
}
