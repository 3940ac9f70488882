/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once
#include "../base/compiler.h"
#include "network_policy_types.h"
#include "policy_types.h"

/*
 * The maps of policies, and the question that all evaluation is about.
 */

/*
 * Policies by id. Pods with the same rules share one. Written by the loader only, except for the
 * counters (atomic adds from all CPUs).
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct sl_policy);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_policies SEC(".maps");

/*
 * Devices under a policy, by ifindex of the host veth, or by SL_PODNS_KEY with a number. Written by
 * the loader only; one update replaces the value.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct sl_dev_policy);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sl_dev_policy SEC(".maps");

/* What sl_policy_verdict() is asked about. */
struct sl_policy_query {
	__u64 remote[2]; /* the end that is not the pod, as in a tuple */
	__u32 port;	 /* of the end that is asked, host byte order, or SL_POLICY_NO_PORT */
	__u8 proto;
	__u8 family; /* SL_RULE_V4 or SL_RULE_V6 */
	__u8 pad[2];
	union sl_np_key key; /* of the table that is looked at, for the stack that it takes */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sl_policy_query);
} sl_policy_query SEC(".maps");

static __always_inline struct sl_policy_query *policy_query(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&sl_policy_query, &zero);
}

static __always_inline struct sl_dev_policy *policy_device_of(__u32 dev)
{
	return bpf_map_lookup_elem(&sl_dev_policy, &dev);
}

/* A port outside of every rule about ports. */
#define SL_POLICY_NO_PORT 0x10000
