/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/tuple.h"
#include "../endpoint/endpoint.h"
#include "hostport_types.h"

/*
 * Lookup of published ports (hostPorts). A mapping of exactly the packet's address goes before one
 * without hostIP, which holds for every address of the node.
 */

/* Published ports. Written by the loader only. One update replaces the owner atomically. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct sl_hostport_key);
	__type(value, struct sl_hostport);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_hostports SEC(".maps");

/*
 * Allowlists of published ports. Written by the loader only. A list is complete before a mapping
 * names it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct sl_allowed_source);
	__type(value, __u32);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_hp_allowlist SEC(".maps");

/*
 * Source ports that masquerade must not use (net.ipv4.ip_local_reserved_ports). Bit (port % 64) of
 * element port / 64. Written by the loader only.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_rsvd_ports SEC(".maps");

/* The mapping of exactly this address. The "any" address finds mappings without hostIP. */
static __always_inline struct sl_hostport *hostport_get(const __u8 *ip, __be16 port, __u8 proto)
{
	struct sl_hostport_key key = {.port = port, .proto = proto};

	addr_copy(key.ip, ip);
	return bpf_map_lookup_elem(&sl_hostports, &key);
}

static __always_inline struct sl_hostport *hostport_get_any(const __u8 *ip, __be16 port, __u8 proto)
{
	struct sl_hostport_key key = {.port = port, .proto = proto};

	addr_any_of(key.ip, ip);
	return bpf_map_lookup_elem(&sl_hostports, &key);
}

/* Is ip in the network? except: is it outside? */
static __always_inline bool cidr_match(const __u8 *ip, const __u8 *net, __u8 prefix, bool except)
{
	return addr_same_prefix(ip, net, prefix) != except;
}

/*
 * Do the mapping's conditions hold for a packet from t->remote to t->local? ifindex: the device it
 * came in by, 0 = none.
 */
static __always_inline bool hostport_applies(const struct sl_hostport *hp, const struct sl_tuple *t, __u32 ifindex)
{
	__u16 flags = hp->flags;

	if (!(flags & SL_HP_CONDITIONS))
		return true;
	if ((flags & SL_HP_COND_SRC) && !cidr_match(t->remote, hp->src, hp->src_prefix, flags & SL_HP_COND_NOT_SRC))
		return false;
	if ((flags & SL_HP_COND_DST) && !cidr_match(t->local, hp->dst, hp->dst_prefix, flags & SL_HP_COND_NOT_DST))
		return false;
	return !(flags & SL_HP_COND_IIF) || (hp->ifindex == ifindex) != !!(flags & SL_HP_COND_NOT_IIF);
}

/* How a mapping was found. */
enum sl_hp_match {
	SL_HP_MATCH_ANYADDR = 1 << 0, /* it is one without hostIP */
	SL_HP_MATCH_CONDITIONAL =
		1 << 1, /* it, or one before it, has conditions: another packet may find another mapping */
	SL_HP_MATCH_NODE_ADDR = 1 << 2, /* the address is the node's, and the stack does not forward it */
};

/*
 * Find the mapping for t->local: exact hostIP first, then the wildcard. For a wildcard hit the
 * caller must still check is_node_addr(). ifindex: the device the packet came in by. *match: enum
 * sl_hp_match.
 */
static __always_inline struct sl_hostport *hostport_lookup(const struct sl_tuple *t, __u32 ifindex, __u32 *match)
{
	struct sl_hostport *hp;

	*match = 0;
	/* Not from a wire: a port published on 127.0.0.1 is for the node alone. */
	if (addr_is_loopback(t->local))
		return NULL;
	hp = hostport_get(t->local, t->local_port, t->proto);
	if (hp && (hp->flags & SL_HP_CONDITIONS))
		*match |= SL_HP_MATCH_CONDITIONAL;
	if (hp && hostport_applies(hp, t, ifindex))
		return hp;
	*match |= SL_HP_MATCH_ANYADDR;
	hp = hostport_get_any(t->local, t->local_port, t->proto);
	if (hp && (hp->flags & SL_HP_CONDITIONS))
		*match |= SL_HP_MATCH_CONDITIONAL;
	return hp && hostport_applies(hp, t, ifindex) ? hp : NULL;
}

/* May this source use the port? Asked when a connection opens. Another list is another generation. */
static __always_inline bool hostport_admits(const struct sl_hostport *hp, const __u8 *source)
{
	struct sl_allowed_source key = {.prefix_len = 64 + 128};
	__u64 list = hp->sources;

	if (!list)
		return true;
	/* ::/0 covers the v4-mapped addresses too, but does not mean them. */
	list |= addr_is_v4(source);
	__builtin_memcpy(key.list, &list, sizeof(key.list));
	addr_copy(key.ip, source);
	return bpf_map_lookup_elem(&sl_hp_allowlist, &key) != NULL;
}

/*
 * Does the client of a mapping get pod-side SNAT? As upstream does: within the pod's subnet, or always
 * (masqAll). to: the pod.
 */
static __always_inline bool hostport_wants_pod_snat(const struct sl_hostport *hp, const struct sl_endpoint *to,
						    const __u8 *client)
{
	return (hp->flags & SL_HP_MASQ_ALL) ||
	       ((hp->flags & SL_HP_SNAT) && addr_same_prefix(client, hp->ip, to->prefix_len));
}

/* Is the mapping of a connection still in force? outside: the connection's tuple before translation. */
static __always_inline bool hostport_is_current(const struct sl_tuple *outside, bool any, __u64 generation)
{
	struct sl_hostport *hp = any ? hostport_get_any(outside->local, outside->local_port, outside->proto)
				     : hostport_get(outside->local, outside->local_port, outside->proto);

	return hp && hp->generation == generation;
}

/* May masquerade use this source port of the node's address ip? Not if it is published or reserved. */
static __always_inline bool snat_port_allowed(const __u8 *ip, __be16 port, __u8 proto)
{
	__u16 host = bpf_ntohs(port);
	__u32 word = host / 64;
	__u64 *reserved = bpf_map_lookup_elem(&sl_rsvd_ports, &word);

	if (reserved && (*reserved & (1ULL << (host % 64))))
		return false;
	return !hostport_get(ip, port, proto) && !hostport_get_any(ip, port, proto);
}
