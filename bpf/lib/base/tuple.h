/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "addr.h"
#include "compiler.h"

/*
 * The name of a connection: two ends and a protocol. It is the key of the conntrack maps and what
 * the parsers fill. "local" is the end that Sluice owns: the pod on the pod's side of a translation,
 * the node on the outside.
 */

/*
 * One direction-free name of a connection. "local" is the end we own: the pod
 * on the pod's side of a translation, the node on the outside. IPv4 addresses
 * are held v4-mapped (::ffff:a.b.c.d, RFC 4291 2.5.5.2), so that both families
 * share every map and every function.
 *
 * ICMP echo has no ports: local_port carries the identifier, remote_port is
 * SL_ECHO_LOCAL when the local end asked and SL_ECHO_REMOTE when the remote did.
 */
struct sl_tuple {
	__u8 local[16];
	__u8 remote[16];
	__be16 local_port;
	__be16 remote_port;
	__u8 proto;
	__u8 pad[3];	       /* [0]: SL_CT_SIDE_POD_SNAT for a record at a pod's door (turn.h) */
} __attribute__((aligned(8))); /* compared and copied by 64-bit words */
_Static_assert(sizeof(struct sl_tuple) == 40, "sl_tuple is a map key: no hidden padding");

#define SL_ECHO_LOCAL 1
#define SL_ECHO_REMOTE 2

static __always_inline bool tuple_equal(const struct sl_tuple *a, const struct sl_tuple *b)
{
	const __u64 *x = (const __u64 *)a, *y = (const __u64 *)b;

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2] && x[3] == y[3] && x[4] == y[4];
}
