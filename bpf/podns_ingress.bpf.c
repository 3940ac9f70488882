//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The pod's own device, inside its network namespace, tc ingress: everything the pod gets.
 * podns_egress.bpf.c says which devices.
 */
#define SL_PROGRAM SL_PROGRAM_NS_INGRESS
#include "lib/base/compiler.h"
#include "lib/base/config.h"
#include "lib/base/ctx.h"
#include "lib/podns/podns_device.h"
#include "lib/policy/policy.h"

SEC("tc")
int sl_ns_ingress(struct __sk_buff *skb)
{
	int verdict;

	if (!podns_dev(skb))
		return SL_NEXT;
	verdict = podns_policy(skb, SL_RX);
	if (verdict != TC_ACT_SHOT)
		count_rx(skb, podns_stats(skb), false);
	return verdict;
}

char _license[] SEC("license") = "Dual BSD/GPL";
