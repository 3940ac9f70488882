/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/ctx.h"
#include "../drop/drop.h"
#include "../packet/icmp_error.h"
#include "host_udp.h"
#include "snat.h"

/*
 * A masqueraded pod keeps its source port, so the node itself may open a connection later whose tuple a
 * pod's connection has outside. The node's packets then leave from another port, as they do with
 * netfilter's NAT, and both go on. The same holds for what netfilter masquerades on this node for others.
 *
 * Such a connection has an entry with SL_CT_SIDE_NODE in its key, and a reverse entry.
 */

/*
 * clock_now() until which a connection of the node may have another port outside. Index: either of the
 * two ports modulo the size, so the node's other packets need no look into the conntrack tables. Written
 * from every CPU: of two times, either will do.
 */
#define SL_NODE_PORTS 8192
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SL_NODE_PORTS);
	__type(key, __u32);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_node_ports SEC(".maps");

static __always_inline __u64 *node_port_until(__be16 port)
{
	__u32 index = bpf_ntohs(port) % SL_NODE_PORTS;

	return bpf_map_lookup_elem(&sl_node_ports, &index);
}

/* May a connection of the node have this port, inside or outside, and another one on the other side? */
static __always_inline bool node_port_moved(__be16 port)
{
	__u64 *until = node_port_until(port);

	return until && *until && clock_now() < *until;
}

/* Keeps node_port_moved() true as long as the entry may live. */
static __always_inline void node_port_note(const struct sl_tuple *key, const struct sl_ct_entry *ct, __u64 now)
{
	__u64 end = now + ct_timeout(key->proto, ct->flags), *until;

	until = node_port_until(key->local_port);
	if (until && *until < end)
		*until = end;
	until = node_port_until(ct->other.local_port);
	if (until && *until < end)
		*until = end;
}

/*
 * Must sl_node_to_uplink() see the packet, which is not from a pod? What opens a connection, and what belongs
 * to one that has another port. Of UDP, not what a tunnel of this node sends: that has no socket and
 * came from nowhere.
 */
static __always_inline bool node_may_clash(const struct __sk_buff *skb, const struct sl_pkt *p)
{
	if (p->tuple.proto == IPPROTO_UDP)
		return skb->sk || skb->ingress_ifindex;
	return pkt_is_syn(p) || p->echo == SL_ECHO_ASKS || node_port_moved(p->tuple.local_port);
}

/* Does a live connection of a pod have the outside tuple t? */
static __always_inline bool masquerade_has(const struct sl_tuple *t, __u64 now)
{
	struct sl_ct_entry *reverse = ct_lookup(t, now), *entry;

	if (!reverse || !(reverse->flags & SL_CT_REVERSE) || !(reverse->flags & SL_CT_SNAT) ||
	    reverse->other.side != SL_CT_SIDE_POD)
		return false;
	entry = ct_lookup(&reverse->other, now);
	return entry && tuple_equal(&entry->other, t);
}

/*
 * What the node sends, or masquerades by netfilter: goes on from another port if a pod's connection has
 * its tuple. A function of its own: it is verified once.
 * in: full_scratch()->outer
 */
__noinline int sl_node_to_uplink(struct __sk_buff *skb)
{
	struct sl_full_ctx *full = full_scratch();
	struct sl_ct_scratch *s = ct_scratch();
	struct sl_ct_entry *ct = NULL;
	__u64 now = clock_now();
	const struct sl_pkt *p;

	if (!full || !s)
		return SL_NEXT;
	p = &full->outer.p;
	if (is_unconnected_udp(skb, p->tuple.proto))
		sl_host_udp_add(&p->tuple, now);
	if (!proto_has_free_ports(p->tuple.proto))
		return SL_NEXT;
	full->key = p->tuple;
	full->key.side = SL_CT_SIDE_NODE;
	if (node_port_moved(p->tuple.local_port))
		ct = ct_lookup(&full->key, now);
	if (ct && (ct_is_new_connection(ct, p, SL_TX) || !ct_ensure_reverse(&full->key, ct)))
		ct = NULL;
	if (!ct) {
		if (!pkt_opens(p))
			return SL_NEXT;
		if (!masquerade_has(&p->tuple, now)) {
			/* A socket is found when a pod asks for its port. The others leave a note. */
			if ((skb->ingress_ifindex || p->echo) && is_node_addr(p->tuple.local))
				sl_node_note(&p->tuple, now);
			return SL_NEXT;
		}
		ct_init(&s->entry, 0, SL_CT_POD_OPENED | SL_CT_SNAT, now);
		s->key = full->key;
		s->entry.other = p->tuple;
		if (!sl_snat_find(skb, 0))
			return drop(skb, SL_DROP_SNAT_PORTS, 0);
		ct = ct_insert(&full->key, &s->entry);
		if (!ct)
			return drop(skb, SL_DROP_CT_TABLE, 0);
	}
	ct = ct_update(&full->key, ct, p, SL_TX, skb->len, now);
	node_port_note(&full->key, ct, now);
	return full_rewrite(skb, &full->outer, SL_TX, &ct->other) ? drop(skb, SL_DROP_REWRITE, 0) : SL_NEXT;
}

/*
 * What comes for a connection of the node with another port gets its own port back. error: an ICMP error
 * about a packet of it. Returns 0 if it is not for such a connection, 1 if it goes on to the stack, or
 * a negative error after which it must be dropped.
 * in: full_scratch()->outer, ->inner  out: ->key
 */
__noinline int sl_node_from_uplink(struct __sk_buff *skb, __u32 error)
{
	struct sl_full_ctx *full = full_scratch();
	struct sl_ct_entry *reverse, *ct;
	__u64 now = clock_now();
	const struct sl_pkt *p;

	if (!full)
		return 0;
	p = error ? &full->inner.p : &full->outer.p;
	reverse = ct_lookup(&p->tuple, now);
	if (!reverse || !(reverse->flags & SL_CT_REVERSE) || reverse->other.side != SL_CT_SIDE_NODE)
		return 0;
	full->key = reverse->other;
	ct = ct_lookup(&full->key, now);
	if (!ct || !tuple_equal(&ct->other, &p->tuple))
		return 0;
	if (error)
		return icmp_rewrite_error(skb, full, SL_RX, &full->key) ? -1 : 1;
	if (pkt_is_syn(p))
		return 0; /* another connection, to what the node offers there */
	ct = ct_update(&full->key, ct, p, SL_RX, skb->len, now);
	node_port_note(&full->key, ct, now);
	return full_rewrite(skb, &full->outer, SL_RX, &full->key) ? -1 : 1;
}
