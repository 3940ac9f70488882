/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "local_types.h"

/*
 * Connected sockets of the node that go through a hostPort, by socket cookie.
 * Written by sl_connect4/6 in the connecting task, deleted by sl_sock_release:
 * one socket is connected by one task at a time. Read by the loader, which
 * destroys those whose port has gone. LRU only so that it cannot fill up.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct sl_peer);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_peers SEC(".maps");

/*
 * Pods that datagram sockets without a peer have sent to, apart from the
 * others so that a resolver with a socket for each query evicts only its own.
 * Written by sl_sendmsg4/6; two tasks on one socket write the same value, or the last one wins.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct sl_peer_key);
	__type(value, struct sl_peer);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_peers_udp SEC(".maps");
