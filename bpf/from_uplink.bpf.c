//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Uplink, tc ingress: clients of hostPorts, answers to masqueraded flows, and
 * connections to a pod's own address. First hook of the pod's receiving
 * direction.
 */
#define SL_PROGRAM SL_PROGRAM_FROM_UPLINK
#include "lib/base/compiler.h"
#include "lib/base/config.h"
#include "lib/base/ctx.h"
#include "lib/denylist/denylist.h"
#include "lib/fastpath/fastpath.h"
#include "lib/hostport/hostport_cache.h"
#include "lib/nat/client_port.h"
#include "lib/nat/host_socket.h"
#include "lib/packet/fragment.h"
#include "lib/packet/icmp_error.h"

/* What the packet turned out to belong to. */
struct sl_ct_match {
	struct sl_tuple *key; /* of the record: the tuple as the pod sees it. Room that the caller has */
	struct sl_ct_entry *ct;
	struct sl_endpoint *ep;
};

/*
 * Does the SYN of a stranger belong to a masqueraded flow? While the pod's own has no answer: both ends open at once then
 * (RFC 9293 3.5, RFC 5382 REQ-2). Later it is of another connection.
 */
static __always_inline bool is_simultaneous_open(const struct sl_ct_entry *ct)
{
	return (ct->flags & (SL_CT_SNAT | SL_CT_REPLIED | SL_CT_CLOSING)) == SL_CT_SNAT;
}

/*
 * A masqueraded flow, by its outside tuple, or one without translation, by its own. False: none that is still valid.
 * opens: the packet is a SYN for a published port. What it can belong to has not gone on yet, and has an index: a SYN sent twice, to
 * a pod that knows the client by another port (remap.h).
 */
static __always_inline bool find_snat_or_plain(const struct sl_pkt *p, struct sl_ct_match *m, bool opens, __u64 now)
{
	struct sl_ct_entry *ct;
	bool is_reverse;

	if (opens)
		ct = client_port_opening(now) ? ct_lookup_unassured(&p->tuple, now) : NULL;
	else
		ct = ct_lookup(&p->tuple, now);
	if (!ct)
		return false;
	is_reverse = ct->flags & SL_CT_REVERSE;
	*m->key = is_reverse ? ct->other : p->tuple;
	m->ep = endpoint_lookup(m->key->local);
	if (!m->ep || m->ep->owner != ct->owner)
		return false;
	m->ct = ct;
	if (is_reverse) {
		m->ct = ct_lookup_entry(m->key, m->ep->owner, now);
		if (!m->ct) {
			/* A connection that ended leaves its index behind: only a lost half is restored. */
			if (pkt_is_syn(p) || ct_exists(m->key))
				return false;
			m->ct = ct_restore(&p->tuple, ct, now);
		}
		if (!m->ct || !tuple_equal(&m->ct->other, &p->tuple))
			return false; /* the record has moved on to another outside tuple */
		if ((m->ct->flags & SL_CT_CLIENT_PORT) &&
		    !hostport_is_current(&p->tuple, m->ct->flags & SL_CT_DNAT_ANYADDR, m->ct->hostport_generation))
			return false; /* as find_hostport() says of those without index */
		if (is_simultaneous_open(m->ct))
			return true;
	}
	return !ct_is_new_connection(m->ct, p, SL_RX);
}

/* The tuple as the pod sees it, of a packet for a mapping. */
static __always_inline void to_pod_tuple(const struct sl_pkt *p, const struct sl_hostport *hp, struct sl_tuple *key)
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
static __always_inline bool find_hostport(const struct sl_pkt *p, struct sl_hp_cache_slot *slot, struct sl_ct_match *m,
					  __u64 now)
{
	if (!slot)
		return false;
	m->ep = &slot->ep;
	to_pod_tuple(p, &slot->hp, m->key);
	m->ct = ct_lookup_entry(m->key, slot->hp.owner, now);
	return m->ct && (m->ct->flags & SL_CT_DNAT) && m->ct->hostport_generation == slot->hp.generation &&
	       tuple_equal(&m->ct->other, &p->tuple) && !ct_is_new_connection(m->ct, p, SL_RX);
}

/* Does the node await what comes under the outside tuple of the record in the scratch? A function of its own for the verifier's sake. */
__noinline int sl_node_expects(struct __sk_buff *skb)
{
	struct sl_ct_scratch *s = ct_scratch();

	return s && node_socket_expects(skb, &s->entry.other);
}

/*
 * Is old, under the tuple that p would have at the pod, another connection of the client's that still goes on: by another published
 * port or address, or to the pod's own address? One of which an end has said its last word is still the other end's.
 */
static __always_inline bool client_port_clash(const struct sl_ct_entry *old, const struct sl_pkt *p)
{
	__u32 flags = old->flags, fins = SL_CT_FIN_TX | SL_CT_FIN_RX;

	if ((flags & SL_CT_RST) || (flags & fins) == fins)
		return false;
	if (flags & SL_CT_DNAT)
		return !tuple_equal(&old->other, &p->tuple) &&
		       hostport_is_current(&old->other, flags & SL_CT_DNAT_ANYADDR, old->hostport_generation);
	return !(flags & (SL_CT_SNAT | SL_CT_POD_OPENED));
}

/* Makes the flow of a packet to a published port. SL_DROP_NONE without m->f: it is not for the port after all. */
static __always_inline enum sl_drop_reason create_hostport(struct __sk_buff *skb, const struct sl_pkt *p,
							   struct sl_ct_match *m, const struct sl_hp_cache_slot *slot,
							   __u64 now)
{
	struct sl_ct_entry *old = m->ct; /* of the same key, as find_hostport() found it */
	struct sl_ct_scratch *s;
	bool clash;

	m->ct = NULL;
	if ((slot->match & SL_HP_MATCH_ANYADDR) && !is_node_addr(p->tuple.local))
		return SL_DROP_NONE;
	if (slot->hp.port != p->tuple.local_port && !proto_has_free_ports(p->tuple.proto))
		return SL_DROP_NONE; /* not a mapping for us: the loader makes none such */
	clash = old && client_port_clash(old, p);
	s = ct_scratch();
	if (!s)
		return SL_DROP_CT_TABLE;
	ct_init(&s->entry, m->ep->owner, SL_CT_DNAT | (slot->match & SL_HP_MATCH_ANYADDR ? SL_CT_DNAT_ANYADDR : 0),
		now);
	if (slot->hp.flags & SL_HP_MASQ_ALL)
		s->entry.flags |= SL_CT_WANTS_POD_SNAT;
	s->entry.other = p->tuple;
	/* A SYN is for the hostPort as DNAT would have it; anything else may be the answer to a host's own connection. */
	if (!pkt_is_syn(p) && sl_node_expects(skb))
		return SL_DROP_NONE;
	if (!hostport_admits(&slot->hp, p->tuple.remote))
		return SL_DROP_SOURCE;
	s->entry.hostport_generation = slot->hp.generation;
	fast_confirm_now(&s->entry, skb->ifindex);
	if (clash) {
		s->key = *m->key;
		if (!client_port_allocate(p, s))
			return SL_DROP_NO_CLIENT_PORT;
		m->key->remote_port = s->key.remote_port;
	}
	m->ct = ct_insert(m->key, &s->entry);
	return m->ct ? SL_DROP_NONE : SL_DROP_CT_TABLE;
}

/* A connection that somebody opens to the pod's own address: its answers must keep that address. */
static __always_inline void create_inbound(const struct sl_pkt *p, struct sl_ct_match *m, __u64 now)
{
	struct sl_ct_scratch *s;

	if (!pkt_opens(p))
		return;
	m->ep = endpoint_lookup(p->tuple.local);
	s = ct_scratch();
	if (!m->ep || !s)
		return;
	*m->key = p->tuple;
	ct_init(&s->entry, m->ep->owner, 0, now);
	m->ct = ct_insert(m->key, &s->entry);
}

/* Finds or makes the flow of a packet. SL_DROP_NONE without m->f: it is not for us. */
static __always_inline enum sl_drop_reason classify(struct __sk_buff *skb, const struct sl_pkt *p,
						    struct sl_ct_match *m, __u64 now)
{
	struct sl_hp_cache_slot *slot = hostport_cache_reuse(p);
	enum sl_drop_reason reason;
	struct sl_ct_entry *old;

	if (find_hostport(p, slot, m, now))
		return SL_DROP_NONE;
	old = m->ct;
	/* A masqueraded flow that has this port since before it was published keeps it. */
	if (find_snat_or_plain(p, m, slot && pkt_is_syn(p), now))
		return SL_DROP_NONE;
	if (slot) {
		/* As find_hostport() had left it: a copy would not fit into the stack of kernels before 6.9. */
		to_pod_tuple(p, &slot->hp, m->key);
		m->ct = old;
		m->ep = &slot->ep;
		reason = create_hostport(skb, p, m, slot, now);
		if (reason || m->ct)
			return reason;
	}
	m->ct = NULL;
	create_inbound(p, m, now);
	return SL_DROP_NONE;
}

/*
 * An ICMP error about a packet that left the node translated: the pod gets it as if
 * about the one it sent. It belongs to the flow, and takes its way: the stack's
 * connection tracking may not have seen a packet of a short-cut flow for hours.
 */
__noinline int sl_upl_in_icmp(struct __sk_buff *skb)
{
	struct sl_slow_ctx *slow = slow_scratch();
	__u64 now = clock_now();
	struct sl_ct_match m = {};
	bool fast;

	if (!slow || !slow_parse_inner(skb, slow, SL_RX) ||
	    !addr_equal(slow->outer.p.tuple.local, slow->inner.p.tuple.local))
		return SL_NEXT;
	m.key = &slow->key;
	if (!find_hostport(&slow->inner.p, hostport_cached(skb, &slow->inner.p, now), &m, now) &&
	    !find_snat_or_plain(&slow->inner.p, &m, false, now))
		return SL_NEXT;
	if (!m.ct || !m.ep || !(m.ct->flags & SL_CT_NAT))
		return SL_NEXT;
	fast = cfg_l2_len && m.ct->policy == m.ep->policy && fast_allowed(m.ct, &slow->outer.p) &&
	       slow->outer.p.seg_len <= m.ep->mtu;
	if (icmp_rewrite_error(skb, slow, SL_RX, m.key) || (fast && slow_take_hop(skb, &slow->outer)))
		return drop(skb, SL_DROP_REWRITE, m.ep->ifindex);
	if (fast)
		return fast_to_pod(skb, m.ep);
	endpoint_set_admit_mark(skb, m.ep);
	return SL_NEXT;
}

/* The rest of a datagram goes where its first fragment went. Without that one the stack may wait for it: it may be the node's. */
__noinline int sl_upl_in_frag(struct __sk_buff *skb)
{
	struct sl_slow_ctx *slow = slow_scratch();
	struct sl_endpoint *ep;
	struct sl_frag *fr;
	__u8 to[16];

	fr = slow ? frag_lookup(&slow->outer, SL_RX, clock_now()) : NULL;
	if (!fr)
		return SL_NEXT;
	addr_copy(to, fr->to);
	ep = endpoint_lookup(to);
	if (slow_rewrite_addr(skb, &slow->outer, false, to))
		return drop(skb, SL_DROP_REWRITE, ep ? ep->ifindex : 0);
	if (ep)
		endpoint_set_admit_mark(skb, ep);
	return SL_NEXT;
}

/*
 * A packet that cannot take the shortcut, in the scratch's outer: the first of a flow, or one that the second parser has
 * read. hostport_cached() has been asked for it. A function of its own, so that the verifier walks it once and the shortcut stays short.
 */
__noinline int sl_upl_in_slow(struct __sk_buff *skb)
{
	struct sl_slow_ctx *slow = slow_scratch();
	__u64 now = clock_now();
	enum sl_drop_reason reason;
	struct sl_ct_match m = {};
	bool fast;

	if (!slow)
		return SL_NEXT;
	m.key = &slow->key;
	reason = classify(skb, &slow->outer.p, &m, now);
	if (reason)
		return drop(skb, reason, m.ep ? m.ep->ifindex : 0);
	if (!m.ct || !m.ep) {
		if (slow->outer.first_frag)
			frag_forget(&slow->outer, SL_RX);
		return SL_NEXT;
	}
	m.ct = ct_update(m.key, m.ct, &slow->outer.p, SL_RX, skb->len, now);
	fast = cfg_fast_path == SL_FAST_DIRECT && (m.ct->flags & SL_CT_DNAT) && !slow->outer.first_frag &&
	       m.ct->policy == m.ep->policy && fast_allowed(m.ct, &slow->outer.p) && slow->outer.p.seg_len <= m.ep->mtu;
	if (slow_rewrite(skb, &slow->outer, SL_RX, m.key) || (fast && slow_take_hop(skb, &slow->outer)))
		return drop(skb, SL_DROP_REWRITE, m.ep->ifindex);
	if (fast)
		return fast_to_pod(skb, m.ep);
	if (m.ct->flags & (SL_CT_NAT | SL_CT_POD_OPENED)) {
		if (slow->outer.first_frag)
			frag_note(&slow->outer, SL_RX, m.key->local, now);
		endpoint_set_admit_mark(skb, m.ep);
	}
	return SL_NEXT;
}

/* The deny list, where no XDP program can look at it: that one expects an Ethernet header. */
static __always_inline bool source_is_denied(const __u8 *source)
{
	struct sl_cidr key = {.prefix_len = 128};

	addr_copy(key.ip, source);
	return denylist_match(&key);
}

/* What the first parser left: see odd.h. No function: the frames of what it calls would be too many. */
static __always_inline int uplink_in_slow(struct __sk_buff *skb)
{
	__u32 kind = (__u32)sl_slow_parse(skb, cfg_l2_len, SL_RX, 0);
	struct sl_slow_ctx *slow = slow_scratch();

	if (!slow || kind == SL_SLOW_NONE)
		return SL_NEXT;
	/* What sl_from_uplink() looks for, in what comes without Ethernet header. */
	if (addr_is_loopback(slow->outer.p.tuple.local) || addr_is_loopback(slow->outer.p.tuple.remote))
		return drop(skb, SL_DROP_LOOPBACK, 0);
	if (!cfg_l2_len && source_is_denied(slow->outer.p.tuple.remote))
		return drop(skb, SL_DROP_DENIED, 0);
	switch (kind) {
	case SL_SLOW_ICMP_ERROR:
		return sl_upl_in_icmp(skb);
	case SL_SLOW_FRAG_NEXT:
		return sl_upl_in_frag(skb);
	case SL_SLOW_L4:
		hostport_cached(skb, &slow->outer.p, clock_now());
		return sl_upl_in_slow(skb);
	default:
		return SL_NEXT;
	}
}

SEC("tc")
int sl_from_uplink(struct __sk_buff *skb)
{
	__u64 now = clock_now();
	struct sl_hp_cache_slot *slot;
	struct sl_tuple key;
	struct sl_ct_match m = {.key = &key};
	enum sl_parsed parsed;
	struct sl_pkt p = {};
	bool fast;

	if (!cfg_l2_len) /* nor link addresses: all is for the node */
		return uplink_in_slow(skb);
	if (unlikely(skb->pkt_type == PACKET_OTHERHOST))
		return SL_NEXT;
	parsed = parse_packet(skb, &p, SL_RX);
	/* The stack takes off all tags of VLAN 0 and would go on with a packet that nothing here has looked at. */
	if (unlikely(parsed == SL_PARSED_PRIO_STACKED))
		return drop(skb, SL_DROP_UNPARSABLE, 0);
	/* Should somebody have set route_localnet, what is bound to 127.0.0.1 is still the node's own (CVE-2020-8558). */
	if (parsed >= SL_PARSED_L3 && unlikely(addr_is_loopback(p.tuple.local) || addr_is_loopback(p.tuple.remote)))
		return drop(skb, SL_DROP_LOOPBACK, 0);
	if (unlikely(skb->pkt_type != PACKET_HOST))
		return SL_NEXT;
	if (unlikely(parsed != SL_PARSED_L4))
		return parsed == SL_PARSED_L3 ? uplink_in_slow(skb) : SL_NEXT;
	slot = hostport_cached(skb, &p, now);
	/* Never on the shortcut, and mostly without a flow to find. */
	if (unlikely(pkt_is_syn(&p)))
		return slow_ctx_init(&p) ? sl_upl_in_slow(skb) : SL_NEXT;
	/* A masqueraded flow that has a port since before it was published keeps it. */
	if (unlikely(!find_hostport(&p, slot, &m, now)) && !find_snat_or_plain(&p, &m, false, now)) {
		/* Nothing of ours: most of what comes for the node itself. */
		if (!slot && !(pkt_opens(&p) && endpoint_lookup(p.tuple.local)))
			return SL_NEXT;
		return slow_ctx_init(&p) ? sl_upl_in_slow(skb) : SL_NEXT;
	}
	if (unlikely(!m.ct || !m.ep))
		return SL_NEXT;
	m.ct = ct_update(m.key, m.ct, &p, SL_RX, skb->len, now);
	/* Under another policy than its verdict is of, it has to see sl_to_pod. */
	fast = fast_allowed(m.ct, &p) && p.seg_len <= m.ep->mtu && m.ct->policy == m.ep->policy;
	if (unlikely(m.ct->flags & SL_CT_CLIENT_PORT) && rewrite_remote_port(skb, &p, SL_RX, m.key))
		return drop(skb, SL_DROP_REWRITE, m.ep->ifindex);
	if (unlikely(rewrite_packet(skb, &p, SL_RX, m.key, fast)))
		return drop(skb, SL_DROP_REWRITE, m.ep->ifindex);
	if (likely(fast)) {
		ct_delete_if_closed(m.key, m.ct, &p);
		return fast_to_pod(skb, m.ep);
	}
	if (m.ct->flags & (SL_CT_NAT | SL_CT_POD_OPENED))
		endpoint_set_admit_mark(skb, m.ep);
	return SL_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
