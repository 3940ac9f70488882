//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Uplink, tc egress: what pods send out by way of the stack. Last hook of the
 * sending direction: it translates (answers of a hostPort, masquerade) and
 * confirms that nobody else did.
 */
#include "lib/compiler.h"
#include "lib/config.h"
#include "lib/endpoint.h"
#include "lib/metrics.h"
#include "lib/rewrite.h"
#include "lib/snat.h"

/* Translates the packet of a flow that has an outside tuple. */
static __always_inline int __translate(struct __sk_buff *skb, const struct sl_pkt *p, const struct sl_endpoint *ep,
				       const struct sl_flow *f)
{
	if (rewrite_packet(skb, p, SL_TX, &f->other, false))
		return drop(SL_DROP_REWRITE, ep->ifindex);
	return SL_PASS;
}

/* The same tuple left the pod and arrived here: note the way it took. */
static __always_inline void __confirm(struct __sk_buff *skb, struct sl_flow *f)
{
	if (!(f->flags & SL_FLOW_TX_FIRST))
		return;
	if (f->out_ifindex != skb->ifindex)
		f->out_ifindex = skb->ifindex;
	if (!(f->flags & SL_FLOW_TX_CONFIRM))
		f->flags |= SL_FLOW_TX_CONFIRM;
}

/*
 * A flow the pod opens and that must not show the pod's address: gets an outside
 * tuple, once. f: the record pod_egress made, or NULL when it saw another tuple
 * (a Service address that netfilter translated).
 */
static __always_inline int __masquerade(struct __sk_buff *skb, const struct sl_pkt *p, const struct sl_endpoint *ep,
					struct sl_flow *f, __u64 now)
{
	struct sl_flow_scratch *s = flow_scratch();
	enum sl_drop_reason reason;

	if (!s)
		return drop(SL_DROP_FLOW_TABLE, ep->ifindex);
	if (f)
		s->rec = *f;
	else
		flow_init(&s->rec, ep->owner, SL_FLOW_POD_OPENED, now);
	reason = snat_allocate(skb, p, s);
	if (reason)
		return drop(reason, ep->ifindex);
	f = flow_insert(&p->tuple, &s->rec);
	if (!f)
		return drop(SL_DROP_FLOW_TABLE, ep->ifindex);
	if (!(f->flags & SL_FLOW_TX_FIRST)) {
		__sync_fetch_and_add(&f->tx_packets, 1);
		__sync_fetch_and_add(&f->tx_bytes, skb->len);
	}
	__confirm(skb, f);
	return __translate(skb, p, ep, f);
}

/* Answers of a connection whose opening went by another way than our uplinks: they keep the pod's address, as will all that follow. */
static __always_inline int __adopt_inbound(struct __sk_buff *skb, const struct sl_pkt *p, const struct sl_endpoint *ep,
					   __u64 now)
{
	struct sl_flow_scratch *s = flow_scratch();

	if (s) {
		flow_init(&s->rec, ep->owner, SL_FLOW_REPLIED, now);
		s->rec.tx_packets = 1;
		s->rec.tx_bytes = skb->len;
		flow_insert(&p->tuple, &s->rec);
	}
	return SL_PASS;
}

SEC("tc")
int sl_upl_egress(struct __sk_buff *skb)
{
	__u64 now = bpf_ktime_get_ns();
	struct sl_endpoint *ep;
	struct sl_pkt p = {};
	struct sl_flow *f;

	if (parse_packet(skb, &p, SL_TX) != SL_PARSED_L4)
		return SL_PASS;
	ep = endpoint_lookup(p.tuple.local);
	if (!ep)
		return SL_PASS; /* the node's own, or translated before it got here */
	f = flow_record(&p.tuple, ep->owner, now);
	/* pod_egress replaced the record if this SYN opens anew; where it saw another tuple, it could not. */
	if (f && !(f->flags & SL_FLOW_TX_FIRST) && flow_reopened(f, &p, SL_TX))
		f = NULL;
	/* The pod that was the other end is gone, and its address is somewhere outside now. */
	if (f && (f->flags & SL_FLOW_LOCAL_PEER))
		f = NULL;
	if (f && (f->flags & SL_FLOW_NAT)) {
		if (!(f->flags & SL_FLOW_TX_FIRST))
			f->last_seen = now;
		/* The way back belongs to another flow by now: start anew with a tuple of our own. */
		if ((f->flags & SL_FLOW_SNAT) && !flow_ensure_index(&p.tuple, f))
			return __masquerade(skb, &p, ep, NULL, now);
		__confirm(skb, f);
		return __translate(skb, &p, ep, f);
	}
	if (f && (!(f->flags & SL_FLOW_POD_OPENED) || (f->flags & SL_FLOW_REPLIED))) {
		__confirm(skb, f);
		return SL_PASS;
	}
	if (!endpoint_masquerades(ep, p.tuple.local, p.tuple.remote)) {
		if (f)
			__confirm(skb, f);
		return SL_PASS;
	}
	if (!f && ((p.tcp_flags & (SL_TCP_SYN | SL_TCP_ACK)) == (SL_TCP_SYN | SL_TCP_ACK) || p.echo == SL_ECHO_ANSWERS))
		return __adopt_inbound(skb, &p, ep, now);
	return __masquerade(skb, &p, ep, f, now);
}

char _license[] SEC("license") = "Dual BSD/GPL";
