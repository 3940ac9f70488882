/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include <linux/in.h>
#include "endpoint.h"
#include "hostport.h"
#include "local_maps.h"

/*
 * The node's own processes and hostPorts. Their packets never meet an uplink,
 * so the address is exchanged where the socket asks for it: a socket that connects or
 * sends to a published port of the node talks to the pod from the start, with the source
 * address the kernel chooses toward it. No packet is translated, and no
 * loopback address is on any wire (route_localnet stays off).
 */

/* An address and port of a socket call. */
struct sl_ask {
	__u8 ip[16];
	__be16 port;
};

/* Is this a socket of the network namespace the datapath belongs to? Pods have loopback addresses of their own. Kernel 5.7. */
static __always_inline bool local_sock(void *ctx)
{
	__u64 own = cfg_netns_cookie ? cfg_netns_cookie : bpf_get_netns_cookie(NULL);

	return bpf_get_netns_cookie(ctx) == own;
}

static __always_inline __u8 local_proto(const struct bpf_sock_addr *ctx)
{
	__u32 proto = ctx->protocol;

	return proto == IPPROTO_TCP || proto == IPPROTO_UDP ? (__u8)proto : 0;
}

static __always_inline void local_ask4(struct sl_ask *a, const struct bpf_sock_addr *ctx)
{
	addr_from_v4(a->ip, ctx->user_ip4);
	a->port = (__be16)ctx->user_port;
}

static __always_inline void local_ask6(struct sl_ask *a, const struct bpf_sock_addr *ctx)
{
	__u32 *w = (__u32 *)a->ip;

	w[0] = ctx->user_ip6[0];
	w[1] = ctx->user_ip6[1];
	w[2] = ctx->user_ip6[2];
	w[3] = ctx->user_ip6[3];
	a->port = (__be16)ctx->user_port;
}

static __always_inline void local_set4(struct bpf_sock_addr *ctx, const __u8 *ip, __be16 port)
{
	ctx->user_ip4 = addr_v4(ip);
	ctx->user_port = port;
}

static __always_inline void local_set6(struct bpf_sock_addr *ctx, const __u8 *ip, __be16 port)
{
	const __u32 *w = (const __u32 *)ip;

	ctx->user_ip6[0] = w[0];
	ctx->user_ip6[1] = w[1];
	ctx->user_ip6[2] = w[2];
	ctx->user_ip6[3] = w[3];
	ctx->user_port = port;
}

/* To the unspecified address means to the node itself (tcp_v4_connect, tcp_v6_connect). */
static __always_inline void __ask_loopback(struct sl_ask *a)
{
	__u32 *w = (__u32 *)a->ip;

	if (addr_is_any(a->ip))
		w[3] = addr_is_v4(a->ip) ? bpf_htonl(0x7f000001) : bpf_htonl(1);
}

/* Conditions are asked as of a packet from and to that address, which is what a packet of the node to itself has. */
static __always_inline struct sl_hostport *__local_mapping(const struct sl_ask *a, __u8 proto)
{
	struct sl_hostport *hp = __hostport_at(a->ip, a->port, proto);
	struct sl_tuple t = {};

	addr_copy(t.local, a->ip);
	addr_copy(t.remote, a->ip);
	if (hp && hostport_applies(hp, &t, 0))
		return hp;
	if (!addr_is_loopback(a->ip) && !is_host_addr(a->ip))
		return NULL;
	hp = __hostport_any(a->ip, a->port, proto);
	return hp && hostport_applies(hp, &t, 0) ? hp : NULL;
}

/*
 * The published port that a local process asks for: as from outside, and on the
 * loopback addresses too. a: in whom it asked for. True: p says whom it gets.
 */
static __always_inline bool local_lookup(struct sl_ask *a, __u8 proto, struct sl_peer *p)
{
	struct sl_endpoint *ep;
	struct sl_hostport *hp;

	if (!proto)
		return false;
	__ask_loopback(a);
	hp = __local_mapping(a, proto);
	if (!hp)
		return false;
	ep = endpoint_lookup(hp->ip);
	if (!ep || ep->owner != hp->owner)
		return false;
	addr_copy(p->asked, a->ip);
	addr_copy(p->pod, hp->ip);
	p->gen = hp->gen;
	p->asked_port = a->port;
	p->pod_port = hp->port;
	p->proto = proto;
	return true;
}

/* Remembers the pod of a connected socket. Full or lost: only the peer's name is wrong then. */
static __always_inline void local_connected(struct bpf_sock_addr *ctx, const struct sl_peer *p)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);

	bpf_map_update_elem(&sl_peers, &cookie, p, BPF_ANY);
}

static __always_inline void local_sent(struct bpf_sock_addr *ctx, const struct sl_peer *p)
{
	struct sl_peer_key key = {.cookie = bpf_get_socket_cookie(ctx), .port = p->pod_port};
	struct sl_peer *old;

	addr_copy(key.ip, p->pod);
	old = bpf_map_lookup_elem(&sl_peers_udp, &key);
	if (old && addr_equal(old->asked, p->asked) && old->asked_port == p->asked_port)
		return;
	bpf_map_update_elem(&sl_peers_udp, &key, p, BPF_ANY);
}

/* The socket sends to a, which is no published port. If that is a pod, what it asked before for the same pod counts no more. */
static __always_inline void local_sent_direct(struct bpf_sock_addr *ctx, const struct sl_ask *a)
{
	struct sl_peer_key key = {.port = a->port};

	if (!endpoint_lookup(a->ip))
		return;
	key.cookie = bpf_get_socket_cookie(ctx);
	addr_copy(key.ip, a->ip);
	if (bpf_map_lookup_elem(&sl_peers_udp, &key))
		bpf_map_delete_elem(&sl_peers_udp, &key);
}

/* local_sent_direct() for a socket that connects. Left as it was, the loader would destroy it together with the port. */
static __always_inline void local_direct(struct bpf_sock_addr *ctx, const struct sl_ask *a)
{
	__u64 cookie;

	if (!endpoint_lookup(a->ip))
		return;
	cookie = bpf_get_socket_cookie(ctx);
	if (bpf_map_lookup_elem(&sl_peers, &cookie))
		bpf_map_delete_elem(&sl_peers, &cookie);
	if (local_proto(ctx) == IPPROTO_UDP)
		local_sent_direct(ctx, a);
}

/* The entry of a connected socket whose peer is from, NULL when that is not a pod it got through a hostPort. */
static __always_inline struct sl_peer *local_peer(struct bpf_sock_addr *ctx, const struct sl_ask *from)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);
	struct sl_peer *p = bpf_map_lookup_elem(&sl_peers, &cookie);

	return p && p->pod_port == from->port && addr_equal(p->pod, from->ip) ? p : NULL;
}

/* Whom the socket had asked for when it got an answer from this pod. */
static __always_inline struct sl_peer *local_sender(struct bpf_sock_addr *ctx, const struct sl_ask *from)
{
	struct sl_peer_key key = {.cookie = bpf_get_socket_cookie(ctx), .port = from->port};
	struct sl_peer *p;

	addr_copy(key.ip, from->ip);
	p = bpf_map_lookup_elem(&sl_peers_udp, &key);
	return p ? p : local_peer(ctx, from);
}
