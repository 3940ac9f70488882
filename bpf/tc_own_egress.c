//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The pod's own device, inside its namespace, tc egress: everything the pod
 * sends. For devices without a host end: macvlan, ipvlan, vlan, a device of the
 * host.
 */
#define SL_PROGRAM SL_PROGRAM_OWN_EGRESS
#include "lib/compiler.h"
#include "lib/config.h"
#include "lib/own.h"
#include "lib/policy.h"

SEC("tc")
int sl_own_egress(struct __sk_buff *skb)
{
	struct sl_own_device *dev = own_device(skb);

	if (!dev)
		return SL_PASS;
	count_tx(skb, own_stats(skb));
	return own_police(skb, SL_TX);
}

char _license[] SEC("license") = "Dual BSD/GPL";
