//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Host end of a pod's veth, tc egress: what the pod gets by way of the stack.
 * Last hook of the receiving direction: it confirms that the packet arrived with
 * the tuple the first hook saw, that is, that nobody else translated it.
 */
#define SL_PROGRAM SL_PROGRAM_POD_INGRESS
#include "lib/compiler.h"
#include "lib/config.h"
#include "lib/endpoint.h"
#include "lib/flow.h"
#include "lib/metrics.h"
#include "lib/policy.h"
#include "lib/sent.h"
#include "lib/turn_odd.h"

/* From a pod of this node: its sending hook and this one are the two ends of the way. False: they saw different tuples. */
static __always_inline bool __confirm_local(struct __sk_buff *skb, const struct sl_pkt *p, const struct sl_endpoint *ep,
					    const struct sl_endpoint *sender, __u64 now)
{
	struct sl_tuple from;
	struct sl_flow *out;
	struct sl_flow_scratch *s;
	struct sl_flow *in;

	tuple_reverse(&from, p);
	out = flow_record(&from, sender->owner, now);
	if (!out || !(out->flags & SL_FLOW_TX_FIRST) || (out->flags & SL_FLOW_NAT))
		return false;
	out->flags |= SL_FLOW_TX_CONFIRM | SL_FLOW_LOCAL_PEER;
	in = flow_record(&p->tuple, ep->owner, now);
	if (!in || flow_reopened(in, p, SL_RX)) {
		s = flow_scratch();
		if (!s)
			return false;
		flow_init(&s->rec, ep->owner, out->flags & SL_FLOW_POD_OPENED ? 0 : SL_FLOW_POD_OPENED, now);
		in = flow_insert(&p->tuple, &s->rec);
		if (!in)
			return false;
	}
	in = flow_touch(&p->tuple, in, p, SL_RX, skb->len, now);
	in->flags |= SL_FLOW_RX_CONFIRM | SL_FLOW_LOCAL_PEER;
	return true;
}

/* Did the packet come in by an uplink, whose hook has accounted it? */
static __always_inline bool __by_uplink(const struct __sk_buff *skb)
{
	__u32 ifindex = skb->ingress_ifindex;

	return bpf_map_lookup_elem(&sl_uplinks, &ifindex) != NULL;
}

/* See sent.h. A function of its own, for the stack it takes. */
static __noinline int sl_note_to_pod(const struct sl_pkt *p, __u64 now)
{
	struct sl_tuple sent;

	tuple_reverse(&sent, p);
	return sl_note_sent(&sent, now);
}

/*
 * Notes that the packet is still the one the first hook of its way saw, or exchanges its ends where a hairpin or a masquerade
 * ends here. *accounted: nobody has to account it any more.
 */
static __always_inline int __arrive(struct __sk_buff *skb, const struct sl_pkt *p, const struct sl_endpoint *ep,
				    __u64 now, bool *accounted)
{
	struct sl_endpoint *sender = endpoint_lookup(p->tuple.remote);
	struct sl_flow *f;
	int verdict;

	if (sender) {
		verdict = turn_in(skb, p);
		if (verdict != SL_NOT_TURNED)
			return verdict;
		*accounted |= __confirm_local(skb, p, ep, sender, now);
		return SL_PASS;
	}
	if (sent_loose(skb, p->tuple.proto))
		sl_note_to_pod(p, now);
	*accounted = *accounted || __by_uplink(skb);
	f = flow_record(&p->tuple, ep->owner, now);
	if (f && (f->flags & (SL_FLOW_MASQ | SL_FLOW_POD_OPENED)) == SL_FLOW_MASQ) {
		verdict = turn_in(skb, p); /* never confirmed: every packet has to come by here */
		return verdict == SL_NOT_TURNED ? SL_PASS : verdict;
	}
	if (f && (f->flags & SL_FLOW_RX_FIRST) && !(f->flags & SL_FLOW_RX_CONFIRM))
		f->flags |= SL_FLOW_RX_CONFIRM;
	return SL_PASS;
}

/* What the first parser left. */
static __always_inline int __arrive_odd(struct __sk_buff *skb, __u64 now)
{
	int verdict = turn_odd(skb, SL_RX);
	struct sl_odd *o = odd_scratch();

	if (o && o->outer.kind == SL_ODD_L4 && sent_loose(skb, o->outer.p.tuple.proto))
		sl_note_to_pod(&o->outer.p, now);
	return verdict;
}

/* Asks the policy of the device, if it has one. *admitted: the flow of the packet, if it has one under its tuple. */
static __always_inline enum sl_drop_reason __admit(struct __sk_buff *skb, const struct sl_pkt *p, enum sl_parsed parsed,
						   struct sl_flow **admitted, __u64 now)
{
	struct sl_policed *s = policy_of(skb->ifindex);

	if (policy_isolates(skb, p, parsed))
		return SL_DROP_ISOLATED;
	if (!s)
		return SL_DROP_NONE;
	if (parsed != SL_PARSED_L4)
		return (enum sl_drop_reason)sl_policy_odd(skb, skb->ifindex, SL_RX, 0);
	return policy_pass(skb, p, skb->ifindex, s->owner, s->policy, SL_RX, now, admitted);
}

SEC("tc")
int sl_pod_ingress(struct __sk_buff *skb)
{
	struct sl_pkt p = {};
	enum sl_parsed parsed = parse_packet(skb, &p, SL_RX);
	__u64 now = clock_now();
	struct sl_flow *admitted = NULL;
	enum sl_drop_reason reason;
	bool accounted;
	struct sl_endpoint *ep;
	int verdict = SL_PASS;

	if (parsed == SL_PARSED_NONE)
		return SL_PASS;
	if (parsed == SL_PARSED_TAGS)
		return drop(skb, SL_DROP_OPAQUE, skb->ifindex);
	reason = __admit(skb, &p, parsed, &admitted, now);
	if (reason)
		return drop(skb, reason, skb->ifindex);
	accounted = !admitted;
	ep = endpoint_lookup(p.tuple.local);
	if (ep && ep->ifindex == skb->ifindex) {
		count_rx(skb, endpoint_stats(ep->ifindex), false);
		verdict = parsed == SL_PARSED_L4 ? __arrive(skb, &p, ep, now, &accounted) : __arrive_odd(skb, now);
	}
	if (!accounted)
		policy_follow(skb, &p, admitted, SL_RX, now);
	return verdict;
}

char _license[] SEC("license") = "Dual BSD/GPL";
