//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Host end of a pod's veth, tc egress: what the pod gets by way of the stack.
 * Last hook of the receiving direction: it confirms that the packet arrived with
 * the tuple the first hook saw, that is, that nobody else translated it.
 */
#include "lib/compiler.h"
#include "lib/config.h"
#include "lib/endpoint.h"
#include "lib/flow.h"
#include "lib/metrics.h"

/* From a pod of this node: its sending hook and this one are the two ends of the way. */
static __always_inline void __confirm_local(struct __sk_buff *skb, const struct sl_pkt *p, const struct sl_endpoint *ep,
					    const struct sl_endpoint *sender, __u64 now)
{
	struct sl_tuple from;
	struct sl_flow *out;
	struct sl_flow_scratch *s;
	struct sl_flow *in;

	tuple_reverse(&from, p);
	out = flow_record(&from, sender->owner, now);
	if (!out || !(out->flags & SL_FLOW_TX_FIRST) || (out->flags & SL_FLOW_NAT))
		return;
	out->flags |= SL_FLOW_TX_CONFIRM | SL_FLOW_LOCAL_PEER;
	in = flow_record(&p->tuple, ep->owner, now);
	if (!in || flow_reopened(in, p, SL_RX)) {
		s = flow_scratch();
		if (!s)
			return;
		flow_init(&s->rec, ep->owner, out->flags & SL_FLOW_POD_OPENED ? 0 : SL_FLOW_POD_OPENED, now);
		in = flow_insert(&p->tuple, &s->rec);
		if (!in)
			return;
	}
	in = flow_touch(&p->tuple, in, p, SL_RX, skb->len, now);
	in->flags |= SL_FLOW_RX_CONFIRM | SL_FLOW_LOCAL_PEER;
}

SEC("tc")
int sl_pod_ingress(struct __sk_buff *skb)
{
	struct sl_pkt p = {};
	enum sl_parsed parsed = parse_packet(skb, &p, SL_RX);
	__u64 now = bpf_ktime_get_ns();
	struct sl_endpoint *ep, *sender;
	struct sl_flow *f;

	if (parsed == SL_PARSED_NONE)
		return SL_PASS;
	ep = endpoint_lookup(p.tuple.local);
	if (!ep || ep->ifindex != skb->ifindex)
		return SL_PASS;
	count_rx(skb, endpoint_stats(ep->ifindex), false);
	if (parsed != SL_PARSED_L4)
		return SL_PASS;

	sender = endpoint_lookup(p.tuple.remote);
	if (sender) {
		__confirm_local(skb, &p, ep, sender, now);
		return SL_PASS;
	}
	f = flow_record(&p.tuple, ep->owner, now);
	if (f && (f->flags & SL_FLOW_RX_FIRST) && !(f->flags & SL_FLOW_RX_CONFIRM))
		f->flags |= SL_FLOW_RX_CONFIRM;
	return SL_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
