/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "endpoint.h"
#include "flow_types.h"
#include "hostport_maps.h"

/* The mapping of exactly this address; the "any" address finds mappings without hostIP. */
static __always_inline struct sl_hostport *__hostport_at(const __u8 *ip, __be16 port, __u8 proto)
{
	struct sl_hostport_key key = {.port = port, .proto = proto};

	addr_copy(key.ip, ip);
	return bpf_map_lookup_elem(&sl_hostports, &key);
}

static __always_inline struct sl_hostport *__hostport_any(const __u8 *ip, __be16 port, __u8 proto)
{
	struct sl_hostport_key key = {.port = port, .proto = proto};

	addr_any_of(key.ip, ip);
	return bpf_map_lookup_elem(&sl_hostports, &key);
}

/*
 * The published port that a packet to t->local is for: one bound to that address
 * first, else (*any) one without hostIP, which is for the node's own addresses
 * only: is_host_addr() has to say so before a flow is made by it.
 */
static __always_inline struct sl_hostport *hostport_lookup(const struct sl_tuple *t, bool *any)
{
	struct sl_hostport *hp;

	*any = false;
	/* Not from the wire: a port published on 127.0.0.1 is for the node alone, and the stack drops the packet. */
	if (addr_is_loopback(t->local))
		return NULL;
	hp = __hostport_at(t->local, t->local_port, t->proto);
	if (hp)
		return hp;
	*any = true;
	return __hostport_any(t->local, t->local_port, t->proto);
}

/* Is the hostPort entry a flow was made by still the one in force? outside: the flow's tuple before translation. */
static __always_inline bool hostport_still(const struct sl_tuple *outside, bool any, __u64 gen)
{
	struct sl_hostport *hp = any ? __hostport_any(outside->local, outside->local_port, outside->proto)
				     : __hostport_at(outside->local, outside->local_port, outside->proto);

	return hp && hp->gen == gen;
}

/* May masquerade use this source port of the node's address ip? Not a published one, not a reserved one. */
static __always_inline bool hostport_port_free(const __u8 *ip, __be16 port, __u8 proto)
{
	__u16 host = bpf_ntohs(port);
	__u32 word = host / 64;
	__u64 *kept = bpf_map_lookup_elem(&sl_ports_kept, &word);

	if (kept && (*kept & (1ULL << (host % 64))))
		return false;
	return !__hostport_at(ip, port, proto) && !__hostport_any(ip, port, proto);
}
