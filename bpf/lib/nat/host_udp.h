/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include <linux/in.h>
#include "../base/time.h"
#include "../base/tuple.h"
#include "../hostport/hostport.h"

/*
 * Remembers the datagrams that the node's own unconnected sockets send from a published port. An answer
 * to such a datagram belongs to the node, not to the pod behind the port. A connected socket needs no
 * entry: host_socket.h finds it. Netfilter's conntrack does the same for the other backends.
 */

/*
 * What the node's unconnected sockets have sent from published ports. Key: the tuple (local = the
 * node's end). Value: clock_now() of the last datagram of either direction.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct sl_tuple);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_host_udp SEC(".maps");

/*
 * Remembers a datagram of the node to t->remote, if t->local is published. A function of its own,
 * for the stack it takes.
 */
static __noinline __maybe_unused int sl_host_udp_add(const struct sl_tuple *t, __u64 now)
{
	__u64 *last;

	if (!hostport_get(t->local, t->local_port, t->proto) && !hostport_get_any(t->local, t->local_port, t->proto))
		return 0;
	last = bpf_map_lookup_elem(&sl_host_udp, t);
	if (last)
		*last = now;
	else
		bpf_map_update_elem(&sl_host_udp, t, &now, BPF_ANY);
	return 0;
}

/*
 * Is skb, of that protocol, sent by an unconnected socket of this namespace? Forwarded packets have
 * no socket.
 */
static __always_inline bool is_unconnected_udp(const struct __sk_buff *skb, __u8 proto)
{
	struct bpf_sock *sk = skb->sk;

	return proto == IPPROTO_UDP && sk && !sk->dst_port;
}
