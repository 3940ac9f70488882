/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "policy_types.h"

/* Policies by id. Pods with the same rules share one. Written by the loader only, but for the counters in it (atomic adds from all CPUs). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct sl_policy);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_policies SEC(".maps");

/* Pod devices under a policy, by the ifindex of the host end, or by SL_OWN_KEY | number. Written by the loader only; one update replaces the value. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct sl_policed);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_policed SEC(".maps");
