/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "parse.h"

/* What the node itself has on a tuple (local = the node's end). */
enum sl_sock {
	SL_SOCK_NONE,
	SL_SOCK_BOUND,	   /* listens, or is bound without a peer */
	SL_SOCK_CONNECTED, /* with exactly this remote end */
};

/* TCP and UDP sockets of the namespace the packet is in; other protocols have none. */
static __always_inline enum sl_sock sock_lookup(struct __sk_buff *skb, const struct sl_tuple *t)
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
