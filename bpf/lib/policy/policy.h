/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/ctx.h"
#include "../conntrack/conntrack.h"
#include "../drop/drop.h"
#include "../packet/csum_judge.h"
#include "../packet/fragment.h"
#include "../packet/parse_full.h"
#include "../podns/podns_device.h"
#include "link_control.h"
#include "policy_eval.h"

/*
 * Admission: which connections to and from a pod are allowed. Decided when a connection opens. Its
 * conntrack entry keeps the id of the policy that admitted it, so a packet of a known connection
 * costs one comparison, and another policy evaluates again. What is denied gets no entry.
 *
 *   policy_device_of()        what is in force for a device
 *   policy_verdict()          what the policy says of a packet, without entries
 *   policy_admit()            the same with entries: asks for the connection's first packet only
 *   policy_track()            accounts an admitted packet
 *   policy_admit_device()     both, for a packet that no hook keeps an entry of
 *   policy_admit_at_parent()  policy_admit() for what has passed it inside the pod
 *   sl_policy_admit_full()    policy_admit_device() for what the fast parser cannot read
 */

/*
 * The entry of a tuple, also through a reverse entry (what a pod gets back through a hairpin).
 * *is_reverse: there is a reverse entry, so the tuple opens nothing.
 */
static __always_inline struct sl_ct_entry *policy_entry(const struct sl_tuple *key, __u64 owner, __u64 now,
							bool *is_reverse)
{
	struct sl_ct_entry *ct = ct_lookup(key, now);

	*is_reverse = ct && ct->owner == owner && (ct->flags & SL_CT_REVERSE);
	if (!ct || ct->owner != owner)
		return NULL;
	return *is_reverse ? ct_lookup_entry(&ct->other, owner, now) : ct;
}

/*
 * What a policy is asked about a connection: its tuple behind the translation by netfilter, where that is known of
 * what a pod has opened.
 */
static __always_inline const struct sl_tuple *policy_asked(const struct sl_ct_entry *ct, const struct sl_pkt *p,
							   bool pod_opens)
{
	return ct && pod_opens && (ct->flags & SL_CT_NF_NAT) ? &ct->other : &p->tuple;
}

/*
 * Notes that the policy id has admitted the connection, as far as this hook can tell. Where it cannot, the connection has to pass
 * the last hook again.
 * in: s->egress_later
 */
static __always_inline void policy_admitted(struct sl_ct_entry *ct, const struct sl_ct_scratch *s, __u16 id)
{
	ct->policy = id;
	ct->flags &= ~SL_CT_EGRESS_LATER;
	if (unlikely(s->egress_later))
		ct->flags = (ct->flags & ~SL_CT_SEEN_LAST) | SL_CT_EGRESS_LATER;
}

/*
 * Admits a packet of the device dev, which is under the policy id: by the verdict of its
 * connection, or by the rules, which creates an entry. query: SL_POLICY_Q_*. *entry: the one
 * under the packet's own tuple, if there is one.
 */
static __always_inline __must_check enum sl_drop_reason policy_admit(struct __sk_buff *skb, const struct sl_pkt *p,
								     __u32 dev, __u64 owner, __u16 id, enum sl_dir dir,
								     __u32 query, __u64 now, struct sl_ct_entry **entry)
{
	bool pod_opens = dir == SL_TX, is_reverse;
	struct sl_ct_scratch *s;
	enum sl_drop_reason reason;
	struct sl_ct_entry *ct;

	*entry = NULL;
	ct = policy_entry(&p->tuple, owner, now, &is_reverse);
	/* A masqueraded connection's packet belongs to it: the uplink's hook has checked that. */
	if (ct && !is_reverse && !(dir == SL_RX && (ct->flags & SL_CT_SNAT)) && ct_is_new_connection(ct, p, dir))
		ct = NULL;
	if (ct && !is_reverse)
		*entry = ct;
	if (is_reverse && !ct)
		return SL_DROP_NONE; /* its entry is restored before the next packet */
	if (ct && ct->policy == id)
		return SL_DROP_NONE;
	if (ct)
		pod_opens = ct->flags & SL_CT_POD_OPENED;
	reason = policy_verdict(skb, policy_asked(ct, p, pod_opens), dev, pod_opens, query);
	if (reason)
		return reason;
	s = ct_scratch();
	if (!s)
		return SL_DROP_CT_TABLE;
	if (ct) {
		policy_admitted(ct, s, id);
		return SL_DROP_NONE;
	}
	ct_init(&s->entry, owner, pod_opens ? SL_CT_POD_OPENED : 0, now);
	policy_admitted(&s->entry, s, id);
	*entry = ct_begin(&p->tuple, s);
	return *entry ? SL_DROP_NONE : SL_DROP_CT_TABLE;
}

/*
 * Accounts a packet that no other hook of its direction sees, so that its connection lives while it
 * is used. Unlike ct_update() this does not count as the first of two hooks.
 */
static __always_inline void policy_track(struct __sk_buff *skb, const struct sl_pkt *p, struct sl_ct_entry *ct,
					 enum sl_dir dir, __u64 now)
{
	__u32 first = dir == SL_TX ? SL_CT_TX_SEEN_FIRST : SL_CT_RX_SEEN_FIRST;
	bool had = ct->flags & first;

	ct = ct_update(&p->tuple, ct, p, dir, skb->len, now);
	if (!had)
		ct->flags &= ~first;
}

/*
 * Does an isolated pod of the bridge send to an address that no endpoint of this device has: a
 * link-local one, multicast, or any that a pod has given itself? The sender's hook does not know whose
 * that is, and this device need not have a policy. The device that a frame was bridged from does: had
 * the node routed the packet, the bridge would stand there. A sender without an address looks for one.
 */
static __always_inline bool policy_isolated_bridged(struct __sk_buff *skb, const struct sl_pkt *p,
						    enum sl_parsed parsed)
{
	__u32 came = skb->ingress_ifindex;
	struct sl_dev_policy *other = policy_device_of(came);

	if (!other || !(other->flags & SL_POLICY_ISOLATED) || other->group == came || came == skb->ifindex ||
	    addr_is_any(p->tuple.remote))
		return false;
	return parsed == SL_PARSED_L4 || !sl_link_control(skb, SL_RX);
}

/* Does the packet hide its protocol or its ports? The full parser knows only its addresses. */
static __always_inline bool hides_l4(const struct sl_full_ctx *full)
{
	__u8 proto = full->outer.p.tuple.proto;

	return has_ports(proto) || (full->outer.p.family == 6 && is_ext_header(proto));
}

/*
 * Is the ICMP error about a packet of a connection that the policy id admitted? What the pod opened was
 * admitted where it opened.
 * in: full->outer  out: full->inner
 */
static __always_inline bool policy_knows_error(struct __sk_buff *skb, struct sl_full_ctx *full, __u64 owner, __u16 id,
					       __u32 dir, __u64 now)
{
	bool is_reverse;
	struct sl_ct_entry *ct;

	if (!parse_full_inner(skb, full, dir == SL_RX ? SL_RX : SL_TX))
		return false;
	full->inner.p.tuple.podns_dev = full->outer.p.tuple.podns_dev;
	ct = policy_entry(&full->inner.p.tuple, owner, now, &is_reverse);
	return is_reverse || (ct && (ct->policy == id || (ct->flags & SL_CT_POD_OPENED)));
}

/* sl_frag_key.dir of what a policy admits, apart from those of translations. */
static __always_inline enum sl_dir policy_frag_dir(__u32 dir)
{
	return (enum sl_dir)(dir | 4);
}

/*
 * Notes that the policy has admitted a first fragment, for the later ones. A function of its own, for
 * the stack it takes.
 * in: full_scratch()->outer
 */
__noinline int sl_policy_frag(__u32 dir)
{
	struct sl_full_ctx *full = full_scratch();

	if (full)
		frag_note(&full->outer, policy_frag_dir(dir), full->outer.p.tuple.remote, clock_now());
	return 0;
}

/*
 * What sl_policy_verdict() is asked about a packet that has no ports, or does not show them. An ICMP error
 * about a connection belongs to it, and a later fragment to its first one: only ingressPolicy decides
 * about those. Addresses and protocol decide about the rest, packet by packet.
 */
static __always_inline __u32 policy_flags_full(struct __sk_buff *skb, struct sl_full_ctx *full, __u32 kind,
					       const struct sl_dev_policy *s, __u32 dir, __u64 now)
{
	if (kind == SL_FULL_ICMP_ERROR)
		return policy_knows_error(skb, full, s->owner, s->policy, dir, now) ? SL_POLICY_Q_PODS_ONLY : 0;
	if (kind == SL_FULL_FRAG_NEXT)
		return frag_lookup(&full->outer, policy_frag_dir(dir), now) ? SL_POLICY_Q_PODS_ONLY
									    : SL_POLICY_Q_NO_PORTS;
	return hides_l4(full) ? SL_POLICY_Q_NO_PORTS : 0;
}

/*
 * A packet that the fast parser cannot read, of the device dev, if that has a policy. Returns an enum
 * sl_drop_reason. Link control is for the link, whose hosts need it.
 * out: full_scratch()->outer
 */
__noinline int sl_policy_admit_full(struct __sk_buff *skb, __u32 dev, __u32 dir)
{
	__u32 query = dir == SL_RX ? SL_POLICY_Q_TO_POD : 0, kind;
	struct sl_dev_policy *s = policy_device_of(dev);
	__u64 now = clock_now();
	enum sl_drop_reason reason;
	struct sl_full_ctx *full;
	struct sl_ct_entry *ct;

	if (!s)
		return SL_DROP_NONE;
	kind = (__u32)sl_parse_full(skb, ETH_HLEN, dir == SL_RX ? SL_RX : SL_TX, 0);
	full = full_scratch();
	if (!full || kind == SL_FULL_NONE || is_link_control(full, kind, dir, dev))
		return SL_DROP_NONE;
	if (full->outer.frag_proto == IPPROTO_FRAGMENT)
		query |= SL_POLICY_Q_FRAGMENT6;
	full->outer.p.tuple.podns_dev = (__u16)(dev & SL_PODNS_KEY ? dev & ~SL_PODNS_KEY : 0);
	if (kind == SL_FULL_TUPLE) {
		reason = policy_admit(skb, &full->outer.p, dev, s->owner, s->policy, dir == SL_RX ? SL_RX : SL_TX,
				      query, now, &ct);
		if (!reason && ct)
			policy_track(skb, &full->outer.p, ct, dir == SL_RX ? SL_RX : SL_TX, now);
	} else {
		query |= policy_flags_full(skb, full, kind, s, dir, now);
		reason = policy_verdict(skb, &full->outer.p.tuple, dev, dir == SL_TX, query);
	}
	if (!reason && full->outer.first_frag)
		sl_policy_frag(dir);
	return (int)reason;
}

/*
 * policy_admit() and policy_track() for a packet that no hook keeps an entry of. number: of a device inside a pod's
 * namespace, else 0.
 */
static __always_inline __must_check enum sl_drop_reason policy_admit_device(struct __sk_buff *skb, struct sl_pkt *p,
									    enum sl_parsed parsed, __u32 dev,
									    enum sl_dir dir, __u32 number, __u64 now)
{
	struct sl_dev_policy *s = policy_device_of(dev);
	enum sl_drop_reason reason;
	struct sl_ct_entry *ct;

	if (!s)
		return SL_DROP_NONE;
	if (parsed != SL_PARSED_L4)
		return (enum sl_drop_reason)sl_policy_admit_full(skb, dev, dir);
	p->tuple.podns_dev = (__u16)number;
	reason = policy_admit(skb, p, dev, s->owner, s->policy, dir, dir == SL_RX ? SL_POLICY_Q_TO_POD : 0, now, &ct);
	if (!reason && ct)
		policy_track(skb, p, ct, dir, now);
	return reason;
}

/*
 * Does the packet belong to address discovery? Its sender has no address yet. It asks by DHCP (RFC
 * 2131 4.1), or looks for neighbours, routers and multicast listeners (RFC 4862, RFC 3590). Any
 * other packet without a source is none of a host that does what it should.
 */
static __always_inline bool is_addr_discovery(struct __sk_buff *skb, const struct sl_pkt *p, enum sl_parsed parsed,
					      enum sl_dir dir)
{
	const struct sl_tuple *t = &p->tuple;

	if (likely(!addr_is_any(dir == SL_TX ? t->local : t->remote)) ||
	    !addr_is_multicast(dir == SL_TX ? t->remote : t->local))
		return false;
	if (parsed != SL_PARSED_L4)
		return sl_link_control(skb, dir);
	return p->family == 4 && t->proto == IPPROTO_UDP &&
	       (dir == SL_TX ? t->local_port : t->remote_port) == bpf_htons(SL_PORT_DHCP_CLIENT) &&
	       (dir == SL_TX ? t->remote_port : t->local_port) == bpf_htons(SL_PORT_DHCP_SERVER);
}

/*
 * Admits a packet of device number that the programs on that device should have seen. It does not account
 * it, since they do.
 */
static __always_inline __must_check enum sl_drop_reason
policy_admit_at_parent(struct __sk_buff *skb, struct sl_pkt *p, enum sl_parsed parsed, __u32 number, __u64 now)
{
	__u32 dev = SL_PODNS_KEY | number;
	struct sl_dev_policy *s = policy_device_of(dev);
	struct sl_ct_entry *ct;

	if (!s)
		return SL_DROP_NONE;
	if (parsed != SL_PARSED_L4)
		return (enum sl_drop_reason)sl_policy_admit_full(skb, dev, SL_TX);
	p->tuple.podns_dev = (__u16)number;
	return policy_admit(skb, p, dev, s->owner, s->policy, SL_TX, 0, now, &ct);
}

/* Why the hooks of a device without a host veth drop what would be another packet behind them; SL_DROP_NONE for all others. */
static __always_inline enum sl_drop_reason podns_refused(struct __sk_buff *skb, const struct sl_pkt *p,
							 enum sl_parsed parsed)
{
	if (csum_misplaced(skb, p, parsed))
		return SL_DROP_CSUM_PLACE;
	if (parsed == SL_PARSED_L3 && may_be_false_nd(p))
		return (enum sl_drop_reason)sl_false_nd(skb, 0);
	return parsed == SL_PARSED_NONE && prio_tag_in_frame(skb) ? SL_DROP_UNPARSABLE : SL_DROP_NONE;
}

/* Admits a packet of a device inside a pod's network namespace. */
static __always_inline int podns_policy(struct __sk_buff *skb, enum sl_dir dir)
{
	struct sl_pkt *p = pkt_scratch();
	__u32 number = podns_dev_id(skb);
	enum sl_drop_reason reason;
	enum sl_parsed parsed;

	/* 1. parse */
	if (!p)
		return SL_NEXT;
	strip_priority_tag(skb);
	parsed = parse_packet(skb, p, dir);
	reason = parse_refused(parsed);
	if (!reason && dir == SL_TX)
		reason = podns_refused(skb, p, parsed);
	if (reason)
		return drop(skb, reason, SL_PODNS_KEY | number);
	if (parsed == SL_PARSED_NONE || is_addr_discovery(skb, p, parsed, dir))
		return SL_NEXT;
	/* 2. policy */
	reason = policy_admit_device(skb, p, parsed, SL_PODNS_KEY | number, dir, number, clock_now());
	return reason ? drop(skb, reason, SL_PODNS_KEY | number) : SL_NEXT;
}
