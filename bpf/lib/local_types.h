/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "compiler.h"

/* A datagram socket without a peer, and a pod it has sent to. */
struct sl_peer_key {
	__u64 cookie; /* of the socket */
	__u8 ip[16];  /* pod */
	__be16 port;
	__u8 pad[6];
};
_Static_assert(sizeof(struct sl_peer_key) == 32, "sl_peer_key is a map key");

/* Whom a socket of the node asked for, and the pod it talks to instead. */
struct sl_peer {
	__u8 asked[16];
	__u8 pod[16];
	__u64 gen; /* of the hostPort entry */
	__be16 asked_port;
	__be16 pod_port;
	__u32 proto; /* IPPROTO_TCP, IPPROTO_UDP */
};
_Static_assert(sizeof(struct sl_peer) == 48, "sl_peer is a map value");
