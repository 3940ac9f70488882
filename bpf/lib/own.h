/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "metrics.h"
#include "own_maps.h"

/* The number of the device a packet is on; 0 when the filter carries none. Only for programs on clsact: with tcx the field is whatever was left there. */
static __always_inline __u32 own_number(const struct __sk_buff *skb)
{
	return skb->tc_classid & 0xffff;
}

static __always_inline struct sl_own_device *own_device(const struct __sk_buff *skb)
{
	__u32 number = own_number(skb);

	return number ? bpf_map_lookup_elem(&sl_own_devices, &number) : NULL;
}

static __always_inline struct sl_endpoint_stats *own_stats(const struct __sk_buff *skb)
{
	return endpoint_stats(SL_OWN_KEY | own_number(skb));
}
