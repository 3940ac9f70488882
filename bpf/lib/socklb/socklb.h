/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include <linux/in.h>
#include "../endpoint/endpoint.h"
#include "../endpoint/endpoint_device.h"
#include "../hostport/hostport.h"
#include "socklb_types.h"

/*
 * Socket load balancing: processes of the node that connect or send to a published port. Their
 * packets never meet an uplink. So the address is rewritten where the socket asks for it: the socket
 * talks to the pod from the start, with the source address the kernel chooses toward it. No packet is
 * translated, and no loopback address is on any wire (route_localnet stays off).
 */

/*
 * Connected sockets of the node that use a hostPort, by socket cookie. Written by sl_connect4/6 in
 * the connecting task, deleted by sl_sock_release: one task at a time connects a socket. The loader
 * reads it, and destroys sockets whose port has gone. LRU only so that it cannot fill up.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct sl_socklb_entry);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_socklb_conn SEC(".maps");

/*
 * Pods that unconnected datagram sockets have sent to. Apart from the others, so that a resolver
 * with a socket for each query evicts only its own. Written by sl_sendmsg4/6: two tasks on one
 * socket write the same value, or the last one wins.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct sl_socklb_key);
	__type(value, struct sl_socklb_entry);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_socklb_udp SEC(".maps");

/* Address and port of a socket call. */
struct sl_sock_dst {
	__u8 ip[16];
	__be16 port;
};

/*
 * Is this a socket of the datapath's network namespace? Pods have loopback addresses of their own.
 * Kernel 5.7.
 */
static __always_inline bool socklb_in_our_netns(void *ctx)
{
	__u64 ours = cfg_netns_cookie ? cfg_netns_cookie : bpf_get_netns_cookie(NULL);

	return bpf_get_netns_cookie(ctx) == ours;
}

static __always_inline __u8 socklb_proto(const struct bpf_sock_addr *ctx)
{
	__u32 proto = ctx->protocol;

	return proto == IPPROTO_TCP || proto == IPPROTO_UDP ? (__u8)proto : 0;
}

static __always_inline void socklb_dst4(struct sl_sock_dst *dst, const struct bpf_sock_addr *ctx)
{
	addr_from_v4(dst->ip, ctx->user_ip4);
	dst->port = (__be16)ctx->user_port;
}

static __always_inline void socklb_dst6(struct sl_sock_dst *dst, const struct bpf_sock_addr *ctx)
{
	__u32 *w = (__u32 *)dst->ip;

	w[0] = ctx->user_ip6[0];
	w[1] = ctx->user_ip6[1];
	w[2] = ctx->user_ip6[2];
	w[3] = ctx->user_ip6[3];
	dst->port = (__be16)ctx->user_port;
}

static __always_inline void socklb_set4(struct bpf_sock_addr *ctx, const __u8 *ip, __be16 port)
{
	ctx->user_ip4 = addr_v4(ip);
	ctx->user_port = port;
}

static __always_inline void socklb_set6(struct bpf_sock_addr *ctx, const __u8 *ip, __be16 port)
{
	const __u32 *w = (const __u32 *)ip;

	ctx->user_ip6[0] = w[0];
	ctx->user_ip6[1] = w[1];
	ctx->user_ip6[2] = w[2];
	ctx->user_ip6[3] = w[3];
	ctx->user_port = port;
}

/* The unspecified address means the node itself (tcp_v4_connect, tcp_v6_connect). */
static __always_inline void unspecified_to_loopback(struct sl_sock_dst *dst)
{
	__u32 *w = (__u32 *)dst->ip;

	if (addr_is_any(dst->ip))
		w[3] = addr_is_v4(dst->ip) ? bpf_htonl(0x7f000001) : bpf_htonl(1);
}

/*
 * The mapping for a socket call, of an address of the node. A hostIP may be the address of another
 * host, such as the API server's, which is not the pod's to take. Conditions are checked for a packet
 * from and to that address: the node sends such a packet to itself.
 */
static __always_inline struct sl_hostport *socklb_mapping(const struct sl_sock_dst *dst, __u8 proto)
{
	struct sl_hostport *hp;
	struct sl_tuple t = {};

	if (!addr_is_loopback(dst->ip) && !is_node_addr(dst->ip))
		return NULL;
	addr_copy(t.local, dst->ip);
	addr_copy(t.remote, dst->ip);
	hp = hostport_get(dst->ip, dst->port, proto);
	if (hp && hostport_applies(hp, &t, 0))
		return hp;
	hp = hostport_get_any(dst->ip, dst->port, proto);
	return hp && hostport_applies(hp, &t, 0) ? hp : NULL;
}

/*
 * Finds the published port that a local process asks for: as from outside, and on the loopback
 * addresses too. dst: the address it asked for. True: entry names the pod.
 */
static __always_inline bool socklb_lookup(struct sl_sock_dst *dst, __u8 proto, struct sl_socklb_entry *entry)
{
	struct sl_endpoint *ep;
	struct sl_hostport *hp;

	if (!proto)
		return false;
	unspecified_to_loopback(dst);
	hp = socklb_mapping(dst, proto);
	if (!hp)
		return false;
	ep = endpoint_lookup(hp->ip);
	if (!ep || ep->owner != hp->owner || endpoint_device_gone(ep))
		return false;
	addr_copy(entry->frontend, dst->ip);
	addr_copy(entry->pod, hp->ip);
	entry->generation = hp->generation;
	entry->frontend_port = dst->port;
	entry->pod_port = hp->port;
	entry->proto = proto;
	return true;
}

/*
 * Remembers the pod of a connected socket. If the map is full or the entry lost, only the peer's
 * name is wrong.
 */
static __always_inline void socklb_remember(struct bpf_sock_addr *ctx, const struct sl_socklb_entry *entry)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);

	bpf_map_update_elem(&sl_socklb_conn, &cookie, entry, BPF_ANY);
}

static __always_inline void socklb_remember_udp(struct bpf_sock_addr *ctx, const struct sl_socklb_entry *entry)
{
	struct sl_socklb_key key = {.cookie = bpf_get_socket_cookie(ctx), .port = entry->pod_port};
	struct sl_socklb_entry *old;

	addr_copy(key.ip, entry->pod);
	old = bpf_map_lookup_elem(&sl_socklb_udp, &key);
	if (old && addr_equal(old->frontend, entry->frontend) && old->frontend_port == entry->frontend_port)
		return;
	bpf_map_update_elem(&sl_socklb_udp, &key, entry, BPF_ANY);
}

/*
 * The socket sends to dst, which is not published. If dst is a pod, forget what the socket asked
 * for before.
 */
static __always_inline void socklb_forget_udp(struct bpf_sock_addr *ctx, const struct sl_sock_dst *dst)
{
	struct sl_socklb_key key = {.port = dst->port};

	if (!endpoint_lookup(dst->ip))
		return;
	key.cookie = bpf_get_socket_cookie(ctx);
	addr_copy(key.ip, dst->ip);
	if (bpf_map_lookup_elem(&sl_socklb_udp, &key))
		bpf_map_delete_elem(&sl_socklb_udp, &key);
}

/*
 * socklb_forget_udp() for a socket that connects. With an old entry the loader would destroy the
 * socket together with the port.
 */
static __always_inline void socklb_forget(struct bpf_sock_addr *ctx, const struct sl_sock_dst *dst)
{
	__u64 cookie;

	if (!endpoint_lookup(dst->ip))
		return;
	cookie = bpf_get_socket_cookie(ctx);
	if (bpf_map_lookup_elem(&sl_socklb_conn, &cookie))
		bpf_map_delete_elem(&sl_socklb_conn, &cookie);
	if (socklb_proto(ctx) == IPPROTO_UDP)
		socklb_forget_udp(ctx, dst);
}

/* The entry of a connected socket whose peer is from. NULL if the socket did not use a hostPort. */
static __always_inline struct sl_socklb_entry *socklb_connected(struct bpf_sock_addr *ctx,
								const struct sl_sock_dst *from)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);
	struct sl_socklb_entry *entry = bpf_map_lookup_elem(&sl_socklb_conn, &cookie);

	return entry && entry->pod_port == from->port && addr_equal(entry->pod, from->ip) ? entry : NULL;
}

/* What the socket had asked for when it got an answer from this pod. */
static __always_inline struct sl_socklb_entry *socklb_sender(struct bpf_sock_addr *ctx, const struct sl_sock_dst *from)
{
	struct sl_socklb_key key = {.cookie = bpf_get_socket_cookie(ctx), .port = from->port};
	struct sl_socklb_entry *entry;

	addr_copy(key.ip, from->ip);
	entry = bpf_map_lookup_elem(&sl_socklb_udp, &key);
	return entry ? entry : socklb_connected(ctx, from);
}
