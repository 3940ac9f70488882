/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../conntrack/conntrack.h"
#include "../endpoint/endpoint.h"
#include "../hostport/hostport.h"

/*
 * Makes the entry of a client's UDP flow to a hostPort again when the pod speaks first. The mapping leads
 * from the client to the pod, but not back. So the first end by which clients reach a pod's port is
 * noted, one per port of a pod: no flood can make more of them. Flows by another end of the same port
 * (a second mapping, another address of the node) have their entry only.
 */

/* Written by sl_from_uplink, from every CPU: each would write an end that leads to the pod. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct sl_hostport_key);
	__type(value, struct sl_hp_outside);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_hp_outside SEC(".maps");

/* The mapping of the noted end, if it still leads to the pod's port in t. */
static __always_inline struct sl_hostport *outside_mapping(const struct sl_hp_outside *o, const struct sl_tuple *t)
{
	struct sl_hostport_key key = {.port = o->port, .proto = t->proto};
	struct sl_hostport *hp;

	if (o->any)
		addr_any_of(key.ip, o->ip);
	else
		addr_copy(key.ip, o->ip);
	hp = bpf_map_lookup_elem(&sl_hostports, &key);
	if (!hp || hp->generation != o->generation || hp->port != t->local_port || !addr_equal(hp->ip, t->local))
		return NULL;
	return o->any && !is_node_addr(o->ip) ? NULL : hp;
}

static __always_inline struct sl_hp_outside *outside_lookup(const struct sl_tuple *t)
{
	struct sl_hostport_key key = {.port = t->local_port, .proto = t->proto};

	addr_copy(key.ip, t->local);
	return bpf_map_lookup_elem(&sl_hp_outside, &key);
}

/*
 * Notes the outside end of a new flow to a hostPort, unless an earlier one still leads to the pod's port.
 * Always returns 0. A function of its own, for the stack it takes.
 * in: ct_scratch()->entry, ->claim (the tuple as the pod sees it)  out: ->outside
 */
__noinline int sl_hp_learn(__u32 proto)
{
	struct sl_ct_scratch *s = ct_scratch();
	struct sl_hostport_key key = {};
	struct sl_hp_outside *o;

	if (!s || proto != IPPROTO_UDP)
		return 0;
	o = outside_lookup(&s->claim);
	if (o && outside_mapping(o, &s->claim))
		return 0;
	addr_copy(s->outside.ip, s->entry.other.local);
	s->outside.generation = s->entry.hostport_generation;
	s->outside.port = s->entry.other.local_port;
	s->outside.any = !!(s->entry.flags & SL_CT_DNAT_ANYADDR);
	addr_copy(key.ip, s->claim.local);
	key.port = s->claim.local_port;
	key.proto = s->claim.proto;
	bpf_map_update_elem(&sl_hp_outside, &key, &s->outside, BPF_ANY);
	return 0;
}

/*
 * Does a datagram of a pod answer a client whose entry was evicted? So it may be if entries are missing,
 * and if the client may use the port. Returns 1 if so, else 0. The entry then belongs to the mapping, as
 * the client's own packet would have made it.
 * in: ct_scratch()->entry, ->claim (the packet's tuple)  out: ->entry
 */
__noinline int sl_hp_answers(__u32 proto)
{
	struct sl_ct_scratch *s = ct_scratch();
	struct sl_hp_outside *o;
	struct sl_hostport *hp;

	if (!s || proto != IPPROTO_UDP || !ct_may_be_evicted(clock_now()))
		return 0;
	o = outside_lookup(&s->claim);
	if (!o)
		return 0;
	hp = outside_mapping(o, &s->claim);
	if (!hp || hp->owner != s->entry.owner || (hp->flags & (SL_HP_MASQ_ALL | SL_HP_COND_IIF)))
		return 0;
	if (endpoint_lookup(s->claim.remote) || is_node_addr(s->claim.remote) || addr_is_multicast(s->claim.remote) ||
	    !hostport_admits(hp, s->claim.remote))
		return 0;
	s->entry.other = s->claim;
	addr_copy(s->entry.other.local, o->ip);
	s->entry.other.local_port = o->port;
	if (!hostport_applies(hp, &s->entry.other, 0))
		return 0;
	s->entry.flags = SL_CT_DNAT | (o->any ? SL_CT_DNAT_ANYADDR : 0);
	s->entry.hostport_generation = hp->generation;
	return 1;
}
