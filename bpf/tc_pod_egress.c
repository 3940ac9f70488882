//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#include "lib/compiler.h"
#include "lib/config.h"
#include "lib/endpoint_maps.h"
#include "lib/flow_maps.h"
#include "lib/hostport_maps.h"
#include "lib/metrics_maps.h"

SEC("tc")
int sl_pod_egress(struct __sk_buff *skb)
{
	return skb->ifindex ? -1 : -1;
}

char _license[] SEC("license") = "Dual BSD/GPL";
