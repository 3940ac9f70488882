/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "endpoint_types.h"
#include "../base/lpm.h"

/*
 * The maps about pods, the node's own addresses and its uplinks.
 */

/* Every address of every pod that Sluice manages. Written by the loader only. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct sl_addr);
	__type(value, struct sl_endpoint);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_endpoints SEC(".maps");

/*
 * Counters by ifindex of the host veth, or by SL_PODNS_KEY with a number. The loader makes and
 * removes entries; programs count on their own CPU.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 8192);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct sl_endpoint_stats);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_ep_stats SEC(".maps");

/* The node's own addresses (not those of dummy and ipvs devices); value: ifindex. Written by the loader only. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct sl_addr);
	__type(value, __u32);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_node_addrs SEC(".maps");

/* Uplinks by ifindex. Written by the loader only. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct sl_uplink);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_uplinks SEC(".maps");

/* Destinations that are never masqueraded. Written by the loader only. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct sl_cidr);
	__type(value, __u32);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_nomasq_cidrs SEC(".maps");
