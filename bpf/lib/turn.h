/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "endpoint.h"
#include "flow.h"
#include "gone.h"
#include "hostport.h"
#include "metrics.h"
#include "snat.h"
#include "sock.h"
#include "turn_set.h"

/*
 * Hairpin: a pod that asks for a published port of its own node, and gets a pod of this node,
 * perhaps itself. And the masquerade at the pod's door that goes with it (portmap
 * "snat", "masqAll") and with ipMasq, between two networks of the node: the pod sees the address of the device it is routed from.
 *
 *           client A's hooks                     B's hooks
 *   asked:  A:p -> N:h   | A:p' -> B:b   stack   | A:p' -> B:b  | G:q -> B:b
 *   answer: N:h -> A:p   | B:b  -> A:p'  stack   | B:b  -> A:p' | B:b -> G:q
 *
 * In the middle the stack sees two pods, so that whoever decides about forwarding
 * decides about this too; no such flow takes the shortcut. Two records, each with an index:
 * the client's (SL_FLOW_TURNED; key A:p N:h, other A:p' B:b), and where the source is
 * exchanged, one at the door (SL_FLOW_DOOR; key as the stack has it, apart from
 * other records by SL_SIDE_DOOR; other B:b G:q). p' is p but for a clash with a connection A has to B itself.
 */

#define SL_SIDE_DOOR 1 /* sl_tuple.pad[0] of a door's record */

/* No verdict of these functions: the packet has nothing to do with them. */
#define SL_NOT_TURNED (-2)

/*
 * Takes one port if it is free, by inserting the index at s->rec.other, as sl_snat_take() does. It is
 * that of the node's end at a door, that of the client otherwise. port: host byte order. Returns 1 when it is taken.
 */
__noinline int sl_turn_take(struct __sk_buff *skb, __u32 port)
{
	struct sl_flow_scratch *s = flow_scratch();
	struct sl_turn *t = turn_scratch();
	__u64 now = clock_now();
	struct sl_flow *idx;
	bool fixed;

	if (!s || !t)
		return 0;
	fixed = !proto_has_free_ports(s->key.proto);
	if (!port && !fixed)
		return 0;
	if ((s->rec.flags & SL_FLOW_DOOR) && t->p.echo) {
		s->rec.other.local_port = bpf_htons((__u16)port);
		if (!__snat_in_range((__u16)port))
			return 0;
	} else if (s->rec.flags & SL_FLOW_DOOR) {
		s->rec.other.remote_port = bpf_htons((__u16)port);
		/* The node's end is the remote one here. */
		t->to = s->rec.other;
		addr_copy(t->to.local, s->rec.other.remote);
		addr_copy(t->to.remote, s->rec.other.local);
		t->to.local_port = s->rec.other.remote_port;
		t->to.remote_port = s->rec.other.local_port;
		if ((!fixed && !__snat_in_range((__u16)port)) ||
		    !hostport_port_free(t->to.local, t->to.local_port, t->to.proto) ||
		    sock_lookup(skb, &t->to) != SL_SOCK_NONE)
			return 0;
	} else {
		s->rec.other.local_port = bpf_htons((__u16)port);
	}
	if (__snat_taken(&s->rec.other, &s->key, now))
		return 0;
	flow_init_index(&s->idx, &s->key, &s->rec);
	bpf_map_update_elem(&sl_flows_new, &s->rec.other, &s->idx, BPF_NOEXIST);
	idx = bpf_map_lookup_elem(&sl_flows_new, &s->rec.other);
	return idx && tuple_equal(&idx->other, &s->key);
}

/*
 * Does the port (host byte order) lead to the very flow in the scratch, from before its record was lost? As sl_snat_mine().
 * Returns 1 then, else 0.
 */
__noinline int sl_turn_mine(__u32 port)
{
	struct sl_flow_scratch *s = flow_scratch();
	struct sl_turn *t = turn_scratch();
	__u32 kind;
	struct sl_flow *idx;

	if (!s || !t)
		return 0;
	kind = s->rec.flags & (SL_FLOW_DOOR | SL_FLOW_TURNED);
	if ((kind & SL_FLOW_DOOR) && !t->p.echo)
		s->rec.other.remote_port = bpf_htons((__u16)port);
	else
		s->rec.other.local_port = bpf_htons((__u16)port);
	idx = bpf_map_lookup_elem(&sl_flows, &s->rec.other);
	if (!idx)
		idx = bpf_map_lookup_elem(&sl_flows_new, &s->rec.other);
	return idx && (idx->flags & SL_FLOW_INDEX) && (idx->flags & kind) && idx->owner == s->rec.owner &&
	       tuple_equal(&idx->other, &s->key);
}

/*
 * Notes in t->start where the search for a port of the flow in the scratch begins, and looks there for the one it had before its record was
 * lost. own: host byte order. Returns 1 when it is found. A function of its own, for the stack it takes.
 */
__noinline int sl_turn_look(__u32 own)
{
	struct sl_flow_scratch *s = flow_scratch();
	struct sl_turn *t = turn_scratch();
	__u32 look, i;
	int found = 0;

	if (!s || !t)
		return 0;
	t->start = ports_start(&s->key);
	look = __snat_look(&t->p, proto_has_free_ports(s->key.proto) ? 2 * SL_SNAT_TRIES : 0);
	for (i = 0; i <= 2 * SL_SNAT_TRIES && i < look && !found; i++)
		found = sl_turn_mine(__snat_candidate((__u16)own, i, t->start));
	return found;
}

/*
 * Gives s->rec, whose key is s->key, an index, and puts it in: with the port it had before its record was lost, else a free one, own (host byte order) if
 * it can be.
 */
static __always_inline struct sl_flow *__turn_insert(struct __sk_buff *skb, struct sl_flow_scratch *s,
						     const struct sl_turn *t, __u16 own, enum sl_drop_reason *reason)
{
	__u32 tries = proto_has_free_ports(s->key.proto) ? 2 * SL_SNAT_TRIES : 0, i;
	int found = sl_turn_look(own);
	struct sl_flow *f = NULL;

	*reason = SL_DROP_SNAT_PORTS;
	for (i = 0; i <= 2 * SL_SNAT_TRIES && i <= tries && !found; i++)
		found = sl_turn_take(skb, __snat_candidate(own, i, t->start));
	if (found) {
		f = flow_insert(&s->key, &s->rec);
		*reason = f ? SL_DROP_NONE : SL_DROP_FLOW_TABLE;
	}
	return f;
}

/* The live record behind an index of ours, restored where the LRU took it. */
static __always_inline struct sl_flow *__turn_record(const struct sl_tuple *outside, const struct sl_flow *idx,
						     struct sl_tuple *key, __u64 owner, __u64 now)
{
	struct sl_flow *rec;

	*key = idx->other;
	rec = flow_record(key, owner, now);
	if (!rec && !flow_exists(key))
		rec = flow_restore(outside, idx, now);
	return rec && tuple_equal(&rec->other, outside) ? rec : NULL;
}

static __always_inline bool __turn_index(const struct sl_flow *f, __u32 kind, __u64 owner)
{
	return f && (f->flags & SL_FLOW_INDEX) && (f->flags & kind) && f->owner == owner;
}

/* Does the tuple of a packet that a pod sends lead back through its door? Such a packet opens nothing. */
static __always_inline bool turn_is_answer(const struct sl_tuple *tuple, __u64 now)
{
	struct sl_flow *f = flow_lookup(tuple, now);

	return f && (f->flags & SL_FLOW_INDEX) && (f->flags & SL_FLOW_DOOR);
}

/* What the pod answers to the address it saw at its door goes to whoever asked. */
static __always_inline int __turn_answer(struct __sk_buff *skb, struct sl_turn *t, const struct sl_endpoint *ep,
					 __u64 now)
{
	struct sl_flow *f = flow_lookup(&t->p.tuple, now);
	__u64 owner = ep->owner;
	bool outside;

	if (!__turn_index(f, SL_FLOW_DOOR, owner))
		return SL_NOT_TURNED;
	f = __turn_record(&t->p.tuple, f, &t->key, owner, now);
	if (!f)
		return SL_NOT_TURNED;
	flow_touch(&t->key, f, &t->p, SL_TX, skb->len, now);
	t->want = t->key;
	t->want.pad[0] = 0;
	if (turn_set(skb, t, SL_TX))
		return drop(skb, SL_DROP_REWRITE, ep->ifindex);
	/*
	 * Of a client outside there is a record of the hostPort's flow too, which this packet answers; under a policy one of
	 * its verdict, whose tuple has not left the pod.
	 */
	f = flow_record(&t->p.tuple, owner, now);
	if (!f)
		return SL_PASS;
	outside = f->flags & SL_FLOW_DNAT;
	f = flow_touch(&t->p.tuple, f, &t->p, SL_TX, skb->len, now);
	if (!outside)
		f->flags &= ~SL_FLOW_TX_FIRST;
	return SL_PASS;
}

/* Is a client's address to be exchanged at the pod's door? As the reference does: within the pod's subnet, or always. */
static __always_inline bool __turn_masquerades(const struct sl_hostport *hp, const struct sl_endpoint *to,
					       const __u8 *client)
{
	return (hp->flags & SL_HP_MASQ_ALL) ||
	       ((hp->flags & SL_HP_SNAT) && addr_same_prefix(client, hp->ip, to->prefix_len));
}

/* Makes the client's record anew; t->key is the tuple with the node's end as local. */
static __always_inline enum sl_drop_reason __turn_make(struct __sk_buff *skb, struct sl_turn *t,
						       const struct sl_endpoint *ep, const struct sl_hostport *hp,
						       const struct sl_endpoint *to, __u64 now)
{
	struct sl_flow_scratch *s = flow_scratch();
	enum sl_drop_reason reason;
	struct sl_flow *f;

	if (!s)
		return SL_DROP_FLOW_TABLE;
	flow_init(&s->rec, ep->owner, SL_FLOW_POD_OPENED | SL_FLOW_TURNED, now);
	if (__turn_masquerades(hp, to, t->p.tuple.local))
		s->rec.flags |= SL_FLOW_MASQ;
	s->rec.hostport_gen = hp->gen;
	s->rec.other = t->p.tuple;
	addr_copy(s->rec.other.remote, hp->ip);
	s->rec.other.remote_port = hp->port;
	s->key = t->p.tuple;
	f = __turn_insert(skb, s, t, bpf_ntohs(t->p.tuple.local_port), &reason);
	if (f)
		flow_touch(&t->p.tuple, f, &t->p, SL_TX, skb->len, now);
	return reason;
}

/* A pod of this node asks for a published port of the node. */
static __always_inline int __turn_ask(struct __sk_buff *skb, struct sl_turn *t, const struct sl_endpoint *ep, __u64 now)
{
	enum sl_drop_reason reason;
	struct sl_hostport *hp;
	struct sl_endpoint *to;
	struct sl_flow *f;
	__u32 how;

	if (t->p.echo)
		return SL_NOT_TURNED;
	tuple_reverse(&t->key, &t->p);
	hp = hostport_lookup(&t->key, ep->route_ifindex, &how);
	if (!hp || ((how & SL_FOUND_ANY) && !is_host_addr(t->key.local)))
		return SL_NOT_TURNED;
	if (hp->port != t->key.local_port && !proto_has_free_ports(t->key.proto))
		return SL_NOT_TURNED; /* not a mapping for us, see sl_upl_ingress */
	to = endpoint_lookup(hp->ip);
	if (!to || to->owner != hp->owner)
		return SL_NOT_TURNED;
	f = flow_record(&t->p.tuple, ep->owner, now);
	if (!f || !(f->flags & SL_FLOW_TURNED) || f->hostport_gen != hp->gen || !flow_ensure_index(&t->p.tuple, f)) {
		/* As from outside: the node's own connection from this port is left alone. */
		if (!pkt_is_syn(&t->p) && sock_awaits(skb, &t->key))
			return SL_NOT_TURNED;
		if (sl_gone(skb, to->ifindex))
			return SL_NOT_TURNED;
		if (!hostport_admits(hp, t->key.remote))
			return drop(skb, SL_DROP_SOURCE, to->ifindex);
		reason = __turn_make(skb, t, ep, hp, to, now);
		if (reason)
			return drop(skb, reason, ep->ifindex);
		f = flow_record(&t->p.tuple, ep->owner, now);
		if (!f)
			return drop(skb, SL_DROP_FLOW_TABLE, ep->ifindex);
	}
	endpoint_mark(skb, to);
	t->want = f->other;
	if (turn_set(skb, t, SL_TX))
		return drop(skb, SL_DROP_REWRITE, ep->ifindex);
	return SL_PASS;
}

/* What a pod sends, in the scratch. */
__noinline int sl_turn_out(struct __sk_buff *skb)
{
	struct sl_turn *t = turn_scratch();
	__u64 now = clock_now();
	struct sl_endpoint *ep;
	int verdict;

	if (!t)
		return SL_NOT_TURNED;
	ep = endpoint_lookup(t->p.tuple.local);
	if (!ep)
		return SL_NOT_TURNED;
	verdict = __turn_answer(skb, t, ep, now);
	return verdict == SL_NOT_TURNED ? __turn_ask(skb, t, ep, now) : verdict;
}

/* At sl_pod_egress, for a packet that does not take the shortcut. */
static __always_inline int turn_out(struct __sk_buff *skb, const struct sl_pkt *p)
{
	struct sl_turn *t = turn_scratch();

	if (!t)
		return SL_NOT_TURNED;
	t->p = *p;
	return sl_turn_out(skb);
}

/* To the client: what comes from the pod comes from the port it asked for. */
static __always_inline int __turn_client(struct __sk_buff *skb, struct sl_turn *t, const struct sl_endpoint *ep,
					 __u64 now)
{
	struct sl_flow *f = flow_lookup(&t->p.tuple, now);
	__u64 owner = ep->owner;

	if (!__turn_index(f, SL_FLOW_TURNED, owner))
		return SL_NOT_TURNED;
	f = __turn_record(&t->p.tuple, f, &t->key, owner, now);
	if (!f)
		return SL_NOT_TURNED;
	flow_touch(&t->key, f, &t->p, SL_RX, skb->len, now);
	t->want = t->key;
	if (turn_set(skb, t, SL_RX))
		return drop(skb, SL_DROP_REWRITE, ep->ifindex);
	return SL_PASS;
}

/* Makes the record at the door of ep for the packet's tuple, under t->key. */
static __always_inline enum sl_drop_reason __door_make(struct __sk_buff *skb, struct sl_turn *t,
						       const struct sl_endpoint *ep, __u64 now)
{
	struct sl_flow_scratch *s = flow_scratch();
	enum sl_drop_reason reason;

	if (!s)
		return SL_DROP_FLOW_TABLE;
	if (addr_is_any(ep->gateway))
		return SL_DROP_NO_GATEWAY;
	flow_init(&s->rec, ep->owner, SL_FLOW_DOOR, now);
	s->rec.other = t->p.tuple;
	addr_copy(s->rec.other.remote, ep->gateway);
	s->key = t->key;
	__turn_insert(skb, s, t, bpf_ntohs(t->p.echo ? t->p.tuple.local_port : t->p.tuple.remote_port), &reason);
	return reason;
}

/* To the pod that was asked: the packet comes from the address of the device the pod is routed from. */
static __always_inline int __door_in(struct __sk_buff *skb, struct sl_turn *t, const struct sl_endpoint *ep, __u64 now)
{
	enum sl_drop_reason reason;
	struct sl_flow *f;

	t->key = t->p.tuple;
	t->key.pad[0] = SL_SIDE_DOOR;
	f = flow_record(&t->key, ep->owner, now);
	if (!f || !(f->flags & SL_FLOW_DOOR) || flow_reopened(f, &t->p, SL_RX) || !flow_ensure_index(&t->key, f)) {
		reason = __door_make(skb, t, ep, now);
		if (reason)
			return drop(skb, reason, ep->ifindex);
		f = flow_record(&t->key, ep->owner, now);
		if (!f)
			return drop(skb, SL_DROP_FLOW_TABLE, ep->ifindex);
	}
	f = flow_touch(&t->key, f, &t->p, SL_RX, skb->len, now);
	t->want = f->other;
	if (turn_set(skb, t, SL_RX))
		return drop(skb, SL_DROP_REWRITE, ep->ifindex);
	return SL_PASS;
}

/* Has the packet in the scratch been masqueraded at the door of ep before? */
static __always_inline bool __has_crossed(struct sl_turn *t, const struct sl_endpoint *ep, __u64 now)
{
	struct sl_flow *f;

	t->key = t->p.tuple;
	t->key.pad[0] = SL_SIDE_DOOR;
	f = flow_record(&t->key, ep->owner, now);
	return f && (f->flags & SL_FLOW_DOOR);
}

/*
 * Does what sender opened leave its network masqueraded, toward another one of this node? As at an uplink: not if the
 * packet answers what the other pod opened, be it through the sender's own door. Under a policy the sender's record has
 * seen answers too, so what was masqueraded once is noted there, and stays masqueraded.
 */
static __always_inline bool __crosses(struct sl_turn *t, const struct sl_endpoint *ep, const struct sl_endpoint *sender,
				      __u64 now)
{
	const struct sl_pkt *p = &t->p;
	__u32 opened = 0;
	struct sl_flow *f;
	bool answers;

	if (!endpoint_masquerades(sender, p->tuple.remote, p->tuple.local))
		return false;
	f = flow_record(&p->tuple, ep->owner, now);
	if (f && (f->flags & SL_FLOW_POD_OPENED))
		return false;
	tuple_reverse(&t->to, p);
	f = flow_record(&t->to, sender->owner, now);
	if (f) {
		opened = f->flags;
		answers = !(opened & SL_FLOW_POD_OPENED) ||
			  (opened & (SL_FLOW_REPLIED | SL_FLOW_MASQ)) == SL_FLOW_REPLIED;
	} else {
		answers = pkt_is_syn_ack(p) || p->echo == SL_ECHO_ANSWERS;
	}
	if (answers && !__has_crossed(t, ep, now))
		return false;
	t->to.pad[0] = SL_SIDE_DOOR;
	f = flow_record(&t->to, sender->owner, now);
	if (f && (f->flags & SL_FLOW_DOOR))
		return false;
	if (!opened || (opened & SL_FLOW_MASQ))
		return true;
	t->to.pad[0] = 0;
	f = flow_record(&t->to, sender->owner, now);
	if (f)
		f->flags |= SL_FLOW_MASQ;
	return true;
}

/* What a pod gets from another pod, or from outside by a mapping with masqAll, in the scratch. */
__noinline int sl_turn_in(struct __sk_buff *skb)
{
	struct sl_turn *t = turn_scratch();
	__u64 now = clock_now();
	struct sl_endpoint *ep, *sender;
	struct sl_flow *f;
	bool turned, door;
	int verdict;

	if (!t)
		return SL_NOT_TURNED;
	ep = endpoint_lookup(t->p.tuple.local);
	if (!ep)
		return SL_NOT_TURNED;
	verdict = __turn_client(skb, t, ep, now);
	if (verdict != SL_NOT_TURNED)
		return verdict;
	/* As the client sees it: is there an index that leads to what it asked for? */
	tuple_reverse(&t->to, &t->p);
	f = flow_lookup(&t->to, now);
	turned = f && (f->flags & SL_FLOW_INDEX) && (f->flags & SL_FLOW_TURNED);
	door = turned && (f->flags & SL_FLOW_MASQ);
	sender = endpoint_lookup(t->p.tuple.remote);
	if (!door && sender)
		door = __crosses(t, ep, sender, now);
	if (!sender) {
		f = flow_record(&t->p.tuple, ep->owner, now);
		door = f && (f->flags & (SL_FLOW_MASQ | SL_FLOW_POD_OPENED)) == SL_FLOW_MASQ;
	}
	if (door)
		return __door_in(skb, t, ep, now);
	return turned ? SL_PASS : SL_NOT_TURNED;
}

/* At sl_pod_ingress. */
static __always_inline int turn_in(struct __sk_buff *skb, const struct sl_pkt *p)
{
	struct sl_turn *t = turn_scratch();

	if (!t)
		return SL_NOT_TURNED;
	t->p = *p;
	return sl_turn_in(skb);
}
