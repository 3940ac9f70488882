//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Uplink, tc ingress: clients of hostPorts, answers to masqueraded flows, and
 * connections to a pod's own address. First hook of the pod's receiving
 * direction.
 */
#define SL_PROGRAM SL_PROGRAM_UPLINK_INGRESS
#include "lib/compiler.h"
#include "lib/config.h"
#include "lib/deny.h"
#include "lib/fast.h"
#include "lib/frag.h"
#include "lib/icmp.h"
#include "lib/recent_port.h"
#include "lib/remap.h"
#include "lib/sock.h"

/* What the packet turned out to belong to. */
struct sl_match {
	struct sl_tuple *key; /* of the record: the tuple as the pod sees it. Room that the caller has */
	struct sl_flow *f;
	struct sl_endpoint *ep;
};

/*
 * Does the SYN of a stranger belong to a masqueraded flow? While the pod's own has no answer: both ends open at once then
 * (RFC 9293 3.5, RFC 5382 REQ-2). Later it is of another connection.
 */
static __always_inline bool __opens_too(const struct sl_flow *f)
{
	return (f->flags & (SL_FLOW_SNAT | SL_FLOW_REPLIED | SL_FLOW_CLOSING)) == SL_FLOW_SNAT;
}

/*
 * A masqueraded flow, by its outside tuple, or one without translation, by its own. False: none that is still valid.
 * opens: the packet is a SYN for a published port. What it can belong to has not gone on yet, and has an index: a SYN sent twice, to
 * a pod that knows the client by another port (remap.h).
 */
static __always_inline bool __known(const struct sl_pkt *p, struct sl_match *m, bool opens, __u64 now)
{
	struct sl_flow *f;
	bool index;

	if (opens)
		f = remap_opening(now) ? flow_lookup_new(&p->tuple, now) : NULL;
	else
		f = flow_lookup(&p->tuple, now);
	if (!f)
		return false;
	index = f->flags & SL_FLOW_INDEX;
	*m->key = index ? f->other : p->tuple;
	m->ep = endpoint_lookup(m->key->local);
	if (!m->ep || m->ep->owner != f->owner)
		return false;
	m->f = f;
	if (index) {
		m->f = flow_record(m->key, m->ep->owner, now);
		if (!m->f) {
			/* A connection that ended leaves its index behind: only a lost half is restored. */
			if (pkt_is_syn(p) || flow_exists(m->key))
				return false;
			m->f = flow_restore(&p->tuple, f, now);
		}
		if (!m->f || !tuple_equal(&m->f->other, &p->tuple))
			return false; /* the record has moved on to another outside tuple */
		if ((m->f->flags & SL_FLOW_REMAP) &&
		    !hostport_still(&p->tuple, m->f->flags & SL_FLOW_DNAT_ANY, m->f->hostport_gen))
			return false; /* as __published() says of those without index */
		if (__opens_too(m->f))
			return true;
	}
	return !flow_reopened(m->f, p, SL_RX);
}

/* The tuple as the pod sees it, of a packet for a mapping. */
static __always_inline void __to_pod(const struct sl_pkt *p, const struct sl_hostport *hp, struct sl_tuple *key)
{
	*key = p->tuple;
	addr_copy(key->local, hp->ip);
	key->local_port = hp->port;
}

/*
 * Finds the flow of a packet for a published port (NULL: for none), if there is one: the
 * mapping itself leads to the record, which needs no index therefore. A record
 * of another generation is not ours: the port has a new owner, and so has whoever
 * talks to it. True: the flow, in m. Else m->key and
 * m->ep are set for making one.
 */
static __always_inline bool __published(const struct sl_pkt *p, struct sl_recent_port *port, struct sl_match *m,
					__u64 now)
{
	if (!port)
		return false;
	m->ep = &port->ep;
	__to_pod(p, &port->hp, m->key);
	m->f = flow_record(m->key, port->hp.owner, now);
	return m->f && (m->f->flags & SL_FLOW_DNAT) && m->f->hostport_gen == port->hp.gen &&
	       tuple_equal(&m->f->other, &p->tuple) && !flow_reopened(m->f, p, SL_RX);
}

/* Does the node await what comes under the outside tuple of the record in the scratch? A function of its own for the verifier's sake. */
__noinline int sl_sock_other(struct __sk_buff *skb)
{
	struct sl_flow_scratch *s = flow_scratch();

	return s && sock_awaits(skb, &s->rec.other);
}

/*
 * Is old, under the tuple that p would have at the pod, another connection of the client's that still goes on: by another published
 * port or address, or to the pod's own address? One of which an end has said its last word is still the other end's.
 */
static __always_inline bool __clashes(const struct sl_flow *old, const struct sl_pkt *p)
{
	__u32 flags = old->flags, fins = SL_FLOW_FIN_TX | SL_FLOW_FIN_RX;

	if ((flags & SL_FLOW_RST) || (flags & fins) == fins)
		return false;
	if (flags & SL_FLOW_DNAT)
		return !tuple_equal(&old->other, &p->tuple) &&
		       hostport_still(&old->other, flags & SL_FLOW_DNAT_ANY, old->hostport_gen);
	return !(flags & (SL_FLOW_SNAT | SL_FLOW_POD_OPENED));
}

/* Makes the flow of a packet to a published port. SL_DROP_NONE without m->f: it is not for the port after all. */
static __always_inline enum sl_drop_reason __publish(struct __sk_buff *skb, const struct sl_pkt *p, struct sl_match *m,
						     const struct sl_recent_port *port, __u64 now)
{
	struct sl_flow *old = m->f; /* of the same key, as __published() found it */
	struct sl_flow_scratch *s;
	bool clash;

	m->f = NULL;
	if ((port->how & SL_FOUND_ANY) && !is_host_addr(p->tuple.local))
		return SL_DROP_NONE;
	if (port->hp.port != p->tuple.local_port && !proto_has_free_ports(p->tuple.proto))
		return SL_DROP_NONE; /* not a mapping for us: the loader makes none such */
	clash = old && __clashes(old, p);
	s = flow_scratch();
	if (!s)
		return SL_DROP_FLOW_TABLE;
	flow_init(&s->rec, m->ep->owner, SL_FLOW_DNAT | (port->how & SL_FOUND_ANY ? SL_FLOW_DNAT_ANY : 0), now);
	if (port->hp.flags & SL_HP_MASQ_ALL)
		s->rec.flags |= SL_FLOW_MASQ;
	s->rec.other = p->tuple;
	/* A SYN is for the hostPort as DNAT would have it; anything else may be the answer to a host's own connection. */
	if (!pkt_is_syn(p) && sl_sock_other(skb))
		return SL_DROP_NONE;
	if (!hostport_admits(&port->hp, p->tuple.remote))
		return SL_DROP_SOURCE;
	s->rec.hostport_gen = port->hp.gen;
	fast_direct(&s->rec, skb->ifindex);
	if (clash) {
		s->key = *m->key;
		if (!remap_allocate(p, s))
			return SL_DROP_TUPLE_CLASH;
		m->key->remote_port = s->key.remote_port;
	}
	m->f = flow_insert(m->key, &s->rec);
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
	*m->key = p->tuple;
	flow_init(&s->rec, m->ep->owner, 0, now);
	m->f = flow_insert(m->key, &s->rec);
}

/* Finds or makes the flow of a packet. SL_DROP_NONE without m->f: it is not for us. */
static __always_inline enum sl_drop_reason __match(struct __sk_buff *skb, const struct sl_pkt *p, struct sl_match *m,
						   __u64 now)
{
	struct sl_recent_port *port = recent_port_found(p);
	enum sl_drop_reason reason;
	struct sl_flow *old;

	if (__published(p, port, m, now))
		return SL_DROP_NONE;
	old = m->f;
	/* A masqueraded flow that has this port since before it was published keeps it. */
	if (__known(p, m, port && pkt_is_syn(p), now))
		return SL_DROP_NONE;
	if (port) {
		/* As __published() had left it: a copy would not fit into the stack of kernels before 6.9. */
		__to_pod(p, &port->hp, m->key);
		m->f = old;
		m->ep = &port->ep;
		reason = __publish(skb, p, m, port, now);
		if (reason || m->f)
			return reason;
	}
	m->f = NULL;
	__inbound(p, m, now);
	return SL_DROP_NONE;
}

/*
 * An ICMP error about a packet that left the node translated: the pod gets it as if
 * about the one it sent. It belongs to the flow, and takes its way: the stack's
 * connection tracking may not have seen a packet of a short-cut flow for hours.
 */
__noinline int sl_error_in(struct __sk_buff *skb)
{
	struct sl_odd *o = odd_scratch();
	__u64 now = clock_now();
	struct sl_match m = {};
	bool fast;

	if (!o || !odd_parse_inner(skb, o, SL_RX) || !addr_equal(o->outer.p.tuple.local, o->inner.p.tuple.local))
		return SL_PASS;
	m.key = &o->key;
	if (!__published(&o->inner.p, recent_port(skb, &o->inner.p, now), &m, now) &&
	    !__known(&o->inner.p, &m, false, now))
		return SL_PASS;
	if (!m.f || !m.ep || !(m.f->flags & SL_FLOW_NAT))
		return SL_PASS;
	fast = cfg_l2_len && m.f->policy == m.ep->policy && fast_allowed(m.f, &o->outer.p) &&
	       o->outer.p.seg_len <= m.ep->mtu;
	if (icmp_rewrite_error(skb, o, SL_RX, m.key) || (fast && odd_hop(skb, &o->outer)))
		return drop(skb, SL_DROP_REWRITE, m.ep->ifindex);
	if (fast)
		return fast_to_pod(skb, m.ep);
	endpoint_mark(skb, m.ep);
	return SL_PASS;
}

/* The rest of a datagram goes where its first fragment went. Without that one the stack may wait for it: it may be the node's. */
__noinline int sl_later_in(struct __sk_buff *skb)
{
	struct sl_odd *o = odd_scratch();
	struct sl_endpoint *ep;
	struct sl_frag *fr;
	__u8 to[16];

	fr = o ? frag_lookup(&o->outer, SL_RX, clock_now()) : NULL;
	if (!fr)
		return SL_PASS;
	addr_copy(to, fr->to);
	ep = endpoint_lookup(to);
	if (odd_rewrite_addr(skb, &o->outer, false, to))
		return drop(skb, SL_DROP_REWRITE, ep ? ep->ifindex : 0);
	if (ep)
		endpoint_mark(skb, ep);
	return SL_PASS;
}

/*
 * A packet that cannot take the shortcut, in the scratch's outer: the first of a flow, or one that the second parser has
 * read. recent_port() has been asked for it. A function of its own, so that the verifier walks it once and the shortcut stays short.
 */
__noinline int sl_slow_in(struct __sk_buff *skb)
{
	struct sl_odd *o = odd_scratch();
	__u64 now = clock_now();
	enum sl_drop_reason reason;
	struct sl_match m = {};
	bool fast;

	if (!o)
		return SL_PASS;
	m.key = &o->key;
	reason = __match(skb, &o->outer.p, &m, now);
	if (reason)
		return drop(skb, reason, m.ep ? m.ep->ifindex : 0);
	if (!m.f || !m.ep) {
		if (o->outer.more)
			frag_forget(&o->outer, SL_RX);
		return SL_PASS;
	}
	m.f = flow_touch(m.key, m.f, &o->outer.p, SL_RX, skb->len, now);
	fast = cfg_fast_path == SL_FAST_DIRECT && (m.f->flags & SL_FLOW_DNAT) && !o->outer.more &&
	       m.f->policy == m.ep->policy && fast_allowed(m.f, &o->outer.p) && o->outer.p.seg_len <= m.ep->mtu;
	if (odd_rewrite(skb, &o->outer, SL_RX, m.key) || (fast && odd_hop(skb, &o->outer)))
		return drop(skb, SL_DROP_REWRITE, m.ep->ifindex);
	if (fast)
		return fast_to_pod(skb, m.ep);
	if (m.f->flags & (SL_FLOW_NAT | SL_FLOW_POD_OPENED)) {
		if (o->outer.more)
			frag_note(&o->outer, SL_RX, m.key->local, now);
		endpoint_mark(skb, m.ep);
	}
	return SL_PASS;
}

/* The deny list, where no XDP program can look at it: that one expects an Ethernet header. */
static __always_inline bool __denied(const __u8 *source)
{
	struct sl_cidr key = {.prefix_len = 128};

	addr_copy(key.ip, source);
	return denied(&key);
}

/* What the first parser left: see odd.h. No function: the frames of what it calls would be too many. */
static __always_inline int __odd(struct __sk_buff *skb)
{
	__u32 kind = (__u32)sl_odd_parse(skb, cfg_l2_len, SL_RX, 0);
	struct sl_odd *o = odd_scratch();

	if (!o || kind == SL_ODD_NONE)
		return SL_PASS;
	/* What sl_upl_ingress() looks for, in what comes without Ethernet header. */
	if (addr_is_loopback(o->outer.p.tuple.local) || addr_is_loopback(o->outer.p.tuple.remote))
		return drop(skb, SL_DROP_LOOPBACK, 0);
	if (!cfg_l2_len && __denied(o->outer.p.tuple.remote))
		return drop(skb, SL_DROP_DENIED, 0);
	switch (kind) {
	case SL_ODD_ERROR:
		return sl_error_in(skb);
	case SL_ODD_LATER:
		return sl_later_in(skb);
	case SL_ODD_L4:
		recent_port(skb, &o->outer.p, clock_now());
		return sl_slow_in(skb);
	default:
		return SL_PASS;
	}
}

SEC("tc")
int sl_upl_ingress(struct __sk_buff *skb)
{
	__u64 now = clock_now();
	struct sl_recent_port *port;
	struct sl_tuple key;
	struct sl_match m = {.key = &key};
	enum sl_parsed parsed;
	struct sl_pkt p = {};
	bool fast;

	if (!cfg_l2_len) /* nor link addresses: all is for the node */
		return __odd(skb);
	if (unlikely(skb->pkt_type == PACKET_OTHERHOST))
		return SL_PASS;
	parsed = parse_packet(skb, &p, SL_RX);
	/* Should somebody have set route_localnet, what is bound to 127.0.0.1 is still the node's own (CVE-2020-8558). */
	if (parsed >= SL_PARSED_L3 && unlikely(addr_is_loopback(p.tuple.local) || addr_is_loopback(p.tuple.remote)))
		return drop(skb, SL_DROP_LOOPBACK, 0);
	if (unlikely(skb->pkt_type != PACKET_HOST))
		return SL_PASS;
	if (unlikely(parsed != SL_PARSED_L4))
		return parsed == SL_PARSED_L3 ? __odd(skb) : SL_PASS;
	port = recent_port(skb, &p, now);
	/* Never on the shortcut, and mostly without a flow to find. */
	if (unlikely(pkt_is_syn(&p)))
		return odd_from_plain(&p) ? sl_slow_in(skb) : SL_PASS;
	/* A masqueraded flow that has a port since before it was published keeps it. */
	if (unlikely(!__published(&p, port, &m, now)) && !__known(&p, &m, false, now)) {
		/* Nothing of ours: most of what comes for the node itself. */
		if (!port && !(pkt_opens(&p) && endpoint_lookup(p.tuple.local)))
			return SL_PASS;
		return odd_from_plain(&p) ? sl_slow_in(skb) : SL_PASS;
	}
	if (unlikely(!m.f || !m.ep))
		return SL_PASS;
	m.f = flow_touch(m.key, m.f, &p, SL_RX, skb->len, now);
	/* Under another policy than its verdict is of, it has to see sl_pod_ingress. */
	fast = fast_allowed(m.f, &p) && p.seg_len <= m.ep->mtu && m.f->policy == m.ep->policy;
	if (unlikely(m.f->flags & SL_FLOW_REMAP) && rewrite_remote_port(skb, &p, SL_RX, m.key))
		return drop(skb, SL_DROP_REWRITE, m.ep->ifindex);
	if (unlikely(rewrite_packet(skb, &p, SL_RX, m.key, fast)))
		return drop(skb, SL_DROP_REWRITE, m.ep->ifindex);
	if (likely(fast)) {
		flow_end(m.key, m.f, &p);
		return fast_to_pod(skb, m.ep);
	}
	if (m.f->flags & (SL_FLOW_NAT | SL_FLOW_POD_OPENED))
		endpoint_mark(skb, m.ep);
	return SL_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
