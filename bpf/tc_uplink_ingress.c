//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Uplink, tc ingress: clients of hostPorts, answers to masqueraded flows, and
 * connections to a pod's own address. First hook of the pod's receiving
 * direction.
 */
#include "lib/compiler.h"
#include "lib/config.h"
#include "lib/fast.h"
#include "lib/hostport.h"
#include "lib/sock.h"

/* What the packet turned out to belong to. */
struct sl_match {
	struct sl_tuple key; /* of the record: the tuple as the pod sees it */
	struct sl_flow *f;
	struct sl_endpoint *ep;
};

/* A flow we know, by its outside tuple or, untranslated, by its own. False: none that is still valid. */
static __always_inline bool __known(const struct sl_pkt *p, struct sl_match *m, __u64 now)
{
	struct sl_flow *f = flow_lookup(&p->tuple, now);
	bool index;

	if (!f)
		return false;
	index = f->flags & SL_FLOW_INDEX;
	m->key = index ? f->other : p->tuple;
	m->ep = endpoint_lookup(m->key.local);
	if (!m->ep || m->ep->owner != f->owner)
		return false;
	if (index) {
		/* The hostPort moved to another pod: so does whoever talks to it. */
		if ((f->flags & SL_FLOW_DNAT) &&
		    !hostport_still(&p->tuple, f->flags & SL_FLOW_DNAT_ANY, f->hostport_gen))
			return false;
		m->f = flow_record(&m->key, m->ep->owner, now);
		if (!m->f) {
			/* A connection that ended leaves its index behind: only a lost half is restored. */
			if (pkt_is_syn(p) || flow_exists(&m->key))
				return false;
			m->f = flow_restore(&p->tuple, f, now);
		}
		if (!m->f || !tuple_equal(&m->f->other, &p->tuple))
			return false; /* the record has moved on to another outside tuple */
	} else {
		m->f = f;
	}
	return !flow_reopened(m->f, p, SL_RX);
}

/*
 * A packet to a published port: finds or makes its flow. Returns SL_DROP_NONE
 * with m->f set, or with m->f NULL when the packet is not for us.
 */
static __always_inline enum sl_drop_reason __publish(struct __sk_buff *skb, const struct sl_pkt *p, struct sl_match *m,
						     __u64 now)
{
	struct sl_flow_scratch *s;
	struct sl_hostport *hp;
	struct sl_flow *old;
	bool any;

	m->f = NULL;
	hp = hostport_lookup(&p->tuple, &any);
	if (!hp)
		return SL_DROP_NONE;
	m->ep = endpoint_lookup(hp->ip);
	if (!m->ep || m->ep->owner != hp->owner)
		return SL_DROP_NONE;
	m->key = p->tuple;
	addr_copy(m->key.local, hp->ip);
	m->key.local_port = hp->port;
	old = flow_record(&m->key, m->ep->owner, now);
	if (old && (old->flags & SL_FLOW_DNAT) && !flow_reopened(old, p, SL_RX)) {
		bool same = tuple_equal(&old->other, &p->tuple);

		if (same && old->hostport_gen == hp->gen) {
			if (old->flags & SL_FLOW_ASSURED)
				flow_ensure_index(&m->key, old);
			m->f = old;
			return SL_DROP_NONE;
		}
		if (!same && !(old->flags & SL_FLOW_CLOSING) &&
		    hostport_still(&old->other, old->flags & SL_FLOW_DNAT_ANY, old->hostport_gen))
			return SL_DROP_TUPLE_CLASH;
	}
	/* A SYN is for the hostPort as DNAT would have it; anything else may be the answer to a host's own connection. */
	if (!pkt_is_syn(p) && sock_lookup(skb, &p->tuple) == SL_SOCK_CONNECTED)
		return SL_DROP_NONE;
	s = flow_scratch();
	if (!s)
		return SL_DROP_FLOW_TABLE;
	flow_init(&s->rec, m->ep->owner, SL_FLOW_DNAT | (any ? SL_FLOW_DNAT_ANY : 0), now);
	s->rec.other = p->tuple;
	s->rec.hostport_gen = hp->gen;
	/* No index before it is proven: until then the mapping itself leads here. */
	m->f = flow_insert(&m->key, &s->rec);
	return m->f ? SL_DROP_NONE : SL_DROP_FLOW_TABLE;
}

/* A connection that somebody opens to the pod's own address: its answers must keep that address. */
static __always_inline bool __inbound(const struct sl_pkt *p, struct sl_match *m, __u64 now)
{
	struct sl_flow_scratch *s;

	if (!pkt_opens(p))
		return false;
	m->ep = endpoint_lookup(p->tuple.local);
	s = flow_scratch();
	if (!m->ep || !s)
		return false;
	m->key = p->tuple;
	flow_init(&s->rec, m->ep->owner, 0, now);
	m->f = flow_insert(&m->key, &s->rec);
	return m->f != NULL;
}

SEC("tc")
int sl_upl_ingress(struct __sk_buff *skb)
{
	__u64 now = bpf_ktime_get_ns();
	enum sl_drop_reason reason;
	struct sl_match m = {};
	struct sl_pkt p = {};
	bool fast;

	if (skb->pkt_type != PACKET_HOST || parse_packet(skb, &p, SL_RX) != SL_PARSED_L4)
		return SL_PASS;
	if (!__known(&p, &m, now)) {
		reason = __publish(skb, &p, &m, now);
		if (reason)
			return drop(reason, m.ep ? m.ep->ifindex : 0);
		if (!m.f && !__inbound(&p, &m, now))
			return SL_PASS;
	}
	if (!m.f || !m.ep)
		return SL_PASS;
	m.f = flow_touch(&m.key, m.f, &p, SL_RX, skb->len, now);
	fast = fast_allowed(m.f, &p) && p.seg_len <= m.ep->mtu;
	if (rewrite_packet(skb, &p, SL_RX, &m.key, fast))
		return drop(SL_DROP_REWRITE, m.ep->ifindex);
	if (fast)
		return fast_to_pod(skb, m.ep);
	if (m.f->flags & (SL_FLOW_NAT | SL_FLOW_POD_OPENED))
		endpoint_mark(skb, m.ep);
	return SL_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
