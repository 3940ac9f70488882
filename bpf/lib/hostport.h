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

/* Does the entry's condition of an address hold? */
static __always_inline bool __hostport_in(const __u8 *ip, const __u8 *net, __u8 prefix, bool except)
{
	return addr_same_prefix(ip, net, prefix) != except;
}

/* Do the entry's conditions hold for a packet from t->remote to t->local that came in by ifindex (0 = it came in by none)? */
static __always_inline bool hostport_applies(const struct sl_hostport *hp, const struct sl_tuple *t, __u32 ifindex)
{
	__u16 flags = hp->flags;

	if (!(flags & SL_HP_CONDITIONS))
		return true;
	if ((flags & SL_HP_IF_SRC) && !__hostport_in(t->remote, hp->src, hp->src_prefix, flags & SL_HP_NOT_SRC))
		return false;
	if ((flags & SL_HP_IF_DST) && !__hostport_in(t->local, hp->dst, hp->dst_prefix, flags & SL_HP_NOT_DST))
		return false;
	return !(flags & SL_HP_IF_IN) || (hp->ifindex == ifindex) != !!(flags & SL_HP_NOT_IN);
}

/* By what a mapping was found. */
enum sl_found {
	SL_FOUND_ANY = 1 << 0, /* it is one without hostIP */
	SL_FOUND_IF = 1 << 1,  /* conditions of a mapping had to be looked at: another packet may find another one */
};

/*
 * The published port that a packet to t->local, in by ifindex, is for: one bound to that address
 * first, else one without hostIP, which is for the node's own addresses
 * only: is_host_addr() has to say so before a flow is made by it. how: enum sl_found.
 */
static __always_inline struct sl_hostport *hostport_lookup(const struct sl_tuple *t, __u32 ifindex, __u32 *how)
{
	struct sl_hostport *hp;

	*how = 0;
	/* Not from the wire: a port published on 127.0.0.1 is for the node alone. */
	if (addr_is_loopback(t->local))
		return NULL;
	hp = __hostport_at(t->local, t->local_port, t->proto);
	if (hp && (hp->flags & SL_HP_CONDITIONS))
		*how |= SL_FOUND_IF;
	if (hp && hostport_applies(hp, t, ifindex))
		return hp;
	*how |= SL_FOUND_ANY;
	hp = __hostport_any(t->local, t->local_port, t->proto);
	if (hp && (hp->flags & SL_HP_CONDITIONS))
		*how |= SL_FOUND_IF;
	return hp && hostport_applies(hp, t, ifindex) ? hp : NULL;
}

/* May this source talk to the port? Asked when a flow is made; another list is another generation. */
static __always_inline bool hostport_admits(const struct sl_hostport *hp, const __u8 *source)
{
	struct sl_source key = {.prefix_len = 64 + 128};
	__u64 list = hp->sources;

	if (!list)
		return true;
	/* ::/0 has the v4-mapped addresses too, but does not mean them. */
	list |= addr_is_v4(source);
	__builtin_memcpy(key.list, &list, sizeof(key.list));
	addr_copy(key.ip, source);
	return bpf_map_lookup_elem(&sl_sources, &key) != NULL;
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
