/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../endpoint/endpoint.h"
#include "../packet/parse_full.h"
#include "addr_forwarded.h"

/*
 * Keeps pods away from the UDP ports of VXLAN devices. VXLAN authenticates nobody: a datagram to such a
 * port of a node is, for that node, a frame of another node's pod. Who sends one speaks as any pod, and
 * the frame inside comes out behind every hook that would judge the sender. Toward another node it would
 * even be masqueraded as this one.
 *
 * Three hooks share the work. sl_from_pod judges what goes to this node. sl_to_uplink judges what leaves
 * for other nodes, after other programs of the node have translated it. sl_from_uplink of the VXLAN device
 * judges what came from another node's pod for an address of this node. What pods send to each other has
 * nothing to do with the node's devices, whatever port it has.
 */

/*
 * Which ports, and by which devices. ifindex 0 has all ports; port 0 says that there are any, of the
 * device. Written by the loader only.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct sl_tunnel_port);
	__type(value, __u32);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_tunnel_ports SEC(".maps");

/* Is port one of the device ifindex, or of any device for ifindex 0? port: network byte order; 0: any */
static __always_inline bool is_tunnel_port(__u32 ifindex, __be16 port)
{
	struct sl_tunnel_port key = {.ifindex = ifindex, .port = port};

	return bpf_map_lookup_elem(&sl_tunnel_ports, &key) != NULL;
}

/*
 * May a packet be a datagram to such a port of the device, or of any for ifindex 0? The node's stack reads
 * more extension headers than the full parser.
 * in: full_scratch()->outer, of kind SL_FULL_OPAQUE
 */
static __always_inline bool may_hide_tunnel_port(__u32 ifindex, const struct sl_full_ctx *full)
{
	return full->outer.p.family == 6 && is_ext_header(full->outer.p.tuple.proto) && is_tunnel_port(ifindex, 0);
}

/*
 * Is a datagram for a VXLAN device of this node? ifindex: of the device that the packet is routed from.
 * A group counts as the node: a socket gets what is for all hosts of a link.
 * in: ct_scratch()->key, whose local end is the destination
 */
__noinline int sl_to_tunnel(struct __sk_buff *skb, __u32 ifindex)
{
	struct sl_ct_scratch *s = ct_scratch();

	if (!skb || !s || !is_tunnel_port(0, s->key.local_port) || endpoint_lookup(s->key.local))
		return 0;
	return addr_is_multicast(s->key.local) || !sl_fib_forwards(skb, ifindex);
}

/*
 * sl_to_tunnel() for a packet of a pod.
 * out: ct_scratch()->key
 */
static __always_inline bool to_tunnel(struct __sk_buff *skb, const struct sl_pkt *p, __u32 ifindex)
{
	struct sl_ct_scratch *s;

	if (likely(p->tuple.proto != IPPROTO_UDP))
		return false;
	s = ct_scratch();
	if (!s)
		return false;
	tuple_reverse(&s->key, p);
	return sl_to_tunnel(skb, ifindex);
}

/*
 * to_tunnel() for what the fast parser cannot read. Of a datagram in fragments the first one tells.
 * out: full_scratch()->outer, ct_scratch()->key
 */
__noinline int sl_to_tunnel_full(struct __sk_buff *skb, __u32 ifindex)
{
	struct sl_full_ctx *full = full_scratch();
	__u32 kind;

	if (!full || likely(!is_tunnel_port(0, 0)))
		return 0;
	kind = (__u32)sl_parse_full(skb, ETH_HLEN, SL_TX, 0);
	if (kind == SL_FULL_OPAQUE && may_hide_tunnel_port(0, full))
		return !endpoint_lookup(full->outer.p.tuple.remote);
	return kind == SL_FULL_TUPLE && to_tunnel(skb, &full->outer.p, ifindex);
}

/*
 * Would a pod's datagram leave by this uplink for the VXLAN device of another node? By a VXLAN device it
 * goes to a pod there, or is judged there.
 */
static __always_inline bool leaves_for_tunnel(const struct __sk_buff *skb, const struct sl_pkt *p)
{
	return unlikely(p->tuple.proto == IPPROTO_UDP) && is_tunnel_port(0, p->tuple.remote_port) &&
	       !is_tunnel_port(skb->ifindex, p->tuple.remote_port);
}

/*
 * Has a datagram for this node's VXLAN device come by that device?
 * out: ct_scratch()->key
 */
static __always_inline bool came_for_tunnel(struct __sk_buff *skb, const struct sl_tuple *t)
{
	struct sl_ct_scratch *s;

	if (t->proto != IPPROTO_UDP || likely(!is_tunnel_port(skb->ifindex, t->local_port)))
		return false;
	s = ct_scratch();
	if (!s)
		return false;
	s->key = *t;
	return sl_to_tunnel(skb, skb->ifindex);
}
