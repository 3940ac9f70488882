/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/time.h"
#include "../packet/parse.h"
#include "host_udp.h"

/*
 * Lookups of the node's own sockets: is a tuple in use by the node itself?
 */

/* What the node itself has on a tuple (local = the node's end). */
enum sl_sock {
	SL_SOCK_NONE,
	SL_SOCK_BOUND,	   /* listens, or is bound without a peer */
	SL_SOCK_CONNECTED, /* with exactly this remote end */
};

/* TCP and UDP sockets of the packet's network namespace; other protocols have none. */
static __always_inline enum sl_sock node_socket_lookup(struct __sk_buff *skb, const struct sl_tuple *t)
{
	struct bpf_sock_tuple st = {};
	struct bpf_sock *sk;
	enum sl_sock found;
	__u32 len;

	if (addr_is_v4(t->local)) {
		st.ipv4.saddr = addr_v4(t->remote);
		st.ipv4.daddr = addr_v4(t->local);
		st.ipv4.sport = t->remote_port;
		st.ipv4.dport = t->local_port;
		len = sizeof(st.ipv4);
	} else {
		addr_copy(st.ipv6.saddr, t->remote);
		addr_copy(st.ipv6.daddr, t->local);
		st.ipv6.sport = t->remote_port;
		st.ipv6.dport = t->local_port;
		len = sizeof(st.ipv6);
	}
	if (t->proto == IPPROTO_TCP)
		sk = bpf_sk_lookup_tcp(skb, &st, len, BPF_F_CURRENT_NETNS, 0);
	else if (t->proto == IPPROTO_UDP)
		sk = bpf_sk_lookup_udp(skb, &st, len, BPF_F_CURRENT_NETNS, 0);
	else
		return SL_SOCK_NONE;
	if (!sk)
		return SL_SOCK_NONE;
	found = sk->dst_port ? SL_SOCK_CONNECTED : SL_SOCK_BOUND;
	bpf_sk_release(sk);
	return found;
}

/* How long an answer may take, after each datagram: the timeout of a connection without answer. */
#define SL_HOST_UDP_TTL (30 * NSEC_PER_SEC)

/* Does the node expect a packet with this tuple (local = the node's end) that opens no connection? */
static __always_inline bool node_socket_expects(struct __sk_buff *skb, const struct sl_tuple *t)
{
	enum sl_sock found = node_socket_lookup(skb, t);
	__u64 *last, now;

	if (found != SL_SOCK_BOUND || t->proto != IPPROTO_UDP)
		return found == SL_SOCK_CONNECTED;
	last = bpf_map_lookup_elem(&sl_host_udp, t);
	now = clock_now();
	if (!last || (now > *last && now - *last >= SL_HOST_UDP_TTL))
		return false;
	*last = now;
	return true;
}
