//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The pod's own device, inside its namespace, tc ingress: everything the pod
 * gets. See tc_own_egress.c.
 */
#define SL_PROGRAM SL_PROGRAM_OWN_INGRESS
#include "lib/compiler.h"
#include "lib/config.h"
#include "lib/own.h"
#include "lib/policy.h"

SEC("tc")
int sl_own_ingress(struct __sk_buff *skb)
{
	struct sl_own_device *dev = own_device(skb);

	if (!dev)
		return SL_PASS;
	count_rx(skb, own_stats(skb), false);
	return own_police(skb, SL_RX);
}

char _license[] SEC("license") = "Dual BSD/GPL";
