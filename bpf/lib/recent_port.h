/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "gone.h"
#include "hostport.h"
#include "parse.h"
#include "recent.h"

/* A published port as a packet found it. */
struct sl_recent_port {
	struct sl_freshness fresh;
	struct sl_hostport_key asked; /* destination of the packet; proto 0: nothing was found */
	__u32 how;		      /* enum sl_found */
	struct sl_hostport hp;
	struct sl_endpoint ep; /* of hp.ip */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SL_RECENT);
	__type(key, __u32);
	__type(value, struct sl_recent_port);
} sl_recent_ports SEC(".maps");

static __always_inline bool __port_asked(const struct sl_recent_port *r, const struct sl_tuple *t)
{
	return r->asked.port == t->local_port && r->asked.proto == t->proto && addr_equal(r->asked.ip, t->local);
}

/* Reads the mapping of t, in by ifindex, and its pod into r. False: there is none. A function of its own, away from the packets that need none of it. */
static __noinline bool sl_read_port(const struct sl_tuple *t, __u32 ifindex, struct sl_recent_port *r, __u64 now)
{
	__u64 epoch = recent_epoch();
	struct sl_endpoint *ep;
	struct sl_hostport *hp;
	__u32 how;

	/* Unless it is of another port: what is published there is not forgotten for a packet that is for none. */
	if (__port_asked(r, t))
		r->asked.proto = 0;
	hp = hostport_lookup(t, ifindex, &how);
	if (!hp)
		return false;
	ep = endpoint_lookup(hp->ip);
	if (!ep || ep->owner != hp->owner)
		return false;
	addr_copy(r->asked.ip, t->local);
	r->asked.port = t->local_port;
	r->asked.proto = t->proto;
	r->how = how;
	r->hp = *hp;
	r->ep = *ep;
	r->fresh.epoch = epoch;
	/* Another packet may meet other conditions. */
	r->fresh.until = how & SL_FOUND_IF ? 0 : now + SL_RECENT_HOLD;
	return true;
}

static __always_inline struct sl_recent_port *__port_slot(const struct sl_tuple *t)
{
	/* Ports that are used together differ in the last bits of one byte or the other. */
	__u32 i = (t->local_port ^ t->local_port >> 8) & (SL_RECENT - 1);

	return bpf_map_lookup_elem(&sl_recent_ports, &i);
}

/* The published port that a packet from outside is for, and the pod behind it; NULL: none. */
static __always_inline struct sl_recent_port *recent_port(struct __sk_buff *skb, const struct sl_pkt *p, __u64 now)
{
	struct sl_recent_port *r = __port_slot(&p->tuple);

	if (unlikely(p->echo || !r))
		return NULL;
	if (likely(recent_fresh(&r->fresh, now) && __port_asked(r, &p->tuple)))
		return r;
	if (!sl_read_port(&p->tuple, skb->ifindex, r, now))
		return NULL;
	if (!sl_gone(skb, r->ep.ifindex))
		return r;
	r->asked.proto = 0;
	return NULL;
}

/* What recent_port() has found for the packet at hand, without asking again: where there is no room on the stack for that. */
static __always_inline struct sl_recent_port *recent_port_found(const struct sl_pkt *p)
{
	struct sl_recent_port *r = __port_slot(&p->tuple);

	return r && !p->echo && __port_asked(r, &p->tuple) ? r : NULL;
}
