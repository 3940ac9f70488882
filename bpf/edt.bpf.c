//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Egress of a device with an fq qdisc: the pod's own device for what the pod sends, the host veth
 * for what it gets. Writes the earliest departure time of each packet. fq honours it, so the queue
 * is fq's, and a socket of this node feels it. On clsact only: the filter's class says which limit
 * applies.
 *
 * Ingress of the host veth, before sl_from_pod, for a limit with SL_EDT_POLICE: drops what the pod
 * sends past the queue on its own device.
 */
#define SL_PROGRAM SL_PROGRAM_EDT
#include "lib/base/compiler.h"
#include "lib/base/config.h"
#include "lib/base/ctx.h"
#include "lib/drop/drop.h"
#include "lib/edt/edt.h"
#include "lib/podns/podns_device.h"

/*
 * The latest time that a sender may ask for: fq's own horizon is 10 s. A later time, or one in the
 * past, is of another clock.
 */
#define FQ_HORIZON (10 * NSEC_PER_SEC)

/* Drops a packet that would wait too long under the limit e. */
static __always_inline int edt_drop(struct __sk_buff *skb, const struct sl_edt_limit *e, __u32 number)
{
	__u32 direction = e->flags & SL_EDT_EGRESS ? SL_DROP_FROM_PODS : SL_DROP_TO_PODS;

	return sl_drop(skb, SL_DROP_RATE | direction, SL_EDT_KEY | number);
}

SEC("tc")
int sl_edt(struct __sk_buff *skb)
{
	__u32 number = podns_dev_id(skb);
	struct sl_edt_limit *e = number ? bpf_map_lookup_elem(&sl_edt_limits, &number) : NULL;
	__u64 now, wanted = skb->tstamp;
	struct sl_departure d;

	/* 1. does the limit apply? */
	if (!e || !edt_applies(skb, e, number))
		return SL_NEXT;
	/* 2. at the node's end: has the packet kept its time? */
	if (e->flags & SL_EDT_POLICE)
		return edt_police(skb, e) ? SL_NEXT : edt_drop(skb, e, number);
	/* 3. when may the packet leave? */
	now = bpf_ktime_get_ns();
	if (wanted < now || wanted - now > FQ_HORIZON)
		wanted = 0;
	if (!edt_depart(e, skb->wire_len, bpf_get_hash_recalc(skb), now, wanted, &d))
		return edt_drop(skb, e, number);
	/* 4. ECN mark and departure time */
	if (d.wait > e->mark)
		bpf_skb_ecn_set_ce(skb);
	skb->tstamp = d.at;
	return SL_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
