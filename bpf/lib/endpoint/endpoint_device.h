/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "endpoint_types.h"

/*
 * ifindex_exists.h for programs that have no packet, and so no FIB lookup: socket programs.
 */

/*
 * Host veths of pods, by ifindex. Written by the loader. The kernel deletes the entry when it
 * unregisters the device, also when the device moves to another network namespace
 * (dev_map_notification, kernel/bpf/devmap.c). No packet is redirected by it. Without types: the
 * kernel refuses BTF of such a map. Programs may look up since 5.4.
 */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 8192);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_pod_devices SEC(".maps");

/*
 * Has the device of an endpoint gone, and the pod with it? An endpoint that is not tracked counts as
 * one that is there: a loader without this map has written it.
 */
static __always_inline bool endpoint_device_gone(const struct sl_endpoint *ep)
{
	__u32 ifindex = ep->ifindex;

	return ep->tracked && !bpf_map_lookup_elem(&sl_pod_devices, &ifindex);
}
