/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/compiler.h"

/*
 * What the socket load balancer remembers about sockets.
 */

/* An unconnected datagram socket, and a pod it has sent to. */
struct sl_socklb_key {
	__u64 cookie; /* of the socket */
	__u8 ip[16];  /* pod */
	__be16 port;
	__u8 pad[6];
};
_Static_assert(sizeof(struct sl_socklb_key) == 32, "sl_socklb_key is a map key");

/* What a socket of the node asked for, and the pod it talks to instead. */
struct sl_socklb_entry {
	__u8 frontend[16];
	__u8 pod[16];
	__u64 generation; /* of the hostPort entry */
	__be16 frontend_port;
	__be16 pod_port;
	__u32 proto; /* IPPROTO_TCP, IPPROTO_UDP */
};
_Static_assert(sizeof(struct sl_socklb_entry) == 48, "sl_socklb_entry is a map value");
