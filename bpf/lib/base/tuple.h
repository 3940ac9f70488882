/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "addr.h"
#include "compiler.h"

/*
 * The name of a connection: two ends and a protocol. It is the key of the conntrack maps and what
 * the parsers fill. It has no direction. "local" is the end that Sluice owns: the pod on the pod's
 * side of a translation, the node on the outside.
 */

/* ICMP echo has no ports. local_port carries the identifier, remote_port the end that asked. */
#define SL_ECHO_LOCAL 1	 /* the local end */
#define SL_ECHO_REMOTE 2 /* the remote end */

/* sl_tuple.side: the translation that the entry belongs to. */
enum sl_ct_side {
	SL_CT_SIDE_POD = 0,	 /* the tuple is as the pod sees it, or as it is outside */
	SL_CT_SIDE_POD_SNAT = 1, /* entry of a pod-side SNAT; the tuple is as the stack sees it (nat/pod_snat.h) */
	SL_CT_SIDE_NODE = 2,	 /* entry of a connection of the node itself; as its socket has it (nat/node_port.h) */
};

struct sl_tuple {
	__u8 local[16]; /* IPv4 v4-mapped (::ffff:a.b.c.d, RFC 4291 2.5.5.2) */
	__u8 remote[16];
	__be16 local_port;
	__be16 remote_port;
	__u8 proto;
	__u8 side;	 /* enum sl_ct_side */
	__u16 podns_dev; /* number of the device inside a pod's namespace, whose addresses others may have too; else 0 */
} __attribute__((aligned(8))); /* compared and copied by 64-bit words */
_Static_assert(sizeof(struct sl_tuple) == 40, "sl_tuple is a map key: no hidden padding");

/* Sets to to from with its ends swapped. Not for echo, whose ports say which end asked (tuple_reverse()). */
static __always_inline void tuple_swap(struct sl_tuple *to, const struct sl_tuple *from)
{
	*to = *from;
	addr_copy(to->local, from->remote);
	addr_copy(to->remote, from->local);
	to->local_port = from->remote_port;
	to->remote_port = from->local_port;
}

/* Is a the tuple b with its ends swapped? Not for echo, as tuple_swap(). */
static __always_inline bool tuple_is_swapped(const struct sl_tuple *a, const struct sl_tuple *b)
{
	return addr_equal(a->local, b->remote) && addr_equal(a->remote, b->local) && a->local_port == b->remote_port &&
	       a->remote_port == b->local_port;
}

static __always_inline bool tuple_equal(const struct sl_tuple *a, const struct sl_tuple *b)
{
	const __u64 *x = (const __u64 *)a, *y = (const __u64 *)b;

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2] && x[3] == y[3] && x[4] == y[4];
}
