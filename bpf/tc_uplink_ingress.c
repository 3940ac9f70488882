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

/* A masqueraded flow, by its outside tuple, or one without translation, by its own. False: none that is still valid. */
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
	m->f = f;
	if (index) {
		m->f = flow_record(&m->key, m->ep->owner, now);
		if (!m->f) {
			/* A connection that ended leaves its index behind: only a lost half is restored. */
			if (pkt_is_syn(p) || flow_exists(&m->key))
				return false;
			m->f = flow_restore(&p->tuple, f, now);
		}
		if (!m->f || !tuple_equal(&m->f->other, &p->tuple))
			return false; /* the record has moved on to another outside tuple */
	}
	return !flow_reopened(m->f, p, SL_RX);
}

/* The published port a packet is for, if any. */
struct sl_published {
	struct sl_hostport *hp;
	__u64 any; /* 1: found under the any address */
};

/*
 * Finds the mapping that a packet is for, and its flow if there is one: the
 * mapping itself leads to the record, which needs no index therefore. A record
 * of another generation is not ours: the port has a new owner, and so has whoever
 * talks to it. True: the flow, in m. Else pub->hp is the mapping to make one by, and m->key and
 * m->ep are set for it.
 */
static __always_inline bool __published(const struct sl_pkt *p, struct sl_match *m, struct sl_published *pub, __u64 now)
{
	bool any = false;

	pub->hp = NULL;
	if (p->echo)
		return false;
	pub->hp = hostport_lookup(&p->tuple, &any);
	pub->any = any;
	if (!pub->hp)
		return false;
	m->ep = endpoint_lookup(pub->hp->ip);
	if (!m->ep || m->ep->owner != pub->hp->owner) {
		pub->hp = NULL;
		return false;
	}
	m->key = p->tuple;
	addr_copy(m->key.local, pub->hp->ip);
	m->key.local_port = pub->hp->port;
	m->f = flow_record(&m->key, m->ep->owner, now);
	return m->f && (m->f->flags & SL_FLOW_DNAT) && m->f->hostport_gen == pub->hp->gen &&
	       tuple_equal(&m->f->other, &p->tuple) && !flow_reopened(m->f, p, SL_RX);
}

/* Makes the flow of a packet to a published port. SL_DROP_NONE without m->f: it is not for the port after all. */
static __always_inline enum sl_drop_reason __publish(struct __sk_buff *skb, const struct sl_pkt *p, struct sl_match *m,
						     const struct sl_published *pub, __u64 now)
{
	struct sl_flow *old = m->f; /* of the same key, as __published() found it */
	struct sl_flow_scratch *s;

	m->f = NULL;
	if (pub->any && !is_host_addr(p->tuple.local))
		return SL_DROP_NONE;
	if (old && (old->flags & SL_FLOW_DNAT) && !(old->flags & SL_FLOW_CLOSING) && !flow_reopened(old, p, SL_RX) &&
	    !tuple_equal(&old->other, &p->tuple) &&
	    hostport_still(&old->other, old->flags & SL_FLOW_DNAT_ANY, old->hostport_gen))
		return SL_DROP_TUPLE_CLASH;
	/* A SYN is for the hostPort as DNAT would have it; anything else may be the answer to a host's own connection. */
	if (!pkt_is_syn(p) && sock_lookup(skb, &p->tuple) == SL_SOCK_CONNECTED)
		return SL_DROP_NONE;
	s = flow_scratch();
	if (!s)
		return SL_DROP_FLOW_TABLE;
	flow_init(&s->rec, m->ep->owner, SL_FLOW_DNAT | (pub->any ? SL_FLOW_DNAT_ANY : 0), now);
	s->rec.other = p->tuple;
	s->rec.hostport_gen = pub->hp->gen;
	m->f = flow_insert(&m->key, &s->rec);
	return m->f ? SL_DROP_NONE : SL_DROP_FLOW_TABLE;
}

/* A connection that somebody opens to the pod's own address: its answers must keep that address. */
static __always_inline void __inbound(const struct sl_pkt *p, struct sl_match *m, __u64 now)
{
	struct sl_flow_scratch *s;

	if (!pkt_opens(p))
		return;
	m->ep = endpoint_lookup(p->tuple.local);
	s = flow_scratch();
	if (!m->ep || !s)
		return;
	m->key = p->tuple;
	flow_init(&s->rec, m->ep->owner, 0, now);
	m->f = flow_insert(&m->key, &s->rec);
}

/* Finds or makes the flow of a packet. SL_DROP_NONE without m->f: it is not for us. */
static __always_inline enum sl_drop_reason __match(struct __sk_buff *skb, const struct sl_pkt *p, struct sl_match *m,
						   __u64 now)
{
	struct sl_match to_port = {};
	struct sl_published pub;
	enum sl_drop_reason reason;

	if (__published(p, &to_port, &pub, now)) {
		*m = to_port;
		return SL_DROP_NONE;
	}
	/* A masqueraded flow that has this port since before it was published keeps it. */
	if (__known(p, m, now))
		return SL_DROP_NONE;
	if (pub.hp) {
		reason = __publish(skb, p, &to_port, &pub, now);
		*m = to_port;
		if (reason || m->f)
			return reason;
	}
	m->f = NULL;
	__inbound(p, m, now);
	return SL_DROP_NONE;
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
	reason = __match(skb, &p, &m, now);
	if (reason)
		return drop(reason, m.ep ? m.ep->ifindex : 0);
	if (!m.f || !m.ep)
		return SL_PASS;
	m.f = flow_touch(&m.key, m.f, &p, SL_RX, skb->len, now);
	fast = fast_allowed(m.f, &p) && p.seg_len <= m.ep->mtu;
	if (rewrite_packet(skb, &p, SL_RX, &m.key, fast))
		return drop(SL_DROP_REWRITE, m.ep->ifindex);
	if (fast) {
		flow_end(&m.key, m.f, &p);
		return fast_to_pod(skb, m.ep);
	}
	if (m.f->flags & (SL_FLOW_NAT | SL_FLOW_POD_OPENED))
		endpoint_mark(skb, m.ep);
	return SL_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
