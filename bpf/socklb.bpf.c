//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Socket calls of the node's own processes, at the root of cgroup v2 (kernel 5.9). connect and
 * sendmsg get the pod behind a published port. recvmsg and getpeername show the address that the
 * process asked for. Every program returns 1: none refuses a call. One object, since the nine
 * programs share all they do.
 */
#include "lib/base/compiler.h"
#include "lib/base/config.h"
#include "lib/socklb/socklb.h"

#define SL_ALLOW 1

/*
 * A socket bound to a loopback address cannot reach a pod: the kernel has no route for it
 * (__mkroute_output).
 */
static __always_inline bool bound_to_loopback4(const struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	return sk && (sk->src_ip4 & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000);
}

static __always_inline bool bound_to_loopback6(const struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	__u8 ip[16];
	__u32 *w = (__u32 *)ip;

	if (!sk)
		return false;
	w[0] = sk->src_ip6[0];
	w[1] = sk->src_ip6[1];
	w[2] = sk->src_ip6[2];
	w[3] = sk->src_ip6[3];
	return addr_is_loopback(ip);
}

SEC("cgroup/connect4")
int sl_connect4(struct bpf_sock_addr *ctx)
{
	struct sl_socklb_entry entry = {};
	struct sl_sock_dst dst = {};

	if (!socklb_in_our_netns(ctx))
		return SL_ALLOW;
	/* 1. is it a published port? */
	socklb_dst4(&dst, ctx);
	if (!socklb_lookup(&dst, socklb_proto(ctx), &entry)) {
		socklb_forget(ctx, &dst);
		return SL_ALLOW;
	}
	if (bound_to_loopback4(ctx))
		return SL_ALLOW;
	/* 2. remember and rewrite */
	socklb_remember(ctx, &entry);
	socklb_set4(ctx, entry.pod, entry.pod_port);
	return SL_ALLOW;
}

SEC("cgroup/connect6")
int sl_connect6(struct bpf_sock_addr *ctx)
{
	struct sl_socklb_entry entry = {};
	struct sl_sock_dst dst = {};

	if (!socklb_in_our_netns(ctx))
		return SL_ALLOW;
	/* 1. is it a published port? */
	socklb_dst6(&dst, ctx);
	if (!socklb_lookup(&dst, socklb_proto(ctx), &entry)) {
		socklb_forget(ctx, &dst);
		return SL_ALLOW;
	}
	if (bound_to_loopback6(ctx))
		return SL_ALLOW;
	/* 2. remember and rewrite */
	socklb_remember(ctx, &entry);
	socklb_set6(ctx, entry.pod, entry.pod_port);
	return SL_ALLOW;
}

SEC("cgroup/sendmsg4")
int sl_sendmsg4(struct bpf_sock_addr *ctx)
{
	struct sl_socklb_entry entry = {};
	struct sl_sock_dst dst = {};

	if (!socklb_in_our_netns(ctx))
		return SL_ALLOW;
	/* 1. is it a published port? */
	socklb_dst4(&dst, ctx);
	if (!socklb_lookup(&dst, IPPROTO_UDP, &entry)) {
		socklb_forget_udp(ctx, &dst);
		return SL_ALLOW;
	}
	if (bound_to_loopback4(ctx))
		return SL_ALLOW;
	/* 2. remember and rewrite */
	socklb_remember_udp(ctx, &entry);
	socklb_set4(ctx, entry.pod, entry.pod_port);
	return SL_ALLOW;
}

SEC("cgroup/sendmsg6")
int sl_sendmsg6(struct bpf_sock_addr *ctx)
{
	struct sl_socklb_entry entry = {};
	struct sl_sock_dst dst = {};

	if (!socklb_in_our_netns(ctx))
		return SL_ALLOW;
	/* 1. is it a published port? */
	socklb_dst6(&dst, ctx);
	if (!socklb_lookup(&dst, IPPROTO_UDP, &entry)) {
		socklb_forget_udp(ctx, &dst);
		return SL_ALLOW;
	}
	if (bound_to_loopback6(ctx))
		return SL_ALLOW;
	/* 2. remember and rewrite */
	socklb_remember_udp(ctx, &entry);
	socklb_set6(ctx, entry.pod, entry.pod_port);
	return SL_ALLOW;
}

SEC("cgroup/recvmsg4")
int sl_recvmsg4(struct bpf_sock_addr *ctx)
{
	struct sl_sock_dst dst = {};
	struct sl_socklb_entry *entry;

	if (!socklb_in_our_netns(ctx))
		return SL_ALLOW;
	socklb_dst4(&dst, ctx);
	entry = socklb_sender(ctx, &dst);
	if (entry)
		socklb_set4(ctx, entry->frontend, entry->frontend_port);
	return SL_ALLOW;
}

SEC("cgroup/recvmsg6")
int sl_recvmsg6(struct bpf_sock_addr *ctx)
{
	struct sl_sock_dst dst = {};
	struct sl_socklb_entry *entry;

	if (!socklb_in_our_netns(ctx))
		return SL_ALLOW;
	socklb_dst6(&dst, ctx);
	entry = socklb_sender(ctx, &dst);
	if (entry)
		socklb_set6(ctx, entry->frontend, entry->frontend_port);
	return SL_ALLOW;
}

SEC("cgroup/getpeername4")
int sl_peername4(struct bpf_sock_addr *ctx)
{
	struct sl_sock_dst dst = {};
	struct sl_socklb_entry *entry;

	if (!socklb_in_our_netns(ctx))
		return SL_ALLOW;
	socklb_dst4(&dst, ctx);
	entry = socklb_connected(ctx, &dst);
	if (entry)
		socklb_set4(ctx, entry->frontend, entry->frontend_port);
	return SL_ALLOW;
}

SEC("cgroup/getpeername6")
int sl_peername6(struct bpf_sock_addr *ctx)
{
	struct sl_sock_dst dst = {};
	struct sl_socklb_entry *entry;

	if (!socklb_in_our_netns(ctx))
		return SL_ALLOW;
	socklb_dst6(&dst, ctx);
	entry = socklb_connected(ctx, &dst);
	if (entry)
		socklb_set6(ctx, entry->frontend, entry->frontend_port);
	return SL_ALLOW;
}

/*
 * Cookies are never used twice. Sockets of other namespaces have no entry. A lookup for one would
 * allocate a cookie, and miss another cold bucket each time.
 */
SEC("cgroup/sock_release")
int sl_sock_release(struct bpf_sock *ctx)
{
	__u64 cookie;

	if (!socklb_in_our_netns(ctx))
		return SL_ALLOW;
	cookie = bpf_get_socket_cookie(ctx);
	if (bpf_map_lookup_elem(&sl_socklb_conn, &cookie))
		bpf_map_delete_elem(&sl_socklb_conn, &cookie);
	return SL_ALLOW;
}

char _license[] SEC("license") = "Dual BSD/GPL";
