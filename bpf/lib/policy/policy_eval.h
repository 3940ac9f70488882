/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../conntrack/conntrack_table.h"
#include "../drop/drop_reasons.h"
#include "../endpoint/endpoint.h"
#include "../endpoint/endpoint_stats.h"
#include "../fastpath/cb_mark.h"
#include "../packet/parse.h"
#include "network_policy.h"
#include "policy_map.h"

/*
 * Evaluates a policy: ingressPolicy between pods first, then the rules in their order, then the
 * default, and NetworkPolicy last. policy.h decides when a packet has to be evaluated at all.
 */

/*
 * Without a branch, and with a fresh read of the tuple for each rule. What the verifier learns from
 * a comparison doubles the cases of all rules that follow ("BPF program is too large").
 */
static __always_inline bool rule_matches(const struct sl_rule *r, const volatile struct sl_policy_query *q)
{
	const __u64 *ip = (const __u64 *)r->ip, *mask = (const __u64 *)r->mask;
	__u64 differs = (r->flags & q->family) ^ q->family;
	__u64 port = q->port, below, above;

	differs |= (r->proto ^ q->proto) & r->proto_mask;
	differs |= (q->remote[0] & mask[0]) ^ ip[0];
	asm volatile("" : "+r"(differs)); /* else clang keeps all members on the stack */
	differs |= (q->remote[1] & mask[1]) ^ ip[1];
	asm volatile("" : "+r"(differs));
	/* Negative if the port is out of range. Without the barriers clang makes comparisons of it. */
	below = port - r->port_min;
	above = r->port_max - port;
	asm volatile("" : "+r"(below), "+r"(above));
	differs |= (below | above) >> 63;
	return !differs;
}

/* Rules that one call of sl_policy_first_match() compares. */
#define SL_POLICY_CHUNK 16
/* What it returns of a rule that matches, beside SL_RULE_ALLOW of the rule. */
#define SL_POLICY_MATCHED 0x100

/*
 * Finds the first of count rules of policy id that matches, from rule first on, among SL_POLICY_CHUNK at
 * most. Returns 0 if none does, SL_POLICY_MATCHED with SL_RULE_ALLOW or without if one does, and a negative
 * number if the policy has gone. A function of its own: the
 * verifier follows its few rounds once, and not one round for each of SL_POLICY_RULES.
 * in: policy_query()
 */
__noinline int sl_policy_first_match(__u32 id, __u32 first, __u32 count)
{
	struct sl_policy *pol = bpf_map_lookup_elem(&sl_policies, &id);
	struct sl_policy_query *q = policy_query();
	__u32 i;

	if (!pol || !q)
		return -1;
	for (i = 0; i < SL_POLICY_CHUNK; i++) {
		struct sl_rule *r = &pol->rules[(first + i) & (SL_POLICY_RULES - 1)];

		if (i >= count)
			break;
		if (!rule_matches(r, q))
			continue;
		__sync_fetch_and_add(&r->hits, 1);
		return SL_POLICY_MATCHED | (r->flags & SL_RULE_ALLOW);
	}
	return 0;
}

/* The first rule of pol, the policy id, that matches, else the default. */
static __always_inline int policy_rules_verdict(struct sl_policy *pol, __u32 id, bool egress)
{
	__u32 first = egress ? pol->ingress_count : 0, i;
	__u32 count = egress ? pol->egress_count : pol->ingress_count;
	int match;

	for (i = 0; i < SL_POLICY_RULES; i += SL_POLICY_CHUNK) {
		if (i >= count)
			break;
		match = sl_policy_first_match(id, first + i, count - i);
		if (!match)
			continue;
		if (match < 0)
			return SL_DROP_POLICY_RACE;
		if (match & SL_RULE_ALLOW)
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

/*
 * Does it come from a pod of the bridge that uses its link-local address? No endpoint has that
 * address. What was fragmented again has lost its device, see from_node().
 */
static __always_inline bool from_bridged_link_local(const struct __sk_buff *skb, const __u8 *remote)
{
	return addr_is_link_local6(remote) && skb->ingress_ifindex != skb->ifindex &&
	       (!skb->ingress_ifindex || endpoint_stats(skb->ingress_ifindex));
}

#define SL_PORT_DHCP_SERVER 67
#define SL_PORT_DHCP_CLIENT 68

/*
 * Does it come from a sender without an address? No host outside of the link can send it, so it is
 * from a pod of the bridge, or may be. A DHCP server in the pod has to hear it.
 */
static __always_inline bool from_no_address(const struct sl_policy_query *q)
{
	return addr_is_any((const __u8 *)q->remote) && !(q->proto == IPPROTO_UDP && q->port == SL_PORT_DHCP_SERVER);
}

/* Does an isolated pod get this from what may be a pod of its bridge? No endpoint has the source. */
static __always_inline bool from_stranger(const struct __sk_buff *skb, const struct sl_policy_query *q,
					  const struct sl_dev_policy *s)
{
	return from_no_address(q) || from_bridged_link_local(skb, (const __u8 *)q->remote) ||
	       skb->ingress_ifindex == s->group; /* by the bridge, through a hostPort */
}

/*
 * Does an isolated pod open something to a link-local address of its bridge? Which pod has that is not
 * known here, and not at the other end either if the node routes the packet back out of the bridge. On
 * a link without a bridge there is only the node.
 */
static __always_inline bool to_bridged_link_local(const struct __sk_buff *skb, const struct sl_policy_query *q,
						  const struct sl_dev_policy *s)
{
	return addr_is_link_local6((const __u8 *)q->remote) && s->group != skb->ifindex;
}

/*
 * ingressPolicy, between two pods of this node. "same-bridge" denies pods on different bridges;
 * "isolated" denies pods on one bridge if either has it. The other pod is the one whose device the
 * packet came in by, if it was bridged, or the one that has its address.
 */
static __always_inline bool policy_isolated(const struct __sk_buff *skb, const struct sl_policy_query *q,
					    const struct sl_dev_policy *s, bool to_pod)
{
	struct sl_dev_policy *other = NULL;
	struct sl_endpoint *peer;
	__u32 group;

	if (!(s->flags & (SL_POLICY_SAME_BRIDGE | SL_POLICY_ISOLATED)))
		return false;
	if (to_pod)
		other = policy_device_of(skb->ingress_ifindex);
	if (other) {
		group = other->group;
	} else {
		peer = endpoint_lookup((const __u8 *)q->remote);
		if (!peer)
			return (s->flags & SL_POLICY_ISOLATED) &&
			       (to_pod ? from_stranger(skb, q, s) : to_bridged_link_local(skb, q, s));
		if (peer->owner == s->owner)
			return false;
		group = peer->route_ifindex;
		other = policy_device_of(peer->ifindex);
	}
	if (group == s->group)
		return (s->flags & SL_POLICY_ISOLATED) || (other && (other->flags & SL_POLICY_ISOLATED));
	return other && (other->flags & (SL_POLICY_SAME_BRIDGE | SL_POLICY_ISOLATED));
}

/* What sl_policy_verdict() is asked. */
#define SL_POLICY_Q_EGRESS 1	 /* the pod opened the connection */
#define SL_POLICY_Q_TO_POD 2	 /* the packet is on its way to the pod */
#define SL_POLICY_Q_PODS_ONLY 4	 /* only whether the two pods may talk */
#define SL_POLICY_Q_NO_PORTS 8	 /* the packet hides its ports, or its protocol */
#define SL_POLICY_Q_FRAGMENT6 16 /* the packet is a fragment, IPv6 */
#define SL_POLICY_Q_LATER 32	 /* the last hook can answer too, behind all translations (egress_later.h) */

/*
 * Is it a packet of a connection that a process of this node opened? On its way to a pod such a packet
 * has no ingress device. Nor has what a pod behind netkit sends to it by the fast path, which is
 * marked. The kernel forgets the device of what it fragments again (ip6_copy_metadata()), so there the
 * address has to be the node's too. It decides alone about what arrives inside a pod, where everything
 * came in by a device, and about an answer of the pod.
 */
static __always_inline bool from_node(const struct __sk_buff *skb, const struct sl_policy_query *q,
				      const struct sl_dev_policy *s, __u32 query)
{
	bool to_pod = s->group && (query & SL_POLICY_Q_TO_POD);

	if (to_pod && (skb->ingress_ifindex || (cfg_netkit && cb_marked(skb))))
		return false;
	return (to_pod && !(query & SL_POLICY_Q_FRAGMENT6)) || is_node_addr((const __u8 *)q->remote);
}

/* What the rules of a device's policy say, if it has some. query: SL_POLICY_Q_* */
static __always_inline int policy_rules_say(const struct sl_dev_policy *s, __u32 query)
{
	__u32 id = s->policy;
	struct sl_policy *pol;

	if (s->flags & SL_POLICY_NO_RULES)
		return SL_DROP_NONE;
	pol = bpf_map_lookup_elem(&sl_policies, &id);
	/* The loader has replaced the entry that named the id. */
	if (!pol)
		return SL_DROP_POLICY_RACE;
	/* It would pass the rules about ports, and be reassembled behind them (RFC 1858, RFC 7112). */
	if ((query & SL_POLICY_Q_NO_PORTS) && (query & SL_POLICY_Q_EGRESS ? pol->egress_count : pol->ingress_count))
		return SL_DROP_UNPARSABLE;
	return policy_rules_verdict(pol, id, query & SL_POLICY_Q_EGRESS);
}

/* Has the pod that the policy is for the other address too? No NetworkPolicy keeps a pod from itself. */
static __always_inline bool is_same_pod(__u64 owner, const struct sl_policy_query *q)
{
	struct sl_endpoint *peer = endpoint_lookup((const __u8 *)q->remote);

	return peer && peer->owner == owner;
}

/* SL_NP_Q_* of SL_POLICY_Q_*. What comes back to a pod of what it has opened can wait until the pod goes on. */
static __always_inline __u32 np_query_of(const struct sl_dev_policy *s, __u32 query)
{
	return (query & SL_POLICY_Q_EGRESS ? SL_NP_Q_EGRESS : 0) |
	       (query & SL_POLICY_Q_NO_PORTS ? SL_NP_Q_NO_PORTS : 0) |
	       (s->group && (query & (SL_POLICY_Q_LATER | SL_POLICY_Q_TO_POD)) ? SL_NP_Q_LATER : 0);
}

/*
 * Does the policy admit the connection? Connections from processes of the node are always admitted
 * (kubelet's probes). dev: key of the pod's device in sl_dev_policy. Returns an enum
 * sl_drop_reason. Global, so that the loop is verified once. Kernels before 5.12 let such a
 * function take the context and scalars only.
 * in: policy_query()  out: ct_scratch()->egress_later
 */
__noinline int sl_policy_verdict(struct __sk_buff *skb, __u32 dev, __u32 query)
{
	struct sl_dev_policy *s = policy_device_of(dev);
	struct sl_policy_query *q = policy_query();
	struct sl_ct_scratch *scratch = ct_scratch();
	int reason;

	if (!skb || !q || !scratch)
		return SL_DROP_POLICY_RACE;
	scratch->egress_later = 0;
	if (!s)
		return SL_DROP_NONE;
	if (!(query & SL_POLICY_Q_EGRESS) && from_node(skb, q, s, query))
		return SL_DROP_NONE;
	if (policy_isolated(skb, q, s, query & SL_POLICY_Q_TO_POD))
		return SL_DROP_ISOLATED;
	if (query & SL_POLICY_Q_PODS_ONLY)
		return SL_DROP_NONE;
	reason = policy_rules_say(s, query);
	if (reason || !(s->flags & SL_POLICY_NETWORK))
		return reason;
	reason = sl_np_verdict(s->policy, np_query_of(s, query));
	return reason && is_same_pod(s->owner, q) ? SL_DROP_NONE : reason;
}

static __always_inline bool has_ports(__u8 proto)
{
	return proto == IPPROTO_TCP || proto == IPPROTO_UDP || proto == IPPROTO_SCTP;
}

/* Asks about a connection with the address remote. port: of the end that it is opened to, network byte order. */
static __always_inline void policy_set_query(struct sl_policy_query *q, const __u8 *remote, __u8 proto, __be16 port)
{
	addr_copy(q->remote, remote);
	q->proto = proto;
	q->family = addr_is_v4(remote) ? SL_RULE_V4 : SL_RULE_V6;
	q->port = has_ports(proto) ? bpf_ntohs(port) : SL_POLICY_NO_PORT;
}

/*
 * Evaluates the policy for a packet of the device dev with the tuple t. pod_opens: the pod opens the connection.
 * query: SL_POLICY_Q_*.
 * out: policy_query()
 */
static __always_inline __must_check enum sl_drop_reason policy_verdict(struct __sk_buff *skb, const struct sl_tuple *t,
								       __u32 dev, bool pod_opens, __u32 query)
{
	struct sl_policy_query *q = policy_query();

	if (!q)
		return SL_DROP_POLICY_RACE;
	policy_set_query(q, t->remote, t->proto, pod_opens ? t->remote_port : t->local_port);
	if (query & SL_POLICY_Q_NO_PORTS)
		q->port = SL_POLICY_NO_PORT;
	return (enum sl_drop_reason)sl_policy_verdict(skb, dev, query | (pod_opens ? SL_POLICY_Q_EGRESS : 0));
}
