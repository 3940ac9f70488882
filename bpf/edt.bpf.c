//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Egress of a device with an fq qdisc: the pod's own device for what the pod sends,
 * the host end for what it gets. Writes the earliest departure time, which fq
 * honours: the queue is fq's, and a socket of this node feels it. On clsact only,
 * since the filter's class says whose limit it is.
 */
#define SL_PROGRAM SL_PROGRAM_EDT
#include "lib/base/compiler.h"
#include "lib/base/config.h"
#include "lib/base/ctx.h"
#include "lib/drop/drop.h"
#include "lib/edt/edt.h"
#include "lib/podns/podns_device.h"

/* A time that fq may take from the sender: its own horizon is 10 s. Anything else is of another clock, or old. */
#define FQ_HORIZON (10 * NSEC_PER_SEC)

SEC("tc")
int sl_edt(struct __sk_buff *skb)
{
	__u32 number = podns_dev_id(skb);
	struct sl_edt_limit *e = number ? bpf_map_lookup_elem(&sl_edt_limits, &number) : NULL;
	__u64 now, wanted = skb->tstamp;
	struct sl_departure d;

	if (!e || !edt_applies(skb, e, number))
		return SL_NEXT;
	now = bpf_ktime_get_ns();
	if (wanted < now || wanted - now > FQ_HORIZON)
		wanted = 0;
	if (!edt_depart(e, skb->wire_len, bpf_get_hash_recalc(skb), now, wanted, &d))
		return drop(skb, SL_DROP_RATE, SL_EDT_KEY | number);
	if (d.wait > e->mark)
		bpf_skb_ecn_set_ce(skb);
	skb->tstamp = d.at;
	return SL_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
