//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Uplink, tc egress: what pods send out through the stack. Last hook of the sending direction. It
 * translates (answers of a hostPort, masquerade) and confirms that nothing else did.
 */
#define SL_PROGRAM SL_PROGRAM_TO_UPLINK
#include "lib/base/compiler.h"
#include "lib/base/config.h"
#include "lib/base/ctx.h"
#include "lib/conntrack/nf_tuple.h"
#include "lib/drop/drop.h"
#include "lib/endpoint/endpoint.h"
#include "lib/fastpath/cb_mark.h"
#include "lib/nat/nf_nat.h"
#include "lib/nat/node_port.h"
#include "lib/nat/snat.h"
#include "lib/nat/tunnel.h"
#include "lib/packet/fragment.h"
#include "lib/packet/icmp_error.h"
#include "lib/policy/egress_later.h"

/* The packet leaves unchanged, and so do the later fragments of its datagram. */
static __always_inline int pass_unchanged(const struct sl_full_ctx *full, __u64 now)
{
	if (full->outer.first_frag)
		frag_note(&full->outer, SL_TX, full->outer.p.tuple.local, now);
	return SL_NEXT;
}

/* Translates a packet of a connection that has an outside tuple. */
static __always_inline int translate(struct __sk_buff *skb, const struct sl_full_ctx *full,
				     const struct sl_endpoint *ep, const struct sl_ct_entry *ct, __u64 now)
{
	if (full_rewrite(skb, &full->outer, SL_TX, &ct->other))
		return drop(skb, SL_DROP_REWRITE, ep->ifindex);
	if (full->outer.first_frag)
		frag_note(&full->outer, SL_TX, ct->other.local, now);
	ct_delete_if_closed(&full->outer.p.tuple, ct, &full->outer.p, SL_TX);
	return SL_NEXT;
}

/* Can the fast path send by the device without Ethernet header dev? */
static __always_inline bool bare_takes_redirect(__u32 dev)
{
	struct sl_uplink *up = bpf_map_lookup_elem(&sl_uplinks, &dev);

	return up && up->bare == SL_BARE_FAST;
}

/* The same tuple left the pod and arrived here: cache the way it took for the packets that follow. */
static __always_inline void confirm_tx(struct __sk_buff *skb, const struct sl_full_ctx *full, struct sl_ct_entry *ct,
				       __u64 now)
{
	const struct sl_pkt *p = &full->outer.p;

	if (!(ct->flags & SL_CT_TX_SEEN_FIRST) || (!cfg_l2_len && !bare_takes_redirect(skb->ifindex)))
		return;
	if (ct->out_ifindex != skb->ifindex)
		ct->out_ifindex = skb->ifindex;
	if (!cfg_l2_len != !!(ct->flags & SL_CT_OUT_BARE))
		ct->flags ^= SL_CT_OUT_BARE;
	ct_passed_stack(skb, ct, p, SL_TX, now);
	if (full->outer.from_fast_parser || !cfg_l2_len)
		ct_cache_nexthop(ct, p->dst_mac, p->src_mac, p->seg_len, now);
}

/*
 * Gives a connection that a pod opened an outside tuple: it must not show the pod's address.
 * ct: the entry from sl_from_pod, or NULL if that saw another tuple, which netfilter translated in a way that
 * is not known. An entry that has an outside tuple already gets another one (snat_moved()).
 * inside: the key of the entry. nf_nat: netfilter has made of it what leaves the stack.
 */
static __always_inline int masquerade(struct __sk_buff *skb, const struct sl_full_ctx *full,
				      const struct sl_endpoint *ep, struct sl_ct_entry *ct,
				      const struct sl_tuple *inside, bool nf_nat, __u64 now)
{
	struct sl_ct_scratch *s = ct_scratch();
	const struct sl_pkt *p = &full->outer.p;
	enum sl_drop_reason reason;
	bool begins = !ct;

	if (!s)
		return drop(skb, SL_DROP_CT_TABLE, ep->ifindex);
	if (ct)
		copy_without_outside(s, inside, ct);
	else
		ct_init(&s->entry, ep->owner, SL_CT_POD_OPENED, now);
	if (nf_nat) {
		s->entry.flags |= SL_CT_NF_NAT;
		nf_note_conn(&s->entry, s);
	}
	reason = snat_allocate(skb, p, inside, s);
	if (reason)
		return drop(skb, reason, ep->ifindex);
	s->entry.out_ifindex = skb->ifindex;
	ct = begins ? ct_begin(inside, s) : ct_insert(inside, &s->entry);
	if (!ct)
		return drop(skb, SL_DROP_CT_TABLE, ep->ifindex);
	if (!(ct->flags & SL_CT_TX_SEEN_FIRST)) {
		__sync_fetch_and_add(&ct->tx_packets, 1);
		__sync_fetch_and_add(&ct->tx_bytes, skb->len);
		tcp_seq_note_tx(ct, p);
	}
	confirm_tx(skb, full, ct, now);
	return translate(skb, full, ep, ct, now);
}

/* What sl_to_uplink_slow() says of a packet that is treated as one of the node: it is of no pod, or netfilter gave it an outside tuple. */
#define SL_NOT_FROM_POD 100

/*
 * Learns what netfilter has made of a pod's connection, which leaves untranslated by us: the packets that come back under that
 * tuple lead to its entry. If another connection has the tuple, this one stays on the slow path (nat/node_port.h).
 */
static __always_inline int learn_nf_nat(struct __sk_buff *skb, const struct sl_full_ctx *full, struct sl_ct_entry *ct,
					const struct sl_tuple *inside, __u64 now)
{
	struct sl_ct_scratch *s = ct_scratch();

	if (!s || !ct)
		return SL_NOT_FROM_POD;
	copy_without_outside(s, inside, ct);
	if (!outside_claim_nf_nat(s, inside, &full->outer.p.tuple, now))
		return SL_NOT_FROM_POD;
	ct = ct_insert(inside, &s->entry);
	if (ct)
		confirm_tx(skb, full, ct, now);
	return pass_unchanged(full, now);
}

/* Toward a client on this node only the answers of hostPorts are translated. They stay with the stack. */
static __always_inline int answer_client(struct __sk_buff *skb, const struct sl_full_ctx *full,
					 const struct sl_endpoint *ep, const struct sl_ct_entry *ct, __u64 now)
{
	if (!ct || !(ct->flags & SL_CT_DNAT))
		return SL_NEXT;
	if (ct_has_reverse(ct->flags))
		ct_ensure_reverse(&full->outer.p.tuple, ct);
	return translate(skb, full, ep, ct, now);
}

/*
 * The entry of a packet that leaves with this tuple. sl_from_pod has replaced it if a SYN opens anew. If that hook saw
 * another tuple, it could not.
 */
static __always_inline struct sl_ct_entry *entry_of(const struct sl_tuple *inside, const struct sl_endpoint *ep,
						    const struct sl_pkt *p, __u64 now)
{
	struct sl_ct_entry *ct = ct_lookup_entry(inside, ep->owner, now);

	return ct && !(ct->flags & SL_CT_TX_SEEN_FIRST) && ct_is_new_connection(ct, p, SL_TX) ? NULL : ct;
}

/* What the entry of a packet says of how it leaves. */
enum sl_leaving {
	SL_LEAVING_NEW,	     /* nothing yet */
	SL_LEAVING_OUTSIDE,  /* with the outside tuple that the entry has */
	SL_LEAVING_AS_IS,    /* as it is: it answers what came in, or has been answered so */
	SL_LEAVING_ANSWERED, /* as it is, and the entry has learned that where the connection came in */
};

static __always_inline enum sl_leaving leaving(const struct sl_ct_entry *ct, const struct sl_tuple *inside,
					       const struct sl_pkt *p, bool nf_nat)
{
	if (!ct)
		return SL_LEAVING_NEW;
	if ((ct->flags & (SL_CT_NAT | SL_CT_NF_NAT)) && nf_nat_same(ct, inside, &p->tuple, nf_nat))
		return SL_LEAVING_OUTSIDE;
	if (!(ct->flags & SL_CT_POD_OPENED))
		return nf_nat ? SL_LEAVING_ANSWERED : SL_LEAVING_AS_IS;
	return !nf_nat && (ct->flags & SL_CT_REPLIED) ? SL_LEAVING_AS_IS : SL_LEAVING_NEW;
}

/*
 * A packet of a pod. A function of its own, so that both parsers can end in it. SL_NOT_FROM_POD: of no pod.
 * in: full_scratch()->outer
 */
__noinline int sl_to_uplink_slow(struct __sk_buff *skb)
{
	struct sl_full_ctx *full = full_scratch();
	struct sl_ct_scratch *s = ct_scratch();
	const struct sl_tuple *inside;
	__u64 now = clock_now();
	struct sl_endpoint *ep, *sender;
	const struct sl_pkt *p;
	enum sl_drop_reason reason;
	struct sl_ct_entry *ct;
	bool nf_nat = false, translated = false, lost;

	if (!full || !s)
		return SL_NEXT;
	p = &full->outer.p;
	/* 1. endpoint and conntrack: is it from a pod? */
	inside = &p->tuple;
	ep = endpoint_lookup(inside->local);
	sender = ep;
	ct = ep ? entry_of(inside, ep, p, now) : NULL;
	if (!cfg_clients && !ct && sl_nf_translated(skb, p, s, SL_TX, false)) {
		sender = endpoint_lookup(s->pre.local);
		ct = sender ? entry_of(&s->pre, sender, p, now) : NULL;
		nf_nat = sender && nf_nat_fits(s, p, sender, ct);
		if (nf_nat) {
			inside = &s->pre;
			ep = sender;
		}
		translated = true;
	}
	/* 2. NetworkPolicy, for the destination behind all translations */
	reason = sender ? egress_admit(sender, ct, translated, p->tuple.remote, p->tuple.proto, p->tuple.remote_port)
			: SL_DROP_NONE;
	if (reason)
		return drop(skb, reason, sender->ifindex);
	if (translated && !nf_nat)
		ct = NULL;
	if (!ep)
		return SL_NOT_FROM_POD;
	if (cfg_clients)
		return answer_client(skb, full, ep, ct, now);
	if (leaves_for_tunnel(skb, p))
		return drop(skb, SL_DROP_TUNNEL, ep->ifindex);
	/* The pod that was the other end has gone: its address is outside now. */
	if (ct && !nf_nat && ((ct->flags & SL_CT_PEER_LOCAL) || ct_goes_by_pod_snat(ct)))
		ct = NULL;
	/* sl_from_pod has not seen this tuple, so it has not noted the packet. */
	if (ct && !(ct->flags & SL_CT_TX_SEEN_FIRST))
		tcp_seq_note_tx(ct, p);
	if (ct && !nf_nat && unlikely(ct->flags & SL_CT_NF_NAT))
		nf_nat_forget(ct);
	switch (leaving(ct, inside, p, nf_nat)) {
	case SL_LEAVING_OUTSIDE:
		if (!(ct->flags & SL_CT_TX_SEEN_FIRST))
			ct->last_seen = now;
		lost = ct_has_reverse(ct->flags) && !ct_ensure_reverse(inside, ct) &&
		       (ct->flags & (SL_CT_SNAT | SL_CT_NF_NAT));
		if (!lost && !snat_moved(skb, p, ct)) {
			if (nf_nat)
				nf_note_conn(ct, s);
			confirm_tx(skb, full, ct, now);
			return translate(skb, full, ep, ct, now);
		}
		/* 3. another outside tuple, if it is ours to choose. The old one may belong to another connection now: start anew */
		if (!(ct->flags & SL_CT_SNAT))
			return SL_NOT_FROM_POD;
		return masquerade(skb, full, ep, lost ? NULL : ct, inside, nf_nat, now);
	case SL_LEAVING_AS_IS:
		confirm_tx(skb, full, ct, now);
		return pass_unchanged(full, now);
	case SL_LEAVING_ANSWERED:
		return pass_unchanged(full, now);
	default:
		break;
	}
	/* 4. a new connection that stays as netfilter has left it */
	if (!nf_keeps_local(inside, &p->tuple) || !endpoint_masquerades(ep, p->tuple.local, p->tuple.remote)) {
		if (nf_nat)
			return learn_nf_nat(skb, full, ct, inside, now);
		if (ct)
			confirm_tx(skb, full, ct, now);
		return pass_unchanged(full, now);
	}
	/* 5. a new connection that is masqueraded. It does not begin with an answer: what came in has an entry (sl_to_pod) */
	if (!ct && pkt_answers(p))
		return drop(skb, SL_DROP_UNASKED, ep->ifindex);
	return masquerade(skb, full, ep, ct, inside, nf_nat, now);
}

/*
 * An ICMP error about a packet that came for a pod, from the pod or from the node's stack. Its
 * receiver must read the address that it sent the packet to.
 * in: full_scratch()->outer  out: full_scratch()->inner
 */
__noinline int sl_to_uplink_icmp(struct __sk_buff *skb)
{
	const struct sl_tuple *outer, *inner;
	struct sl_full_ctx *full = full_scratch();
	struct sl_ct_scratch *s = ct_scratch();
	struct sl_endpoint *sender, *ep;
	struct sl_ct_entry *ct = NULL;

	if (!full || !s)
		return SL_NEXT;
	outer = &full->outer.p.tuple;
	inner = &full->inner.p.tuple;
	sender = endpoint_lookup(outer->local);
	if (parse_full_inner(skb, full, SL_TX) && (!sender || addr_equal(outer->local, inner->local))) {
		ep = endpoint_lookup(inner->local);
		ct = ep ? ct_lookup_entry(inner, ep->owner, clock_now()) : NULL;
		if (!cfg_clients && !ct && ep && sl_nf_translated(skb, &full->inner.p, s, SL_TX, true)) {
			ct = ct_lookup_entry(&s->pre, ep->owner, clock_now());
			if (ct && !nf_nat_same(ct, &s->pre, inner, true))
				ct = NULL;
		}
		if (!cfg_clients && !ep && node_port_moved(inner->local_port)) {
			full->key = *inner;
			full->key.side = SL_CT_SIDE_NODE;
			ct = ct_lookup(&full->key, clock_now());
		}
	}
	if (ct && (ct->flags & (cfg_clients ? SL_CT_DNAT : SL_CT_NAT)))
		return icmp_rewrite_error(skb, full, SL_TX, &ct->other)
			       ? drop(skb, SL_DROP_REWRITE, sender ? sender->ifindex : 0)
			       : SL_NEXT;
	if (!cfg_clients && !ct && sender && endpoint_masquerades(sender, outer->local, outer->remote))
		return drop(skb, SL_DROP_ICMP_ORPHAN, sender->ifindex);
	return SL_NEXT;
}

/*
 * A later fragment of a pod leaves with the address of the first one. If that was not seen, a
 * masqueraded pod's fragment is dropped: it would show the pod's address.
 * in: full_scratch()->outer
 */
__noinline int sl_to_uplink_frag(struct __sk_buff *skb)
{
	struct sl_full_ctx *full = full_scratch();
	const struct sl_tuple *t;
	struct sl_endpoint *ep;
	struct sl_frag *fr;
	__u8 to[16] __attribute__((aligned(4)));

	if (!full)
		return SL_NEXT;
	t = &full->outer.p.tuple;
	ep = endpoint_lookup(t->local);
	if (!ep)
		return SL_NEXT;
	fr = frag_lookup(&full->outer, SL_TX, clock_now());
	if (!fr)
		return !cfg_clients && endpoint_masquerades(ep, t->local, t->remote)
			       ? drop(skb, SL_DROP_FRAGMENT, ep->ifindex)
			       : SL_NEXT;
	addr_copy(to, fr->to);
	return full_rewrite_addr(skb, &full->outer, true, to) ? drop(skb, SL_DROP_REWRITE, ep->ifindex) : SL_NEXT;
}

/* Nothing in the packet can be translated: from a masqueraded pod it does not leave. */
static __always_inline int drop_unparsable(struct __sk_buff *skb, const struct sl_full_ctx *full)
{
	const struct sl_tuple *t = &full->outer.p.tuple;
	struct sl_endpoint *ep = endpoint_lookup(t->local);

	if (!ep)
		return SL_NEXT;
	if (endpoint_masquerades(ep, t->local, t->remote))
		return drop(skb, SL_DROP_UNPARSABLE, ep->ifindex);
	return may_hide_tunnel_port(0, full) && !is_tunnel_port(skb->ifindex, 0)
		       ? drop(skb, SL_DROP_TUNNEL, ep->ifindex)
		       : SL_NEXT;
}

/* What the fast parser cannot read (packet/parse_full.h). */
static __always_inline int to_uplink_full(struct __sk_buff *skb)
{
	struct sl_full_ctx *full = full_scratch();
	int verdict;

	if (!full)
		return SL_NEXT;
	switch (sl_parse_full(skb, cfg_l2_len, SL_TX, 0)) {
	case SL_FULL_ICMP_ERROR:
		return sl_to_uplink_icmp(skb);
	case SL_FULL_FRAG_NEXT:
		return sl_to_uplink_frag(skb);
	case SL_FULL_TUPLE:
		verdict = sl_to_uplink_slow(skb);
		if (verdict != SL_NOT_FROM_POD)
			return verdict;
		return cfg_clients ? SL_NEXT : sl_node_to_uplink(skb);
	case SL_FULL_OPAQUE:
		return cfg_clients ? SL_NEXT : drop_unparsable(skb, full);
	case SL_FULL_V4MAPPED:
		return cfg_clients ? SL_NEXT : drop(skb, SL_DROP_V4MAPPED, 0);
	default:
		return SL_NEXT;
	}
}

/* Can a packet that has no pod's address be a pod's, which netfilter has given another source? */
static __always_inline bool may_be_nf_nat(struct __sk_buff *skb, const struct sl_pkt *p)
{
	return !cfg_clients && skb->ingress_ifindex && nf_may_translate(skb, p);
}

/* The node answers a client's datagram, or sends one of its own: what comes back is for the node. */
static __always_inline int note_datagram(const struct sl_pkt *p)
{
	sl_host_udp_add(&p->tuple, clock_now());
	return SL_NEXT;
}

SEC("tc")
int sl_to_uplink(struct __sk_buff *skb)
{
	struct sl_pkt *p = pkt_scratch();
	int verdict;

	if (!cfg_l2_len)
		return cb_marked(skb) ? SL_NEXT : to_uplink_full(skb);
	/*
	 * A pod's frame has lost its VLAN 0 tag before. A frame with a tag is the node's own, and
	 * keeps it.
	 */
	if (!p || cb_marked(skb) || skb->vlan_present)
		return SL_NEXT;
	/* 1. parse; then the slow path, the only one here: the fast path has left by a redirect */
	switch (parse_packet(skb, p, SL_TX)) {
	case SL_PARSED_L3:
		return to_uplink_full(skb);
	case SL_PARSED_L4:
		if (cfg_clients && endpoint_lookup(p->tuple.remote))
			return SL_NEXT; /* to a pod with programs: sl_to_pod sees it */
		/* From a pod, perhaps with another source by netfilter: a NodePort's answer, or masqueraded by a third party. */
		if ((endpoint_lookup(p->tuple.local) || may_be_nf_nat(skb, p)) && full_ctx_init(p)) {
			verdict = sl_to_uplink_slow(skb);
			if (verdict != SL_NOT_FROM_POD)
				return verdict;
		}
		/* The node's own packet, or translated before it got here. Most of these need nothing: do not delay them. */
		if (cfg_clients)
			return is_unconnected_udp(skb, p->tuple.proto) ? note_datagram(p) : SL_NEXT;
		return node_may_clash(skb, p) && full_ctx_init(p) ? sl_node_to_uplink(skb) : SL_NEXT;
	case SL_PARSED_V4MAPPED:
		return cfg_clients ? SL_NEXT : drop(skb, SL_DROP_V4MAPPED, 0);
	default:
		return SL_NEXT;
	}
}

char _license[] SEC("license") = "Dual BSD/GPL";
