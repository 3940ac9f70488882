/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../endpoint/endpoint_stats.h"
#include "../endpoint/podns_device_types.h"

/*
 * The device a program inside a pod's network namespace is on: macvlan, ipvlan, vlan, host-device.
 */

/*
 * Devices with programs inside a pod's network namespace, by number. Written by the loader only;
 * one update replaces the value.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct sl_podns_device);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_ns_devices SEC(".maps");

/* Pods by what their packets look like at the parent of their device (parent.h). Written by the loader only. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct sl_parent_key);
	__type(value, struct sl_parent_pod);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_parent_pods SEC(".maps");

/*
 * The number of the packet's device; 0 if the filter carries none. Only for programs on clsact: on
 * tcx the field holds an old value.
 */
static __always_inline __u32 podns_dev_id(const struct __sk_buff *skb)
{
	return skb->tc_classid & 0xffff;
}

static __always_inline struct sl_podns_device *podns_dev(const struct __sk_buff *skb)
{
	__u32 number = podns_dev_id(skb);

	return number ? bpf_map_lookup_elem(&sl_ns_devices, &number) : NULL;
}

static __always_inline struct sl_endpoint_stats *podns_stats(const struct __sk_buff *skb)
{
	return endpoint_stats(SL_PODNS_KEY | podns_dev_id(skb));
}
