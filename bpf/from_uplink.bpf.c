//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Uplink, tc ingress: clients of hostPorts, answers to masqueraded connections, and connections to
 * a pod's own address. First hook of the pod's receiving direction.
 */
#define SL_PROGRAM SL_PROGRAM_FROM_UPLINK
#include "lib/base/compiler.h"
#include "lib/base/config.h"
#include "lib/base/ctx.h"
#include "lib/denylist/denylist.h"
#include "lib/fastpath/again.h"
#include "lib/fastpath/bare.h"
#include "lib/fastpath/fastpath.h"
#include "lib/fastpath/source_route.h"
#include "lib/hostport/hostport_cache.h"
#include "lib/nat/addr_forwarded.h"
#include "lib/nat/client_port.h"
#include "lib/nat/host_socket.h"
#include "lib/nat/hostport_answer.h"
#include "lib/nat/nf_nat.h"
#include "lib/nat/node_port.h"
#include "lib/nat/outside_match.h"
#include "lib/nat/tunnel.h"
#include "lib/packet/fragment.h"
#include "lib/packet/icmp_error.h"

/* Sets key to the tuple as the pod sees it, for a packet to the mapping hp. */
static __always_inline void to_pod_tuple(const struct sl_pkt *p, const struct sl_hostport *hp, struct sl_tuple *key)
{
	*key = p->tuple;
	addr_copy(key->local, hp->ip);
	key->local_port = hp->port;
}

/*
 * Finds the connection of a packet to a published port. slot: the mapping, or NULL. The mapping
 * itself leads to the entry, so it needs no reverse entry. An entry of another generation does not
 * count: the port has a new owner. True: the connection is in m. False: m->key and m->ep are set
 * for a new one, m->ct is the old entry of the same key.
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

/*
 * Does the node expect a packet with the outside tuple?
 * in: ct_scratch()->entry.other. A function of its own for the verifier.
 */
__noinline int sl_node_expects(struct __sk_buff *skb)
{
	struct sl_ct_scratch *s = ct_scratch();

	return s && node_socket_expects(skb, &s->entry.other);
}

/*
 * Is old, under the tuple that p would have at the pod, another connection of the client that still
 * goes on? It uses another published port or address, or the pod's own address. A connection that
 * one end has closed still belongs to the other end.
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

/*
 * Creates the entry of a packet to a published port. SL_DROP_NONE without m->ct: the packet is not
 * for the port after all.
 */
static __always_inline enum sl_drop_reason create_hostport(struct __sk_buff *skb, const struct sl_pkt *p,
							   struct sl_ct_match *m, struct sl_hp_cache_slot *slot,
							   __u64 now)
{
	struct sl_ct_entry *old = m->ct; /* of the same key, found by find_hostport() */
	struct sl_ct_scratch *s;
	bool clash;

	m->ct = NULL;
	if (!(slot->match & SL_HP_MATCH_NODE_ADDR)) {
		if ((slot->match & SL_HP_MATCH_ANYADDR) && !is_node_addr(p->tuple.local))
			return SL_DROP_NONE;
		if (addr_forwarded(skb, &p->tuple, skb->ifindex))
			return SL_DROP_NONE;
		slot->match |= SL_HP_MATCH_NODE_ADDR; /* while the slot is valid */
	}
	if (slot->hp.port != p->tuple.local_port && !proto_has_free_ports(p->tuple.proto))
		return SL_DROP_NONE; /* the loader writes no such mapping */
	clash = old && client_port_clash(old, p);
	s = ct_scratch();
	if (!s)
		return SL_DROP_CT_TABLE;
	ct_init(&s->entry, m->ep->owner, SL_CT_DNAT | (slot->match & SL_HP_MATCH_ANYADDR ? SL_CT_DNAT_ANYADDR : 0),
		now);
	if (hostport_wants_pod_snat(&slot->hp, m->ep, p->tuple.remote))
		s->entry.flags |= SL_CT_WANTS_POD_SNAT;
	s->entry.other = p->tuple;
	/*
	 * A SYN is for the hostPort, as with DNAT. Any other packet may answer a connection of the
	 * node itself.
	 */
	if (!pkt_is_syn(p) && sl_node_expects(skb))
		return SL_DROP_NONE;
	if (!hostport_admits(&slot->hp, p->tuple.remote))
		return SL_DROP_SOURCE;
	s->entry.hostport_generation = slot->hp.generation;
	s->claim = *m->key;
	fast_confirm_now(skb, &s->entry, m->ep->route_ifindex);
	sl_ct_opening(ct_kind(p->tuple.proto, 0)); /* counts it. Refused or not: the mapping makes the entry again */
	if (!clash)
		sl_hp_learn(p->tuple.proto);
	if (clash) {
		s->key = *m->key;
		if (!sl_cport_find())
			return SL_DROP_NO_CLIENT_PORT;
		m->key->remote_port = s->key.remote_port;
	}
	m->ct = ct_begin(m->key, s);
	return m->ct ? SL_DROP_NONE : SL_DROP_CT_TABLE;
}

/* Creates the entry of a connection to the pod's own address: its answers must keep that address. */
static __always_inline void create_inbound(const struct sl_pkt *p, struct sl_ct_match *m, __u64 now)
{
	struct sl_ct_scratch *s;
	struct sl_ct_entry *old;

	if (cfg_clients || !pkt_opens(p))
		return;
	m->ep = endpoint_lookup(p->tuple.local);
	s = ct_scratch();
	if (!m->ep || !s)
		return;
	/* Under a policy sl_to_pod says whether a SYN opens anything: one that it drops must not have ended the pod's connection. */
	old = ct_lookup_entry(&p->tuple, m->ep->owner, now);
	if (old && old->policy && (old->flags & SL_CT_ASSURED) && !(old->flags & SL_CT_CLOSING))
		return;
	*m->key = p->tuple;
	ct_init(&s->entry, m->ep->owner, 0, now);
	sl_ct_opening(ct_kind(p->tuple.proto, 0)); /* counts it */
	m->ct = ct_begin(m->key, s);
}

/*
 * Finds or creates the connection of a packet. SL_DROP_NONE without m->ct: the packet is not for
 * Sluice.
 */
static __always_inline enum sl_drop_reason classify(struct __sk_buff *skb, const struct sl_pkt *p,
						    struct sl_ct_match *m, __u64 now)
{
	struct sl_hp_cache_slot *slot = hostport_cache_reuse(p);
	enum sl_drop_reason reason;
	struct sl_ct_entry *old;

	if (find_hostport(p, slot, m, now))
		return SL_DROP_NONE;
	old = m->ct;
	/* A masqueraded connection keeps its port if it had the port before the port was published. */
	if (find_snat_or_plain(p, m, slot && pkt_is_syn(p), now))
		return SL_DROP_NONE;
	if (slot) {
		/*
		 * Set again what find_hostport() had set: a copy would not fit into the stack of
		 * kernels before 6.9.
		 */
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
 * An ICMP error about a packet that left the node translated. The pod gets it as if about the
 * packet it sent. It takes the way of its connection: netfilter conntrack may not have seen a
 * packet of that connection for hours.
 * in: full_scratch()->outer  out: full_scratch()->inner, ->key
 */
__noinline int sl_from_uplink_icmp(struct __sk_buff *skb)
{
	struct sl_full_ctx *full = full_scratch();
	__u64 now = clock_now();
	struct sl_ct_match m = {};
	bool fast;

	if (!full || !parse_full_inner(skb, full, SL_RX) ||
	    !addr_equal(full->outer.p.tuple.local, full->inner.p.tuple.local))
		return SL_NEXT;
	m.key = &full->key;
	if (!find_hostport(&full->inner.p, hostport_cached(skb, &full->inner.p, now), &m, now) &&
	    !find_snat_or_plain(&full->inner.p, &m, false, now))
		return !cfg_clients && node_port_moved(full->inner.p.tuple.local_port) &&
				       sl_node_from_uplink(skb, 1) < 0
			       ? drop(skb, SL_DROP_REWRITE, 0)
			       : SL_NEXT;
	if (!m.ct || !m.ep || !(m.ct->flags & SL_CT_NAT))
		return SL_NEXT;
	fast = cfg_l2_len && !(m.ct->flags & SL_CT_NF_NAT) && m.ct->policy == m.ep->policy &&
	       fast_take(m.ct, &full->outer.p, SL_RX, now) && full->outer.p.seg_len <= m.ep->mtu;
	nf_nat_stack_tuple(m.ct, m.key, &full->inner.p.tuple);
	if (icmp_rewrite_error(skb, full, SL_RX, m.key) || (fast && full_take_hop(skb, &full->outer)))
		return drop(skb, SL_DROP_REWRITE, m.ep->ifindex);
	if (fast)
		return fast_to_pod(skb, m.ep, m.ct->flags);
	endpoint_set_admit_mark(skb, m.ep);
	return tuple_equal(m.key, &full->inner.p.tuple) ? SL_NEXT : again(skb, m.ep);
}

/*
 * A later fragment gets the address that the first one got. Without the first one it goes to the
 * stack, which may be waiting for it.
 * in: full_scratch()->outer
 */
__noinline int sl_from_uplink_frag(struct __sk_buff *skb)
{
	struct sl_full_ctx *full = full_scratch();
	struct sl_endpoint *ep;
	struct sl_frag *fr;
	__u8 to[16] __attribute__((aligned(4)));

	fr = full ? frag_lookup(&full->outer, SL_RX, clock_now()) : NULL;
	if (!fr)
		return SL_NEXT;
	addr_copy(to, fr->to);
	ep = endpoint_lookup(to);
	if (full_rewrite_addr(skb, &full->outer, false, to))
		return drop(skb, SL_DROP_REWRITE, ep ? ep->ifindex : 0);
	if (ep)
		endpoint_set_admit_mark(skb, ep);
	return addr_equal(to, full->outer.p.tuple.local) ? SL_NEXT : again(skb, ep);
}

/*
 * Gives a packet the tuple that the pod sees. A function of its own for the verifier: it follows the
 * rewriting once, and not once for each way that sl_from_uplink_slow() comes to it. Returns 0, or a
 * negative error after which the packet must be dropped.
 * in: full_scratch()->outer, ->key
 */
__noinline int sl_from_uplink_rewrite(struct __sk_buff *skb)
{
	struct sl_full_ctx *full = full_scratch();

	return full ? full_rewrite(skb, &full->outer, SL_RX, &full->key) : -1;
}

/* No verdict: sl_from_uplink_slow() leaves the packet to sl_bare_to_pod(), which would be too deep in the stack. */
#define SL_BARE_TO_POD 100

/* May sl_from_uplink_slow() put a packet on the fast path: where there is no other parser, and with "immediate" the first one? */
static __always_inline bool fast_from_slow(const struct sl_full_ctx *full, const struct sl_ct_match *m, __u64 now)
{
	const struct sl_pkt *p = &full->outer.p;

	if (cfg_l2_len ? cfg_fast_path != SL_FAST_DIRECT || !(m->ct->flags & SL_CT_DNAT)
		       : cfg_clients || !proto_has_free_ports(p->tuple.proto))
		return false;
	return !full->outer.first_frag && m->ct->policy == m->ep->policy && p->seg_len <= m->ep->mtu &&
	       fast_take(m->ct, p, SL_RX, now);
}

/*
 * A packet that cannot take the fast path: the first one of a connection, or one that the slow
 * parser has read. The caller has called hostport_cached() for it. A function of its own: the
 * verifier checks it once, and the fast path stays short.
 * in: full_scratch()->outer  out: full_scratch()->key
 */
__noinline int sl_from_uplink_slow(struct __sk_buff *skb)
{
	struct sl_full_ctx *full = full_scratch();
	__u64 now = clock_now();
	enum sl_drop_reason reason;
	struct sl_ct_match m = {};
	bool fast;
	int node;

	if (!full)
		return SL_NEXT;
	m.key = &full->key;
	/* 1. an answer to the node itself, or else find or create the conntrack entry */
	if (!cfg_clients && unlikely(node_port_moved(full->outer.p.tuple.local_port))) {
		node = sl_node_from_uplink(skb, 0);
		if (node < 0)
			return drop(skb, SL_DROP_REWRITE, 0);
		if (node) {
			if (full->outer.first_frag)
				frag_forget(&full->outer, SL_RX);
			return SL_NEXT;
		}
	}
	reason = classify(skb, &full->outer.p, &m, now);
	if (reason)
		return drop(skb, reason, m.ep ? m.ep->ifindex : 0);
	if (!m.ct || !m.ep) {
		if (full->outer.first_frag)
			frag_forget(&full->outer, SL_RX);
		return SL_NEXT;
	}
	/* 2. conntrack */
	m.ct = ct_update(m.key, m.ct, &full->outer.p, SL_RX, skb->len, now);
	note_bridge(skb, m.ct);
	fast = fast_from_slow(full, &m, now);
	if (!cfg_l2_len && fast) {
		full->ct_flags = m.ct->flags;
		ct_delete_if_closed(m.key, m.ct, &full->outer.p, SL_RX);
		return SL_BARE_TO_POD;
	}
	/* 3. rewrite and forward */
	nf_nat_stack_tuple(m.ct, m.key, &full->outer.p.tuple);
	if (sl_from_uplink_rewrite(skb) || (fast && full_take_hop(skb, &full->outer)))
		return drop(skb, SL_DROP_REWRITE, m.ep->ifindex);
	if (fast)
		return fast_to_pod(skb, m.ep, m.ct->flags);
	nf_show_rst(skb, m.ct, &full->outer.p, SL_RX);
	if (m.ct->flags & (SL_CT_NAT | SL_CT_POD_OPENED)) {
		if (full->outer.first_frag)
			frag_note(&full->outer, SL_RX, m.key->local, now);
		endpoint_set_admit_mark(skb, m.ep);
	}
	return tuple_equal(m.key, &full->outer.p.tuple) ? SL_NEXT : again(skb, m.ep);
}

/* The denylist, where no XDP program can check it: XDP expects an Ethernet header. */
static __always_inline bool source_is_denied(const __u8 *source)
{
	struct sl_cidr key = {.prefix_len = 128};

	addr_copy(key.ip, source);
	return denylist_match(&key);
}

/*
 * What the fast parser cannot read (packet/parse_full.h). Inlined: the frames of its callees would
 * be too many.
 */
static __always_inline int from_uplink_full(struct __sk_buff *skb)
{
	__u32 kind = (__u32)sl_parse_full(skb, cfg_l2_len, SL_RX, 0);
	struct sl_full_ctx *full = full_scratch();
	int verdict;

	if (!full || kind == SL_FULL_NONE)
		return SL_NEXT;
	if (kind == SL_FULL_V4MAPPED)
		return drop(skb, SL_DROP_V4MAPPED, 0);
	/* As sl_from_uplink() checks, for packets without Ethernet header. */
	if (addr_is_loopback(full->outer.p.tuple.local) || addr_is_loopback(full->outer.p.tuple.remote))
		return drop(skb, SL_DROP_LOOPBACK, 0);
	if (!cfg_l2_len && source_is_denied(full->outer.p.tuple.remote))
		return drop(skb, SL_DROP_DENIED, 0);
	switch (kind) {
	case SL_FULL_ICMP_ERROR:
		return sl_from_uplink_icmp(skb);
	case SL_FULL_FRAG_NEXT:
		return sl_from_uplink_frag(skb);
	case SL_FULL_TUPLE:
		if (!cfg_clients && came_for_tunnel(skb, &full->outer.p.tuple))
			return drop(skb, SL_DROP_TUNNEL, 0);
		hostport_cached(skb, &full->outer.p, clock_now());
		verdict = sl_from_uplink_slow(skb);
		return verdict == SL_BARE_TO_POD ? sl_bare_to_pod(skb) : verdict;
	case SL_FULL_OPAQUE:
		return !cfg_clients && may_hide_tunnel_port(skb->ifindex, full) &&
				       !endpoint_lookup(full->outer.p.tuple.local)
			       ? drop(skb, SL_DROP_TUNNEL, 0)
			       : SL_NEXT;
	default:
		return SL_NEXT;
	}
}

/*
 * A client on this node whose device has no programs of its own asks for a hostPort. What comes from a
 * pod with programs has passed sl_from_pod.
 */
static __always_inline int from_client(struct __sk_buff *skb, const struct sl_pkt *p, enum sl_parsed parsed, __u64 now)
{
	if (parsed < SL_PARSED_L3 || parse_refused(parsed) || skb->pkt_type != PACKET_HOST ||
	    addr_is_loopback(p->tuple.local) || addr_is_loopback(p->tuple.remote) || endpoint_lookup(p->tuple.remote))
		return SL_NEXT;
	if (parsed != SL_PARSED_L4)
		return from_uplink_full(skb);
	return hostport_cached(skb, p, now) && full_ctx_init(p) ? sl_from_uplink_slow(skb) : SL_NEXT;
}

SEC("tc")
int sl_from_uplink(struct __sk_buff *skb)
{
	__u64 now = clock_now();
	struct sl_hp_cache_slot *slot;
	struct sl_tuple key;
	struct sl_ct_match m = {.key = &key};
	enum sl_drop_reason reason;
	enum sl_parsed parsed;
	struct sl_pkt *p = pkt_scratch();
	__u32 flags;
	bool fast;

	if (!cfg_l2_len) /* no link addresses either: every packet is for the node */
		return from_uplink_full(skb);
	if (unlikely(cb_marked_again(skb))) {
		cb_unmark(skb); /* it has been here */
		return SL_NEXT;
	}
	/* 1. parse */
	if (!p || unlikely(skb->pkt_type == PACKET_OTHERHOST))
		return SL_NEXT;
	strip_priority_tag(skb);
	parsed = parse_packet(skb, p, SL_RX);
	if (cfg_clients)
		return from_client(skb, p, parsed, now);
	/* The stack removes all VLAN 0 tags, and would go on with a packet that no hook has checked. */
	reason = parse_refused(parsed);
	if (unlikely(reason))
		return drop(skb, reason, 0);
	/* With route_localnet set, a socket on 127.0.0.1 must still be out of reach (CVE-2020-8558). */
	if (parsed >= SL_PARSED_L3 && unlikely(addr_is_loopback(p->tuple.local) || addr_is_loopback(p->tuple.remote)))
		return drop(skb, SL_DROP_LOOPBACK, 0);
	if (unlikely(skb->pkt_type != PACKET_HOST))
		return SL_NEXT;
	if (unlikely(parsed != SL_PARSED_L4))
		return parsed == SL_PARSED_L3 ? from_uplink_full(skb) : SL_NEXT;
	/* 2. find the hostPort and the conntrack entry; what has none takes the slow path, or is for the stack */
	slot = hostport_cached(skb, p, now);
	/* A SYN is never on the fast path, and mostly has no entry. */
	if (unlikely(pkt_is_syn(p)))
		return full_ctx_init(p) ? sl_from_uplink_slow(skb) : SL_NEXT;
	/* A masqueraded connection keeps its port if it had the port before the port was published. */
	if (unlikely(!find_hostport(p, slot, &m, now)) && !find_snat_or_plain(p, &m, false, now)) {
		/* Not for Sluice: most of what comes for the node itself. */
		if (!slot && !(pkt_opens(p) && endpoint_lookup(p->tuple.local)) &&
		    !node_port_moved(p->tuple.local_port))
			return came_for_tunnel(skb, &p->tuple) ? drop(skb, SL_DROP_TUNNEL, 0) : SL_NEXT;
		return full_ctx_init(p) ? sl_from_uplink_slow(skb) : SL_NEXT;
	}
	if (unlikely(!m.ct || !m.ep))
		return SL_NEXT;
	/* 3. conntrack */
	m.ct = ct_update(m.key, m.ct, p, SL_RX, skb->len, now);
	/*
	 * If another policy is in force than the one that admitted it, the packet has to pass
	 * sl_to_pod.
	 */
	fast = p->seg_len <= m.ep->mtu && m.ct->policy == m.ep->policy && fast_take(m.ct, p, SL_RX, now);
	/* 4. rewrite */
	if (unlikely(m.ct->flags & SL_CT_NF_NAT) && !fast)
		nf_nat_stack_tuple(m.ct, m.key, &p->tuple);
	if (unlikely(m.ct->flags & (SL_CT_CLIENT_PORT | SL_CT_NF_NAT)) && rewrite_remote(skb, p, SL_RX, m.key))
		return drop(skb, SL_DROP_REWRITE, m.ep->ifindex);
	if (unlikely(rewrite_packet(skb, p, SL_RX, m.key, fast)))
		return drop(skb, SL_DROP_REWRITE, m.ep->ifindex);
	/* 5. forward: to the pod past the stack, or to the stack */
	if (likely(fast)) {
		flags = m.ct->flags;
		ct_delete_if_closed(m.key, m.ct, p, SL_RX);
		return fast_to_pod(skb, m.ep, flags);
	}
	nf_show_rst(skb, m.ct, p, SL_RX);
	note_bridge(skb, m.ct);
	if (m.ct->flags & (SL_CT_NAT | SL_CT_POD_OPENED))
		endpoint_set_admit_mark(skb, m.ep);
	return tuple_equal(m.key, &p->tuple) ? SL_NEXT : again(skb, m.ep);
}

char _license[] SEC("license") = "Dual BSD/GPL";
