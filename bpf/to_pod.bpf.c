//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Host veth, tc egress: what the pod gets through the stack. Last hook of the receiving direction.
 * It confirms that the packet still has the tuple that the first hook saw: nothing else has
 * translated it.
 */
#define SL_PROGRAM SL_PROGRAM_TO_POD
#include "lib/base/compiler.h"
#include "lib/base/config.h"
#include "lib/base/ctx.h"
#include "lib/conntrack/conntrack.h"
#include "lib/conntrack/nf_tuple.h"
#include "lib/drop/drop.h"
#include "lib/endpoint/endpoint.h"
#include "lib/fastpath/cb_mark.h"
#include "lib/nat/hairpin_full.h"
#include "lib/nat/host_udp.h"
#include "lib/nat/nf_nat.h"
#include "lib/policy/egress_later.h"
#include "lib/policy/policy.h"

/*
 * Notes that a packet of the sender's entry out, whose key is from, has reached the pod behind ep: both ends of the way are known,
 * and so are both entries. False if there is no place for one.
 */
static __always_inline bool confirm_both(struct __sk_buff *skb, const struct sl_pkt *p, const struct sl_endpoint *ep,
					 const struct sl_tuple *from, struct sl_ct_entry *out, __u64 now)
{
	struct sl_ct_scratch *s;
	struct sl_ct_entry *in;

	out->flags |= SL_CT_PEER_LOCAL;
	ct_passed_stack(skb, out, p, SL_TX, now);
	in = ct_lookup_entry(&p->tuple, ep->owner, now);
	if (!in || ct_is_new_connection(in, p, SL_RX)) {
		s = ct_scratch();
		if (!s)
			return false;
		ct_init(&s->entry, ep->owner, out->flags & SL_CT_POD_OPENED ? 0 : SL_CT_POD_OPENED, now);
		in = ct_begin(&p->tuple, s);
		if (!in)
			return false;
	}
	/* What the receiver answers goes where this comes from. If it was translated for another connection before, that is over. */
	if (unlikely(in->flags & SL_CT_NF_NAT)) {
		s = ct_scratch();
		if (!s || !tuple_is_swapped(&in->other, from))
			nf_nat_forget(in);
		else
			nf_note_conn(in, s);
	}
	/*
	 * Two entries are one connection here: where one is to be confirmed again, so is the other.
	 * Each would wait for slow packets of a direction that is still fast.
	 */
	if ((cfg_relearn || !p->tcp_flags) && in->relearn_at != out->relearn_at) {
		in->flags &= ~SL_CT_SEEN_LAST;
		in->relearn_at = out->relearn_at;
	}
	in = ct_update(&p->tuple, in, p, SL_RX, skb->len, now);
	in->flags |= SL_CT_PEER_LOCAL;
	ct_passed_stack(skb, in, p, SL_RX, now);
	return true;
}

/*
 * From a pod of this node: the sender's hook and this one are the two ends of the way. False: they
 * saw different tuples.
 */
static __always_inline bool confirm_pod_to_pod(struct __sk_buff *skb, const struct sl_pkt *p,
					       const struct sl_endpoint *ep, const struct sl_endpoint *sender,
					       __u64 now)
{
	struct sl_tuple from;
	struct sl_ct_entry *out;

	tuple_reverse(&from, p);
	out = ct_lookup_entry(&from, sender->owner, now);
	if (!out || !(out->flags & SL_CT_TX_SEEN_FIRST) || (out->flags & (SL_CT_NAT | SL_CT_NF_NAT)))
		return false;
	return confirm_both(skb, p, ep, &from, out, now);
}

/* Did the packet come in by an uplink? Its hook has accounted the packet. */
static __always_inline bool came_by_uplink(const struct __sk_buff *skb)
{
	__u32 ifindex = skb->ingress_ifindex;

	return bpf_map_lookup_elem(&sl_uplinks, &ifindex) != NULL;
}

/* sl_host_udp_add() for what the pod gets. A function of its own, for the stack it takes. */
static __noinline int sl_host_udp_rev(const struct sl_pkt *p, __u64 now)
{
	struct sl_tuple sent;

	tuple_reverse(&sent, p);
	return sl_host_udp_add(&sent, now);
}

/* Entries of connections that another hook has seen come in, or that did not come in at all. */
#define SL_CT_KNOWN_IN (SL_CT_RX_SEEN_FIRST | SL_CT_POD_OPENED | SL_CT_NAT | SL_CT_NF_NAT)

/*
 * Accounts a packet of a connection to the pod's own address that came in by a device that is no uplink,
 * and makes its entry: the answers may leave by an uplink, and keep that address. Returns 1 if the
 * packet is of such a connection, else 0. A function of its own: it is verified once.
 * in: full_scratch()->outer if slow, else pkt_scratch()
 */
__noinline int sl_adopt_inbound(struct __sk_buff *skb, __u32 full)
{
	struct sl_full_ctx *ctx = full_scratch();
	const struct sl_pkt *p = pkt_scratch();
	__u64 now = clock_now();
	struct sl_ct_scratch *s;
	struct sl_endpoint *ep;
	struct sl_ct_entry *ct;

	if (!p || !ctx)
		return 0;
	if (full)
		p = &ctx->outer.p;
	ep = endpoint_lookup(p->tuple.local);
	if (!ep)
		return 0;
	ct = ct_lookup_entry(&p->tuple, ep->owner, now);
	if (ct && (ct->flags & SL_CT_KNOWN_IN))
		return 0;
	if (!ct || ct_is_new_connection(ct, p, SL_RX)) {
		if (!pkt_opens(p) || came_by_uplink(skb) || is_node_addr(p->tuple.remote) ||
		    !endpoint_masquerades(ep, p->tuple.local, p->tuple.remote))
			return 0;
		s = ct_scratch();
		if (!s)
			return 0;
		ct_init(&s->entry, ep->owner, 0, now);
		ct = ct_begin(&p->tuple, s);
		if (!ct)
			return 0;
	}
	policy_track(skb, p, ct, SL_RX, now);
	return 1;
}

/*
 * A packet that another pod of this node has sent to a Service, or through one: the sender's entry learns what netfilter makes of
 * it. Each pod has an entry under its own tuple, and what one has in "other" is the other's with its ends swapped.
 * in: s->pre
 */
static __always_inline bool nf_nat_pod_to_pod(struct __sk_buff *skb, const struct sl_pkt *p, struct sl_ct_scratch *s,
					      const struct sl_endpoint *ep, const struct sl_endpoint *sender, __u64 now)
{
	struct sl_ct_entry *out;

	tuple_swap(&s->key, &s->pre);
	out = ct_lookup_entry(&s->key, sender->owner, now);
	/* A pod that reaches itself stays on the slow path. */
	if (!out || !(out->flags & SL_CT_TX_SEEN_FIRST) || (out->flags & (SL_CT_OTHER_NAT | SL_CT_SNAT)) ||
	    sender->ifindex == ep->ifindex)
		return false;
	tuple_swap(&s->pre, &p->tuple);
	if (!(out->flags & SL_CT_PEER_LOCAL) || !(out->flags & SL_CT_NF_NAT) || !tuple_equal(&out->other, &s->pre)) {
		s->entry = *out;
		s->entry.other = s->pre;
		s->entry.flags = (out->flags & ~SL_CT_SEEN_LAST) | SL_CT_NF_NAT | SL_CT_PEER_LOCAL;
		out = ct_replace(&s->key, &s->entry);
		if (!out)
			return false;
	}
	nf_note_conn(out, s);
	return confirm_both(skb, p, ep, &s->key, out, now);
}

/* Is there something to learn from a packet, because the first hook has not seen its tuple, or can what was learned be confirmed? */
static __always_inline bool nf_nat_may_learn(const struct sl_ct_entry *ct)
{
	return !ct || (ct->flags & SL_CT_NF_NAT) || !(ct->flags & SL_CT_RX_SEEN_FIRST);
}

/*
 * A packet that netfilter has translated. From outside, it opens a connection through a NodePort, or goes on with one, or answers what
 * the pod sent to a Service. Returns 1 if it is accounted for, else 0. A function of its own: it is verified once.
 * in: pkt_scratch()
 */
__noinline int sl_nf_nat_to_pod(struct __sk_buff *skb)
{
	const struct sl_pkt *p = pkt_scratch();
	struct sl_ct_scratch *s = ct_scratch();
	struct sl_endpoint *ep, *sender;
	__u64 now = clock_now();
	struct sl_ct_entry *ct;
	bool begins;

	if (!p || !s || !sl_nf_translated(skb, p, s, SL_RX, false))
		return 0;
	ep = endpoint_lookup(p->tuple.local);
	if (!ep)
		return 0;
	sender = endpoint_lookup(s->pre.remote);
	if (sender)
		return nf_nat_pod_to_pod(skb, p, s, ep, sender, now);
	ct = ct_lookup_entry(&p->tuple, ep->owner, now);
	if (ct && ct_is_new_connection(ct, p, SL_RX))
		ct = NULL;
	if (ct && (ct->flags & SL_CT_NF_NAT) && nf_nat_same(ct, &p->tuple, &s->pre, true)) {
		nf_note_conn(ct, s);
		if (ct->flags & SL_CT_RX_SEEN_FIRST)
			ct_passed_stack(skb, ct, p, SL_RX, now);
		return 0;
	}
	/* What the pod opened is learned where it leaves. What has come for a pod's own address is not translated behind us. */
	if (s->nf_reply || (ct && (ct->flags & (SL_CT_POD_OPENED | SL_CT_SNAT | SL_CT_OTHER_NAT))) ||
	    !came_by_uplink(skb) || endpoint_lookup(s->pre.local))
		return 0;
	begins = !ct;
	if (ct)
		copy_without_outside(s, &p->tuple, ct);
	else
		ct_init(&s->entry, ep->owner, 0, now);
	if (!outside_claim_nf_nat(s, &p->tuple, &s->pre, now))
		return 0;
	ct = begins ? ct_begin(&p->tuple, s) : ct_insert(&p->tuple, &s->entry);
	if (!ct || !begins)
		return 0;
	policy_track(skb, p, ct, SL_RX, now);
	return 1;
}

/*
 * Confirms the tuple, or rewrites the packet where a hairpin or pod-side SNAT ends. *account: the
 * entry that the packet is still to be accounted in; NULL if there is none, or another hook has.
 */
static __always_inline int deliver(struct __sk_buff *skb, const struct sl_pkt *p, const struct sl_endpoint *ep,
				   __u64 now, struct sl_ct_entry **account)
{
	struct sl_endpoint *sender = endpoint_lookup(p->tuple.remote);
	struct sl_ct_entry *ct;
	int verdict;

	if (sender) {
		verdict = hairpin_to_pod(skb, p);
		if (verdict != SL_NOT_HAIRPIN)
			return verdict;
		if (confirm_pod_to_pod(skb, p, ep, sender, now) || sl_nf_nat_to_pod(skb))
			*account = NULL;
		return SL_NEXT;
	}
	if (is_unconnected_udp(skb, p->tuple.proto))
		sl_host_udp_rev(p, now);
	if (*account && came_by_uplink(skb))
		*account = NULL;
	ct = ct_lookup_entry(&p->tuple, ep->owner, now);
	/* So has the one of a client on this node, when it translated the packet. */
	if (ct && (ct->flags & SL_CT_DNAT))
		*account = NULL;
	if (ct && ct_comes_by_pod_snat(ct)) {
		verdict = hairpin_to_pod(skb, p); /* never confirmed: every packet has to pass here */
		return verdict == SL_NOT_HAIRPIN ? SL_NEXT : verdict;
	}
	if (nf_nat_may_learn(ct) && sl_nf_nat_to_pod(skb))
		*account = NULL;
	else if ((ct ? !(ct->flags & SL_CT_KNOWN_IN) : pkt_opens(p)) && sl_adopt_inbound(skb, 0))
		*account = NULL;
	if (ct && (ct->flags & (SL_CT_RX_SEEN_FIRST | SL_CT_NF_NAT)) == SL_CT_RX_SEEN_FIRST) {
		ct_passed_stack(skb, ct, p, SL_RX, now);
		ct_delete_if_closed(&p->tuple, ct, p, SL_RX);
	}
	return SL_NEXT;
}

/* What the fast parser cannot read. */
static __always_inline int deliver_full(struct __sk_buff *skb, __u64 now)
{
	int verdict = hairpin_full(skb, SL_RX);
	struct sl_full_ctx *full = full_scratch();

	if (!full || full->outer.kind != SL_FULL_TUPLE)
		return verdict;
	if (is_unconnected_udp(skb, full->outer.p.tuple.proto))
		sl_host_udp_rev(&full->outer.p, now);
	if (verdict == SL_NEXT && !endpoint_lookup(full->outer.p.tuple.remote))
		sl_adopt_inbound(skb, 1);
	return verdict;
}

/* The endpoint that the device dev has under an address, or NULL. */
static __always_inline struct sl_endpoint *own_endpoint(const __u8 *ip, __u32 dev)
{
	struct sl_endpoint *ep = endpoint_lookup(ip);

	return ep && ep->ifindex == dev ? ep : NULL;
}

/*
 * Evaluates the device's policy, if it has one. ep: the pod that is addressed, or NULL if that is none
 * of this device. *admitted: the entry under the packet's tuple, if there is one.
 */
static __always_inline enum sl_drop_reason to_pod_admit(struct __sk_buff *skb, const struct sl_pkt *p,
							enum sl_parsed parsed, const struct sl_endpoint *ep,
							struct sl_ct_entry **admitted, __u64 now)
{
	__u32 dev = skb->ifindex;
	struct sl_dev_policy *s = policy_device_of(dev);

	if (!ep && policy_isolated_bridged(skb, p, parsed))
		return SL_DROP_ISOLATED;
	if (!s)
		return SL_DROP_NONE;
	if (parsed != SL_PARSED_L4)
		return (enum sl_drop_reason)sl_policy_admit_full(skb, dev, SL_RX);
	return policy_admit(skb, p, dev, s->owner, s->policy, SL_RX, SL_POLICY_Q_TO_POD, now, admitted);
}

/*
 * egress_admit() for the pod of this node that sends the packet. Returns an enum sl_drop_reason. A function of its own:
 * it is verified once.
 * in: pkt_scratch() if l4
 */
__noinline int sl_sender_admit(struct __sk_buff *skb, __u32 l4)
{
	struct sl_full_ctx *full = full_scratch();
	struct sl_ct_scratch *s = ct_scratch();
	const struct sl_pkt *p = pkt_scratch();
	struct sl_endpoint *ep, *sender;
	__u64 now = clock_now();
	bool translated = false;
	struct sl_ct_entry *ct;

	if (!p || !s || !full)
		return SL_DROP_NONE;
	if (!l4) {
		/* What the full parser cannot read either, the first hook has judged by its destination. */
		if (sl_parse_full(skb, ETH_HLEN, SL_RX, 0) != SL_FULL_TUPLE)
			return SL_DROP_NONE;
		p = &full->outer.p;
	}
	ep = endpoint_lookup(p->tuple.local);
	if (!ep)
		return SL_DROP_NONE;
	ct = ct_lookup_entry(&p->tuple, ep->owner, now);
	if (ct && (ct->flags & SL_CT_POD_OPENED))
		return SL_DROP_NONE; /* an answer */
	tuple_reverse(&s->key, p);
	sender = endpoint_lookup(p->tuple.remote);
	if (!sender && sl_nf_translated(skb, p, s, SL_RX, false)) {
		translated = true;
		tuple_swap(&s->key, &s->pre);
		sender = endpoint_lookup(s->key.local);
	}
	if (!sender)
		return SL_DROP_NONE;
	ct = ct_lookup_entry(&s->key, sender->owner, now);
	return (int)egress_admit(sender, ct, translated, p->tuple.local, p->tuple.proto, p->tuple.local_port);
}

/* May a packet be one of a pod of this node under a policy? A pod that netfilter masquerades has an address of the node. */
static __always_inline bool sender_may_have_policy(struct __sk_buff *skb, const struct sl_pkt *p)
{
	struct sl_endpoint *sender = endpoint_lookup(p->tuple.remote);

	if (sender)
		return sender->policy;
	return skb->ingress_ifindex && nf_may_translate(skb, p) && is_node_addr(p->tuple.remote);
}

SEC("tc")
int sl_to_pod(struct __sk_buff *skb)
{
	struct sl_pkt *p = pkt_scratch();
	__u64 now = clock_now();
	struct sl_ct_entry *admitted = NULL;
	enum sl_drop_reason reason;
	enum sl_parsed parsed;
	struct sl_endpoint *ep;
	int verdict = SL_NEXT;

	/* 1. parse */
	if (!p)
		return SL_NEXT;
	strip_priority_tag(skb);
	parsed = parse_packet(skb, p, SL_RX);
	if (parsed == SL_PARSED_NONE)
		return SL_NEXT;
	reason = parse_refused(parsed);
	if (reason)
		return drop(skb, reason, skb->ifindex);
	/* 2. policy of the device */
	ep = own_endpoint(p->tuple.local, skb->ifindex);
	if (ep && unlikely(sender_may_have_policy(skb, p))) {
		reason = (enum sl_drop_reason)sl_sender_admit(skb, parsed == SL_PARSED_L4);
		if (reason)
			return drop(skb, reason, skb->ifindex);
	}
	reason = to_pod_admit(skb, p, parsed, ep, &admitted, now);
	if (reason)
		return drop(skb, reason, skb->ifindex);
	/* 3. deliver to the pod: pod-side SNAT, hairpin, confirmation */
	if (ep) {
		verdict = parsed == SL_PARSED_L4 ? deliver(skb, p, ep, now, &admitted) : deliver_full(skb, now);
		if (verdict != TC_ACT_SHOT)
			count_rx(skb, endpoint_stats(skb->ifindex), false);
	}
	/* 4. account, if no other hook has */
	if (admitted)
		policy_track(skb, p, admitted, SL_RX, now);
	if (cfg_netkit && cb_marked(skb))
		cb_unmark(skb);
	return verdict;
}

char _license[] SEC("license") = "Dual BSD/GPL";
