/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "endpoint.h"
#include "flow.h"
#include "odd.h"
#include "own.h"
#include "policy_maps.h"
#include "verdict.h"

/*
 * Who may talk to a pod, and whom the pod may talk to. Decided when a flow is
 * made; the flow keeps the id of the policy that admitted it, so that a packet of
 * a known flow costs one comparison, and another policy asks again. What is denied
 * makes no flow. docs/design/policy.md.
 */

/* What sl_policy_eval() is asked about. */
struct sl_asked {
	__u64 remote[2]; /* the end that is not the pod, as in a tuple */
	__u32 port;	 /* that was asked for, host byte order, or SL_NO_PORT */
	__u8 proto;
	__u8 family; /* SL_RULE_V4 or SL_RULE_V6 */
	__u8 pad[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sl_asked);
} sl_asked SEC(".maps");

static __always_inline struct sl_asked *__asked(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&sl_asked, &zero);
}

static __always_inline struct sl_policed *policy_of(__u32 dev)
{
	return bpf_map_lookup_elem(&sl_policed, &dev);
}

/* A port that no rule about ports has. */
#define SL_NO_PORT 0x10000

/*
 * Without a branch, and reading the tuple anew for each rule: whatever the verifier
 * learns from a comparison makes two cases for all rules that follow ("BPF program is too large").
 */
static __always_inline bool __rule_matches(const struct sl_rule *r, const volatile struct sl_asked *q)
{
	const __u64 *ip = (const __u64 *)r->ip, *mask = (const __u64 *)r->mask;
	__u64 differs = (r->flags & q->family) ^ q->family;
	__u64 port = q->port, below, above;

	differs |= (r->proto ^ q->proto) & r->proto_mask;
	differs |= (q->remote[0] & mask[0]) ^ ip[0];
	differs |= (q->remote[1] & mask[1]) ^ ip[1];
	/* Negative where the port is out of range. Without the barriers clang makes comparisons of it. */
	below = port - r->port_min;
	above = r->port_max - port;
	asm volatile("" : "+r"(below), "+r"(above));
	differs |= (below | above) >> 63;
	return !differs;
}

/* The first rule that matches, else the default. */
static __always_inline int __eval(struct sl_policy *pol, const struct sl_asked *q, bool egress)
{
	__u32 first = egress ? pol->ingress_count : 0, i;
	__u32 count = egress ? pol->egress_count : pol->ingress_count;

	for (i = 0; i < SL_POLICY_RULES; i++) {
		struct sl_rule *r = &pol->rules[(first + i) & (SL_POLICY_RULES - 1)];

		if (i >= count)
			break;
		if (!__rule_matches(r, q))
			continue;
		__sync_fetch_and_add(&r->hits, 1);
		if (r->flags & SL_RULE_ALLOW)
			return SL_DROP_NONE;
		return egress ? SL_DROP_EGRESS_RULE : SL_DROP_INGRESS_RULE;
	}
	if (egress) {
		__sync_fetch_and_add(&pol->egress_default, 1);
		return pol->flags & SL_POLICY_DENY_EGRESS ? SL_DROP_EGRESS_RULE : SL_DROP_NONE;
	}
	__sync_fetch_and_add(&pol->ingress_default, 1);
	return pol->flags & SL_POLICY_DENY_INGRESS ? SL_DROP_INGRESS_RULE : SL_DROP_NONE;
}

/* Is it from a pod of the bridge that uses its address of the link, which no endpoint has? */
static __always_inline bool __from_link(const struct __sk_buff *skb, const __u8 *remote)
{
	return addr_is_link_local6(remote) && skb->ingress_ifindex != skb->ifindex &&
	       endpoint_stats(skb->ingress_ifindex);
}

/*
 * ingressPolicy. Between two pods of this node: not if both are under one and on
 * different bridges, and not on one bridge if either is isolated. The other pod is the
 * one whose device the packet came in by, if it was bridged, or whose address it has.
 */
static __always_inline bool __isolated(const struct __sk_buff *skb, const struct sl_asked *q,
				       const struct sl_policed *s, bool toward)
{
	struct sl_policed *other = NULL;
	struct sl_endpoint *peer;
	__u32 group;

	if (!(s->flags & (SL_POLICY_SAME_BRIDGE | SL_POLICY_ISOLATED)))
		return false;
	if (toward)
		other = policy_of(skb->ingress_ifindex);
	if (other) {
		group = other->group;
	} else {
		peer = endpoint_lookup((const __u8 *)q->remote);
		if (!peer)
			return toward && (s->flags & SL_POLICY_ISOLATED) && __from_link(skb, (const __u8 *)q->remote);
		if (peer->owner == s->owner)
			return false;
		group = peer->route_ifindex;
		other = policy_of(peer->ifindex);
	}
	if (group == s->group)
		return (s->flags & SL_POLICY_ISOLATED) || (other && (other->flags & SL_POLICY_ISOLATED));
	return other && (other->flags & (SL_POLICY_SAME_BRIDGE | SL_POLICY_ISOLATED));
}

/*
 * Is the packet from a process of this node? On its way out to a pod such a packet never came in by a device. What
 * arrives inside the pod came from somewhere else: there the address has to do.
 */
static __always_inline bool __from_host(const struct __sk_buff *skb, const struct sl_asked *q,
					const struct sl_policed *s, bool toward)
{
	if (!s->group)
		return is_host_addr((const __u8 *)q->remote);
	return toward && !skb->ingress_ifindex;
}

/* What sl_policy_ask() is told of a packet. */
#define SL_ASK_EGRESS 1	 /* its connection was opened by the pod */
#define SL_ASK_TOWARD 2	 /* it is on its way to the pod */
#define SL_ASK_BETWEEN 4 /* only whether the two may talk at all */
#define SL_ASK_BARE 8	 /* it does not show its ports, or not even its protocol */

/*
 * May the connection be that __asked() describes? What processes of the node open
 * is always admitted (kubelet's probes). dev: key of the pod's device in sl_policed. Global, so that
 * the loop is verified once; kernels before 5.12 let such a function take the context and scalars
 * only. Returns an enum sl_drop_reason.
 */
__noinline int sl_policy_ask(struct __sk_buff *skb, __u32 dev, __u32 how)
{
	struct sl_policed *s = policy_of(dev);
	struct sl_asked *q = __asked();
	struct sl_policy *pol;
	__u32 id;

	if (!skb || !q)
		return SL_DROP_POLICY_GONE;
	if (!s)
		return SL_DROP_NONE;
	if (!(how & SL_ASK_EGRESS) && __from_host(skb, q, s, how & SL_ASK_TOWARD))
		return SL_DROP_NONE;
	if (__isolated(skb, q, s, how & SL_ASK_TOWARD))
		return SL_DROP_ISOLATED;
	if (how & SL_ASK_BETWEEN)
		return SL_DROP_NONE;
	id = s->policy;
	pol = bpf_map_lookup_elem(&sl_policies, &id);
	/* The id was read from an entry that has been replaced meanwhile. */
	if (!pol)
		return SL_DROP_POLICY_GONE;
	/* It would go past the rules about ports, and be put together behind them (RFC 1858, RFC 7112). */
	if ((how & SL_ASK_BARE) && (how & SL_ASK_EGRESS ? pol->egress_count : pol->ingress_count))
		return SL_DROP_OPAQUE;
	return __eval(pol, q, how & SL_ASK_EGRESS);
}

static __always_inline bool __has_ports(__u8 proto)
{
	return proto == IPPROTO_TCP || proto == IPPROTO_UDP || proto == IPPROTO_SCTP;
}

/* Asks for p, a packet of the device dev. pod_opens: the pod is the opener of its connection. how: SL_ASK_*. */
static __always_inline __must_check enum sl_drop_reason policy_ask(struct __sk_buff *skb, const struct sl_pkt *p,
								   __u32 dev, bool pod_opens, __u32 how)
{
	struct sl_asked *q = __asked();

	if (!q)
		return SL_DROP_POLICY_GONE;
	addr_copy(q->remote, p->tuple.remote);
	q->proto = p->tuple.proto;
	q->family = addr_is_v4(p->tuple.remote) ? SL_RULE_V4 : SL_RULE_V6;
	q->port = SL_NO_PORT;
	if (__has_ports(p->tuple.proto) && !(how & SL_ASK_BARE))
		q->port = bpf_ntohs(pod_opens ? p->tuple.remote_port : p->tuple.local_port);
	return (enum sl_drop_reason)sl_policy_ask(skb, dev, how | (pod_opens ? SL_ASK_EGRESS : 0));
}

/*
 * The record that a packet of the tuple belongs to, be it by an index (what a pod gets back through a
 * hairpin). *index: there is one, so that the tuple opens nothing.
 */
static __always_inline struct sl_flow *__policy_flow(const struct sl_tuple *key, __u64 owner, __u64 now, bool *index)
{
	struct sl_flow *f = flow_lookup(key, now);

	*index = f && f->owner == owner && (f->flags & SL_FLOW_INDEX);
	if (!f || f->owner != owner)
		return NULL;
	return *index ? flow_record(&f->other, owner, now) : f;
}

/*
 * A packet of the device dev, which is under the policy id: the verdict of its flow, or that of the rules, which makes
 * one. *flow is the flow, if it is under the packet's own tuple.
 */
static __always_inline __must_check enum sl_drop_reason policy_pass(struct __sk_buff *skb, const struct sl_pkt *p,
								    __u32 dev, __u64 owner, __u16 id, enum sl_dir dir,
								    __u64 now, struct sl_flow **flow)
{
	__u32 how = dir == SL_RX ? SL_ASK_TOWARD : 0;
	bool pod_opens = dir == SL_TX, index;
	struct sl_flow_scratch *scratch;
	enum sl_drop_reason reason;
	struct sl_flow *f;

	*flow = NULL;
	f = __policy_flow(&p->tuple, owner, now, &index);
	/* What gets here of a masqueraded flow is its own: the uplink has seen to that. */
	if (f && !index && !(dir == SL_RX && (f->flags & SL_FLOW_SNAT)) && flow_reopened(f, p, dir))
		f = NULL;
	if (f && !index)
		*flow = f;
	if (index && !f)
		return SL_DROP_NONE; /* its record is restored before the next packet */
	if (f && f->policy == id)
		return SL_DROP_NONE;
	if (f)
		pod_opens = f->flags & SL_FLOW_POD_OPENED;
	reason = policy_ask(skb, p, dev, pod_opens, how);
	if (reason)
		return reason;
	if (f) {
		f->policy = id;
		return SL_DROP_NONE;
	}
	scratch = flow_scratch();
	if (!scratch)
		return SL_DROP_FLOW_TABLE;
	flow_init(&scratch->rec, owner, pod_opens ? SL_FLOW_POD_OPENED : 0, now);
	scratch->rec.policy = id;
	*flow = flow_insert(&p->tuple, &scratch->rec);
	return *flow ? SL_DROP_NONE : SL_DROP_FLOW_TABLE;
}

/* Puts the number of a pod's own device into the key of its flow: addresses inside of namespaces may be anybody's too. */
static __always_inline void policy_number(struct sl_tuple *tuple, __u32 number)
{
	tuple->pad[1] = (__u8)number;
	tuple->pad[2] = (__u8)(number >> 8);
}

/*
 * Accounts a packet of a flow that no other hook of its direction sees, so that it lives as
 * long as it is used. Unlike flow_touch() it does not count as the first of two hooks on the packet's way.
 */
static __always_inline void policy_follow(struct __sk_buff *skb, const struct sl_pkt *p, struct sl_flow *f,
					  enum sl_dir dir, __u64 now)
{
	__u32 first = dir == SL_TX ? SL_FLOW_TX_FIRST : SL_FLOW_RX_FIRST;
	bool had = f->flags & first;

	f = flow_touch(&p->tuple, f, p, dir, skb->len, now);
	if (!had)
		f->flags &= ~first;
}

/* Neighbour discovery and multicast listeners: without them there is no link (RFC 4861, RFC 3810). Neither comes over a router, by its hop limit. */
static __always_inline bool __is_link_control(const struct sl_odd *o, __u32 kind)
{
	__u8 type = o->copy[0]; /* of what the second parser read last */

	if (kind != SL_ODD_L3 || o->outer.p.family != 6 || o->outer.p.tuple.proto != IPPROTO_ICMPV6)
		return false;
	if (type >= 133 && type <= 137)
		return o->outer.p.ttl == 255;
	return ((type >= 130 && type <= 132) || type == 143) && o->outer.p.ttl == 1;
}

/*
 * Does an isolated pod of the bridge talk to this device's address of the link? Its own hook does not know whose that is, and this device
 * need not be under a policy.
 */
static __always_inline bool policy_isolates(struct __sk_buff *skb, const struct sl_pkt *p, enum sl_parsed parsed)
{
	struct sl_policed *other;
	struct sl_odd *o;
	__u32 kind;

	if (likely(!addr_is_link_local6(p->tuple.local)))
		return false;
	other = policy_of(skb->ingress_ifindex);
	if (!other || !(other->flags & SL_POLICY_ISOLATED) || skb->ingress_ifindex == skb->ifindex)
		return false;
	if (parsed == SL_PARSED_L4)
		return true;
	kind = (__u32)sl_odd_parse(skb, ETH_HLEN, SL_RX, 0);
	o = odd_scratch();
	return o && !__is_link_control(o, kind);
}

/* Does a packet of which the second parser knows no more than the addresses not say what it is? */
static __always_inline bool __hides(const struct sl_odd *o)
{
	__u8 proto = o->outer.p.tuple.proto;

	return __has_ports(proto) || (o->outer.p.family == 6 && __is_ext(proto));
}

/*
 * A packet that the first parser gives up, of the device dev, if that has a policy. The first fragment has
 * the ports, and the others are nothing without it; what belongs to connections (ICMP errors), or to the link, is for
 * ingressPolicy alone. Addresses and protocol decide about the rest, packet by packet. number: of a pod's
 * own device, else 0.
 */
__noinline int sl_policy_odd(struct __sk_buff *skb, __u32 dev, __u32 dir, __u32 number)
{
	__u32 how = dir == SL_RX ? SL_ASK_TOWARD : 0, kind;
	struct sl_policed *s = policy_of(dev);
	__u64 now = clock_now();
	enum sl_drop_reason reason;
	struct sl_odd *o;
	struct sl_flow *f;

	if (!s)
		return SL_DROP_NONE;
	kind = (__u32)sl_odd_parse(skb, ETH_HLEN, dir == SL_RX ? SL_RX : SL_TX, 0);
	o = odd_scratch();
	if (!o || kind == SL_ODD_NONE || __is_link_control(o, kind))
		return SL_DROP_NONE;
	if (kind != SL_ODD_L4) {
		if (kind != SL_ODD_L3)
			how |= SL_ASK_BETWEEN;
		else if (__hides(o))
			how |= SL_ASK_BARE;
		return policy_ask(skb, &o->outer.p, dev, dir == SL_TX, how);
	}
	policy_number(&o->outer.p.tuple, number);
	reason = policy_pass(skb, &o->outer.p, dev, s->owner, s->policy, dir == SL_RX ? SL_RX : SL_TX, now, &f);
	if (!reason && f)
		policy_follow(skb, &o->outer.p, f, dir == SL_RX ? SL_RX : SL_TX, now);
	return (int)reason;
}

/* policy_pass() and policy_follow() for a packet that no hook keeps a record of. number: as in sl_policy_odd(). */
static __always_inline __must_check enum sl_drop_reason policy_device(struct __sk_buff *skb, struct sl_pkt *p,
								      enum sl_parsed parsed, __u32 dev, enum sl_dir dir,
								      __u32 number, __u64 now)
{
	struct sl_policed *s = policy_of(dev);
	enum sl_drop_reason reason;
	struct sl_flow *f;

	if (!s)
		return SL_DROP_NONE;
	if (parsed != SL_PARSED_L4)
		return (enum sl_drop_reason)sl_policy_odd(skb, dev, dir, number);
	policy_number(&p->tuple, number);
	reason = policy_pass(skb, p, dev, s->owner, s->policy, dir, now, &f);
	if (!reason && f)
		policy_follow(skb, p, f, dir, now);
	return reason;
}

/* Is the packet from a host that looks for its address (DHCP, RFC 4862)? It does not know yet whom to ask alone. */
static __always_inline bool policy_seeks(const __u8 *from, const __u8 *to)
{
	return addr_is_any(from) && addr_is_multicast(to);
}

/* A packet of a pod's own device, inside its namespace. */
static __always_inline int own_police(struct __sk_buff *skb, enum sl_dir dir)
{
	struct sl_pkt p = {};
	enum sl_parsed parsed = parse_packet(skb, &p, dir);
	__u32 number = own_number(skb);
	enum sl_drop_reason reason;

	if (parsed == SL_PARSED_TAGS)
		return drop(skb, SL_DROP_OPAQUE, SL_OWN_KEY | number);
	if (parsed == SL_PARSED_NONE || policy_seeks(p.tuple.local, p.tuple.remote) ||
	    policy_seeks(p.tuple.remote, p.tuple.local))
		return SL_PASS;
	reason = policy_device(skb, &p, parsed, SL_OWN_KEY | number, dir, number, clock_now());
	return reason ? drop(skb, reason, SL_OWN_KEY | number) : SL_PASS;
}
